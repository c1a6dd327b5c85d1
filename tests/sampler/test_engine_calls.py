"""Two engines, the second of which makes the calls of the first: what comes out is the same."""

import random

import jax
import numpy as np
import pytest

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.engine_calls import Calls, Clock, Leader
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.types import SamplingLimits
from tests.sampler.test_server import CFG


def engine(clock):
  return Engine(
    CFG,
    params_lib.init(CFG, jax.random.key(0)),
    version=0,
    slots=3,
    page_tokens=4,
    num_pages=24,
    max_context_tokens=40,
    prefill_tokens=8,
    draft_tokens=0,
    prefill_rows=1,
    clock=clock,
  )


@pytest.fixture(scope="module")
def both():
  clocks = Clock(), Clock()
  return [(engine(clock), clock) for clock in clocks]


def leading(both, tell, **options):
  engine, clock = both
  return Leader(engine, clock, tell, max_context_tokens=40, vocab_size=CFG.vocab_size, **options)


def repeating(both):
  """Makes what a leader tells on the second engine; returns what ended."""
  calls = Calls(*both)
  return lambda told: seen(calls.advance(*told, max_steps=1).ended)


def prompts(draw, count):
  return [
    np.asarray(draw.choices(range(1, 40), k=draw.randint(2, 12)), np.int32) for _ in range(count)
  ]


def seen(ended):
  return [
    (
      i,
      found.text
      if isinstance(found, Failure)
      else (found.tokens.tolist(), found.logprobs.tolist()),
    )
    for i, found in ended
  ]


@pytest.mark.slow
def test_calls_broadcast_before_each_step_give_a_second_engine_the_same_results(both):
  (first, _), (second, _) = both
  told, repeated, repeat = [], [], repeating(both[1])
  leader = leading(both[0], lambda *each: told.append(each))
  draw, found, ids = random.Random(0), [], []
  waiting = prompts(draw, 12)
  while waiting or leader.num_unfinished:
    for _ in range(draw.randint(0, 2)):
      if waiting:
        ids.append(leader.submit(waiting.pop(), SamplingLimits(6, (), seed=draw.randrange(99))))
    if draw.random() < 0.1:
      leader.cancel(draw.choice(ids))
    with pytest.raises(ValueError, match="at least one token id"):
      leader.submit(np.zeros(0, np.int32), SamplingLimits(6, ()))
    found += seen(leader.step())
    (advanced,) = told
    told.clear()
    repeated += repeat(advanced)
  assert found == repeated and len(found) > 8
  assert first.describe() == second.describe() and first.stats == second.stats


@pytest.mark.slow
def test_a_deadline_passes_in_the_second_engine_when_it_did_in_the_first(both):
  """The second makes the calls half a second later, when both requests would be too late."""
  now = [1000.0]
  told = []
  leader = leading(both[0], lambda *each: told.append(each), time=lambda: now[0])
  draw = random.Random(1)
  late, timely = prompts(draw, 2)
  leader.submit(late, SamplingLimits(4, (), deadline_s=0.0))
  leader.submit(timely, SamplingLimits(4, (), deadline_s=0.4))
  found = seen(leader.step())  # at the time of which both deadlines begin
  now[0] += 0.01
  while leader.num_unfinished:
    found += seen(leader.step())
  now[0] += 0.5
  repeat = repeating(both[1])
  repeated = [each for advanced in told for each in repeat(advanced)]
  assert found == repeated
  assert "deadline_s=0 passed" in found[0][1] and len(found[1][1][0]) == 4
