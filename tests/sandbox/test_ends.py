"""Nothing outlives a sandbox: no process and no mount, even when the host process is killed."""

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxrl_agents.sandbox.errors import NoSandbox, SandboxLost
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.host.sandboxes import default_store

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
HOST = """
import asyncio
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes

async def main():
  async with Sandboxes() as boxes:
    base = await boxes.base({"a": "1"})
    made = await asyncio.gather(*(boxes.create(base) for _ in range(6)))
    for box in made:
      await box.exec("setsid sleep 8765.%d & (trap '' HUP TERM; nohup sleep 8765.%d &); sleep 0.2")
    snapshot = await made[0].snapshot()
    print("store", boxes.store.folder / snapshot.layers[0], flush=True)
    busy = asyncio.create_task(made[1].exec("while :; do :; done", timeout_s=600))
    await asyncio.sleep(600)

asyncio.run(main())
"""


def left(marker):
  """Processes whose command line has `marker`."""
  found = []
  for folder in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):
      if marker in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
        found.append(int(folder.name))
  return found


def family(pid):
  """`pid` and its descendants."""
  parents = {}
  for folder in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):
      stat = (folder / "stat").read_text().rpartition(")")[2].split()
      parents[int(folder.name)] = int(stat[1])
  found = {pid}
  while more := {child for child, parent in parents.items() if parent in found} - found:
    found |= more
  return found


def with_mounts_of_the_store(pids):
  """Those of `pids` in whose file tree something of the default store is mounted."""
  found = set()
  for pid in pids:
    with contextlib.suppress(OSError):
      if default_store().name in pathlib.Path(f"/proc/{pid}/mountinfo").read_text():
        found.add(pid)
  return found


def wait_until(condition, limit_s=15.0):
  deadline = time.monotonic() + limit_s
  while time.monotonic() < deadline:
    if condition():
      return True
    time.sleep(0.02)
  return False


def test_a_killed_host_leaves_nothing_but_what_the_next_session_clears(report, play):
  if not report.properties[0].holds:
    pytest.skip(str(report))
  marker = os.getpid()
  host = subprocess.Popen(
    [sys.executable, "-c", HOST % (marker, marker)],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
  )
  try:
    line = host.stdout.readline().split()
    assert line[0] == "store" and pathlib.Path(line[1]).is_dir()
    name = f"8765.{marker}".encode()
    assert len(left(name)) >= 12
    pids = family(host.pid)
    assert len(with_mounts_of_the_store(pids)) >= 6
  finally:
    host.send_signal(signal.SIGKILL)
    host.wait()
  assert wait_until(lambda: not left(name)), left(name)
  assert wait_until(lambda: not with_mounts_of_the_store(pids))
  assert default_store().name not in pathlib.Path("/proc/self/mountinfo").read_text()

  async def nothing(boxes, base):
    pass

  play(nothing)
  assert wait_until(lambda: not pathlib.Path(line[1]).exists())  # another session may be at it


def test_what_a_killed_host_kept_is_swept_by_the_next(play):
  async def body(boxes, base):
    live = boxes.store.folder / "live"
    return [lock for lock in live.glob("*.lock") if not (live / lock.stem).is_dir()]

  assert wait_until(lambda: play(body) == [])  # other sessions come and go meanwhile
  stale = default_store() / "live" / "deadbeef"
  stale.mkdir(exist_ok=True)
  (stale / "s1").mkdir(exist_ok=True)
  stale.with_suffix(".lock").touch()
  play(body)
  assert not stale.exists()


def test_closing_leaves_nothing(play):
  marker = f"4321.{os.getpid()}"

  async def body(boxes, base):
    box = await boxes.create(base)
    await box.exec(f"setsid sleep {marker} & nohup sleep {marker} & sleep 0.2")
    running = len(left(marker.encode()))
    await box.close()
    gone = left(marker.encode())
    await box.close()  # twice is fine
    return running, gone

  assert play(body) == (2, [])


def test_the_death_of_the_zygote_ends_all_sandboxes_with_an_error(play):
  async def body(boxes, base):
    box = await boxes.create(base)
    await box.exec(f"setsid sleep 5432.{os.getpid()} & sleep 0.2")
    boxes._backend._process.kill()
    await asyncio.wait_for(box.ended.wait(), 10)
    with pytest.raises(SandboxLost):
      await box.exec("true")
    with pytest.raises(NoSandbox, match="zygote is gone"):
      await boxes.create(base)

  play(body)
  assert wait_until(lambda: not left(f"5432.{os.getpid()}".encode()))


def test_a_sandbox_whose_zygote_dies_while_it_starts_is_an_error_that_says_so(play):
  async def body(boxes, base):
    launch = boxes._backend.launch

    async def launch_and_die(number, *rest):
      await launch(number, *rest)
      boxes._backend._process.kill()
      await asyncio.wait_for(boxes._ends[number].wait(), 10)

    boxes._backend.launch = launch_and_die
    with pytest.raises(NoSandbox, match="ended before it was ready"):
      await boxes.create(base)

  play(body)


def test_a_sandbox_that_answers_and_then_ends_while_it_is_made_is_an_error(play, monkeypatch):
  async def body(boxes, base):
    begin = Sandbox.begin

    async def begin_and_die(box, env):
      await begin(box, env)
      boxes._backend._process.kill()
      await asyncio.wait_for(box.ended.wait(), 10)

    monkeypatch.setattr(Sandbox, "begin", begin_and_die)
    with pytest.raises(NoSandbox, match="ended before it was ready"):
      await boxes.create(base)
    assert not boxes._boxes

  play(body)
