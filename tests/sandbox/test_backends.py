"""The other backends behind the same interface, and that nothing falls back in silence."""

import asyncio
import os
import shutil

import pytest

from jaxrl_agents.sandbox import errors
from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host.probe import probe
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes

pytestmark = pytest.mark.slow

KEPT_EVERYWHERE = {
  "commands run",
  "commands end in time",
  "memory is limited",
  "states are restored and forked",
}
WALLS = {
  "no network",
  "the system is read-only",
  "files of the machine are invisible",
  "processes of the machine are invisible",
  "no namespaces inside",
}


def test_namespaces_keep_every_promise(report):
  if not report.properties[0].holds:
    pytest.skip(str(report))
  assert report.holds, str(report)
  assert "keeps its promises" in str(report)


@pytest.mark.parametrize(
  ("backend", "program"), [("bubblewrap", "bwrap"), ("gvisor", "runsc"), ("unsafe-local", "bash")]
)
def test_a_backend_keeps_what_it_can_and_the_probe_says_what_not(backend, program):
  if not shutil.which(program):
    pytest.skip(f"{program} is not installed")
  report = asyncio.run(probe(backend))
  if report.properties[0].name == "sandboxes start":
    pytest.skip(str(report))
  held = {p.name for p in report.properties if p.holds}
  broken = [p for p in report.properties if not p.holds]
  assert held >= (KEPT_EVERYWHERE if backend == "unsafe-local" else KEPT_EVERYWHERE | WALLS), report
  assert all(p.why and p.remedy for p in broken)
  assert "disk is limited" not in held  # they work on a folder of the machine


def test_a_backend_that_is_not_installed_is_an_error_with_the_remedy(monkeypatch):
  monkeypatch.setenv("PATH", "/nowhere")
  report = asyncio.run(probe("bubblewrap"))
  assert not report.holds and "NOT" in str(report)

  async def open_it():
    async with Sandboxes("bubblewrap"):
      pass

  with pytest.raises(NoSandbox, match="no bash|is not installed"):
    asyncio.run(open_it())


def test_an_unknown_backend_is_an_error_that_lists_the_known_ones():
  with pytest.raises(ValueError, match="namespaces, bubblewrap, gvisor, unsafe-local"):
    Sandboxes("docker")


@pytest.mark.parametrize(
  ("failed", "remedy"),
  [
    ("unshare: Operation not permitted", "apparmor_restrict_unprivileged_userns"),
    ("clone: No space left on device", "max_user_namespaces"),
    ("mount proc on /proc: Operation not permitted", "systempaths=unconfined"),
    ("mount overlay on /mnt: Invalid argument", "Linux 5.11"),
    ("write tcp_rmem: Permission denied", "Linux 4.15"),
    ("open /root/x: user 61999 may not", "store"),
    ("something else", "something else"),
  ],
)
def test_a_failed_step_is_reported_with_its_remedy(failed, remedy):
  assert remedy in errors.explain(failed) and failed in errors.explain(failed)


def test_a_store_of_another_user_is_refused(tmp_path):
  store = tmp_path / "store"
  store.mkdir()
  store.chmod(0o777)

  async def open_it():
    async with Sandboxes(store=store):
      pass

  with pytest.raises(NoSandbox, match="written by others"):
    asyncio.run(open_it())


def test_an_unreachable_store_is_reported_with_the_remedy(tmp_path, report):
  if os.geteuid() != 0 or not report.properties[0].holds:
    pytest.skip("needs root, whose folders the sandboxes' user cannot enter")
  tmp_path.chmod(0o700)

  async def open_it():
    async with Sandboxes(store=tmp_path / "store"):
      pass

  with pytest.raises(NoSandbox, match="choose a store"):
    asyncio.run(open_it())
