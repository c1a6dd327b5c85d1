"""The sandboxes of tests/sandbox, for policies that mean harm."""

import asyncio

import pytest

from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.sandbox.records import SandboxLimits
from tests.sandbox.conftest import TEST_S, in_box, play, report

__all__ = ["in_box", "play", "report"]

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
