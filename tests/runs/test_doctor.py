"""What the doctor says of a machine, and that it says it of this one."""

import itertools
import pathlib
import subprocess
import sys

import pytest

from jaxrl_agents.runs import doctor
from jaxrl_agents.runs.doctor import Check


def test_a_recipe_is_ready_unless_something_that_it_needs_is_lacking():
  found = [
    Check("memory", "lacks", "1 GiB", "free some", ("coding",)),
    Check("sandbox", "lacks", "no namespaces", "another kernel", ("coding",)),
    Check("huge pages", "note", "never", "turn them on"),
  ]
  assert doctor.verdicts(found) == {
    "search": "ready",
    "swarm": "ready",
    "coding": "lacks memory, sandbox",
  }


def test_the_disk_of_the_cache_is_looked_at_where_the_environment_puts_it(tmp_path, monkeypatch):
  monkeypatch.setenv("JAXRL_CACHE", str(tmp_path / "cache"))
  before_the_sandbox = itertools.takewhile(
    lambda check: check.name != "open files", doctor.checks(tmp_path / "runs")
  )
  disks = [check.name for check in before_the_sandbox if check.name.startswith("disk")]
  assert disks == [f"disk at {tmp_path / name}" for name in ("runs", "cache")]


@pytest.mark.slow
def test_everything_that_is_not_fine_has_a_remedy_and_the_versions_are_those_of_this_process():
  found = {check.name: check for check in doctor.checks(pathlib.Path())}
  assert found["Python"].found == sys.version.split()[0]
  assert found["jax"].state == "ok"  # the tests run with it
  assert all(check.remedy for check in found.values() if check.state == "lacks")


@pytest.mark.slow
def test_a_folder_without_room_is_named_and_no_recipe_is_ready():
  command = [sys.executable, "scripts/doctor.py", "--workdir=/proc/nowhere"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == 1, done.stderr
  assert "LACKS disk at /proc/nowhere" in done.stdout
  assert "search: lacks disk at /proc/nowhere" in done.stdout
