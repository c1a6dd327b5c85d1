"""The sandboxes of tests/sandbox, for policies that mean harm."""

import asyncio
import contextlib
import os
import subprocess
import time

import pytest

from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.host import unpacking
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.sandbox.records import SandboxLimits
from tests.sandbox.conftest import TEST_S, in_box, play, report

__all__ = ["deep_folder", "in_box", "play", "report"]

LIMITS = SandboxLimits(memory_bytes=128 << 20, processes=40, disk_bytes=32 << 20, files=5_000)


@pytest.fixture(scope="module")
def hostile(report):
  """Runs `await body(boxes, base)` with the sandboxes of this module, all under LIMITS."""
  if not report.properties[0].holds:
    pytest.skip(str(report))
  with asyncio.Runner() as runner:
    boxes = Sandboxes(limits=LIMITS)
    runner.run(boxes.__aenter__())
    base = runner.run(boxes.base({"main.py": "print('hello')\n", "pkg/a.txt": "a\n"}))

    def run(body):
      return runner.run(asyncio.wait_for(body(boxes, base), TEST_S))

    yield run
    runner.run(boxes.close())


@pytest.fixture
def attempt(hostile):
  """Runs a Python program in a sandbox of its own: its result."""

  def run(program, timeout_s=20.0):
    async def body(boxes, base):
      async with await boxes.create(base) as box:
        await box.write("attempt.py", program)
        return await box.exec("exec 2>&1; python3 attempt.py", timeout_s)

    return hostile(body)

  return run


WORK = ["d", "work", 0o755, 0, 0]


@pytest.fixture
def deep_folder(tmp_path):
  """A folder that may be filled with a tree of any depth, which pytest could not remove."""
  folder = tmp_path / "deep"
  folder.mkdir()
  yield folder
  overlay.remove(str(folder))


def nest(folder, depth, name="d"):
  """A chain of folders below `folder`; the descriptor of the last."""
  there = os.open(folder, os.O_RDONLY)
  for _ in range(depth):
    os.mkdir(name, dir_fd=there)
    inner = os.open(name, os.O_RDONLY, dir_fd=there)
    os.close(there)
    there = inner
  return there


@pytest.fixture
def store(tmp_path):
  """A store of layers in a folder of its own."""
  made = Store(tmp_path / "store", (os.geteuid(), os.getegid()))
  yield made
  made.close()
  overlay.remove(str(tmp_path / "store"))  # pytest could not, where folders are deep


def file(path, content=b"", mode=0o644):
  """An entry of a regular file."""
  size = len(content)
  return ["f", path, mode, 0, [[0, size], [size, 0]] if size else [[0, 0]]]


def added(store, entries, below, body=b""):
  """The layers with one of these entries on top."""
  return store.add(entries, unpacking.slices(body), len(body), below=below)[0]


def wait_until(condition, limit_s=15.0):
  """Waits for a thread to do something."""
  deadline = time.monotonic() + limit_s
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.005)


def session_entries(store):
  """What lies in the folder of the session, but for what is about to be removed."""
  folder = store.folder / "live" / store._session
  return sorted(path.name for path in folder.iterdir() if path.suffix != ".gone")


def is_swept_clean(store):
  """Whether nothing at all lies in the folder of the session."""
  return not any((store.folder / "live" / store._session).iterdir())


@contextlib.contextmanager
def tmpfs(folder, options):
  """A small file system, where this user may mount one."""
  folder.mkdir()
  command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
  if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
    pytest.skip("mounting a small file system needs root")
  try:
    yield folder
  finally:
    subprocess.run(["umount", str(folder)], check=True)
