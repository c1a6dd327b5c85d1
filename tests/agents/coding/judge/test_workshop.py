"""The sandboxes of a worker outlive what ends them."""

import os
import signal

import pytest

from jaxrl_agents.agents.coding.services import Workshop
from jaxrl_agents.sandbox.errors import NoSandbox
from tests.agents.coding.judge.benches import CALLS, with_sandboxes

pytestmark = pytest.mark.slow


def test_a_workshop_whose_sandboxes_have_died_opens_new_ones():
  async def body(workshop):
    first = await workshop.judge()
    zygote = first.boxes._backend._process
    os.kill(zygote.pid, signal.SIGKILL)
    zygote.wait(10)
    with pytest.raises(NoSandbox):
      while True:
        await (await first.boxes.create(await first.base(CALLS))).close()
    second = await workshop.judge()
    outcomes = await second.outcomes(CALLS, {})
    return first is second, outcomes == {**CALLS.values, **CALLS.hidden_values}

  assert with_sandboxes(body) == (False, True)


def test_a_start_that_failed_is_tried_again(monkeypatch):
  opened = Workshop._open
  tries = []

  async def fails_once(self):
    tries.append(0)
    if len(tries) == 1:
      raise NoSandbox("the machine is overloaded")
    return await opened(self)

  async def body(workshop):
    fresh = Workshop()
    with monkeypatch.context() as patch:
      patch.setattr(Workshop, "_open", fails_once)
      with pytest.raises(NoSandbox, match="overloaded"):
        await fresh.judge()
      await fresh.judge()
    await fresh.close()
    return len(tries)

  assert with_sandboxes(body) == 2
