"""Tests of sandboxes run on real ones; where a machine has none, the reason is given."""

import asyncio

import pytest

from jaxrl_agents.sandbox.host.probe import probe
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes

FILES = {
  "main.py": "print('hello')\n",
  "pkg/a.txt": "a\n",
  "pkg/b.txt": "b\n",
  "run.sh": "#!/bin/sh\n",
}
TEST_S = 120.0


@pytest.fixture(scope="session")
def report():
  """What the namespaces backend is worth here."""
  return asyncio.run(probe("namespaces"))


@pytest.fixture
def play(report):
  """Runs `await body(boxes, base)` with real sandboxes, under a deadline."""
  if not report.properties[0].holds:
    pytest.skip(str(report))

  def run(body, *, files=FILES, **options):
    async def whole():
      async with Sandboxes(**options) as boxes:
        return await body(boxes, await boxes.base(files))

    return asyncio.run(asyncio.wait_for(whole(), TEST_S))

  return run


@pytest.fixture
def in_box(play):
  """Runs `await body(box)` in one sandbox."""

  def run(body, **options):
    async def whole(boxes, base):
      async with await boxes.create(base) as box:
        return await body(box)

    return play(whole, **options)

  return run
