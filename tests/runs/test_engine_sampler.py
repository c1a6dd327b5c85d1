"""An engine that steps in a thread of its own: what becomes of requests when it ends."""

import asyncio
import threading
import time

import numpy as np
import pytest

from jaxrl_agents.runs.serving import EngineSampler, until_signal
from jaxrl_agents.types import Generation, SamplingLimits

LIMITS = SamplingLimits(4, (1,))


class Fails:
  """An engine whose step waits for `go` and then fails."""

  version, num_unfinished = 0, 0

  def __init__(self):
    self.stepping, self.go = threading.Event(), threading.Event()

  def submit(self, prompt, limits, watch=None):
    self.num_unfinished += 1
    return self.num_unfinished

  def cancel(self, request_id):
    self.num_unfinished -= 1

  def step(self):
    self.stepping.set()
    self.go.wait(20)
    raise MemoryError("no pages")


class Works(Fails):
  """An engine whose requests never end."""

  def step(self):
    time.sleep(0.02)
    return []


def ask(sampler, *tokens):
  return asyncio.create_task(sampler.generate(np.asarray(tokens), LIMITS))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whoever_waits_is_told_when_the_engine_fails():
  async def run():
    engine = Fails()
    with EngineSampler(engine, asyncio.get_running_loop()).running() as sampler:
      waiting = [ask(sampler, 1)]
      await asyncio.to_thread(engine.stepping.wait, 20)
      waiting.append(ask(sampler, 2))
      waiting.append(asyncio.create_task(sampler.between_steps(lambda: 1)))
      await asyncio.sleep(0.1)
      engine.go.set()
      for task in waiting:
        with pytest.raises(RuntimeError, match="the engine failed: MemoryError: no pages"):
          await asyncio.wait_for(task, 10)
      with pytest.raises(RuntimeError, match="the engine has ended"):
        await asyncio.wait_for(ask(sampler, 3), 10)
      with pytest.raises(RuntimeError, match="start the server again"):
        await asyncio.wait_for(until_signal(sampler), 10)  # a server ends with its engine

  asyncio.run(run())


def test_whoever_waits_is_told_when_the_engine_is_stopped():
  async def run():
    sampler = EngineSampler(Works(), asyncio.get_running_loop())
    with sampler.running():
      waiting = ask(sampler, 1)
      await asyncio.sleep(0.2)
    with pytest.raises(RuntimeError, match="the engine has ended"):
      await asyncio.wait_for(waiting, 10)

  asyncio.run(run())


class Counts(Fails):
  """An engine that samples one token a step, 5, 6, 7, ..., for whoever watches."""

  def submit(self, prompt, limits, watch=None):
    self.watch, self.tokens = watch, []
    return super().submit(prompt, limits)

  def step(self):
    self.tokens.append(5 + len(self.tokens))
    ids = np.asarray(self.tokens, np.int32)
    if not self.watch(ids, np.zeros_like(ids)):
      return []
    self.num_unfinished = 0
    return [(1, Generation(ids, ids * 0.0, ids * 0, None, "length"))]


def test_a_reply_is_watched_while_it_is_sampled():
  async def run():
    seen = []
    watch = lambda tokens, versions: seen.append(tokens.tolist()) or len(tokens) == 3
    with EngineSampler(Counts(), asyncio.get_running_loop()).running() as sampler:
      generation = await asyncio.wait_for(sampler.watched(np.asarray([1]), LIMITS, watch), 10)
    assert generation.tokens.tolist() == [5, 6, 7]
    assert seen == [[5], [5, 6], [5, 6, 7]]

  asyncio.run(run())
