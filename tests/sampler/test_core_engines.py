"""Engines on several cores as one, beside a single engine."""

import concurrent.futures
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from jaxrl_agents.sampler import core_engines
from jaxrl_agents.sampler.core_engines import CoreEngines
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.types import SamplingLimits
from tests import forced_devices
from tests.sampler.test_engine import CFG, CONTEXT, PARAMS, STOP, draw_params

SIZES = {
  "slots": 3,
  "page_tokens": 4,
  "num_pages": 40,
  "max_context_tokens": CONTEXT,
  "prefill_tokens": 8,
  "prefill_rows": 2,
}


def single(params=PARAMS, **changes):
  return Engine(CFG, params, version=0, **{**SIZES, **changes})


def split(devices=None, lockstep=False, **changes):
  devices = devices or [jax.devices()[0]] * 2
  make = lambda params: single(params, **changes)
  return CoreEngines(make, PARAMS, devices, slots=SIZES["slots"], lockstep=lockstep)


@pytest.fixture(scope="module")
def of_each_kind():
  found = {lockstep: split(lockstep=lockstep) for lockstep in (False, True)}
  for engines in found.values():
    engines.warm_up()
  return found


@pytest.fixture(params=[False, True], ids=["on their own", "in lockstep"])
def engines(request, of_each_kind):
  return of_each_kind[request.param]


class Held:
  """Has the steps of an engine wait until they are released."""

  def __init__(self, engine):
    self._engine, self._step = engine, engine.step
    self.released = threading.Event()

  def __enter__(self):
    def step():
      assert self.released.wait(60)
      return self._step()

    self._engine.step = step
    return self

  def __exit__(self, *_):
    self.released.set()
    del self._engine.step


def prompt(*tokens):
  return np.asarray(tokens, np.int32)


def limits(most=6, seed=0, **changes):
  return SamplingLimits(most, (STOP,), seed=seed, **changes)


def play(engine, requests):
  ids = [engine.submit(*request) for request in requests]
  found = {}
  while engine.num_unfinished:
    found.update(engine.step())
  return [found[i] for i in ids]


def requests(count, seed=0):
  draw = np.random.default_rng(seed)
  return [
    (draw.integers(2, 40, draw.integers(1, 20)).astype(np.int32), limits(seed=i))
    for i in range(count)
  ]


def test_replies_are_those_of_one_engine_and_split_over_all(engines):
  asked = requests(14)
  before = [core.engine.stats.tokens for core in engines._cores]
  for one, both in zip(play(single(), asked), play(engines, asked), strict=True):
    np.testing.assert_array_equal(both.tokens, one.tokens)
    np.testing.assert_allclose(both.logprobs, one.logprobs, atol=1e-5)
    np.testing.assert_array_equal(both.routing, one.routing)
  sampled = [c.engine.stats.tokens - n for c, n in zip(engines._cores, before, strict=True)]
  assert min(sampled) > 0.25 * sum(sampled)


def test_nothing_compiles_after_the_warm_up(engines):
  before = engines.stats.compiles
  play(engines, requests(9, seed=1))
  assert engines.stats.compiles == before


def test_a_later_turn_goes_where_its_context_is_cached(engines):
  engines.forget()
  first = prompt(*range(2, 18))
  (reply,) = play(engines, [(first, limits(8))])
  later = np.concatenate([first, reply.tokens, prompt(30, 31)]).astype(np.int32)
  holder = max(engines._cores, key=lambda core: core.engine.cached_tokens(later))
  assert holder.engine.cached_tokens(later) >= 16
  idle = next(core for core in engines._cores if core is not holder)
  for _ in range(2):  # one to each
    engines.submit(prompt(5), limits())
  assert len(holder.names) == len(idle.names) == 1
  engines.submit(later, limits())
  assert len(holder.names) == 2
  while engines.num_unfinished:
    engines.step()


def test_a_full_engine_is_given_more_only_if_all_are_full(engines):
  engines.forget()
  shared = prompt(*range(2, 18))
  play(engines, [(shared, limits(2))])
  for _ in range(2 * SIZES["slots"]):
    engines.submit(shared, limits())
  assert [len(core.names) for core in engines._cores] == [3, 3]
  engines.submit(shared, limits())
  assert sorted(len(core.names) for core in engines._cores) == [3, 4]
  while engines.num_unfinished:
    engines.step()


def test_a_cancelled_request_does_not_end_and_others_do(engines):
  ids = [engines.submit(*request) for request in requests(6, seed=2)]
  engines.cancel(ids[1])
  engines.cancel(99_999)
  ended = set()
  while engines.num_unfinished:
    ended |= {i for i, _ in engines.step()}
  assert ended == {*ids} - {ids[1]}


def test_a_refused_request_leaves_nothing_behind(engines):
  with pytest.raises(ValueError, match="prompt"):
    engines.submit(prompt(), limits())
  assert engines.num_unfinished == 0


def test_a_request_past_its_deadline_fails_under_its_own_id():
  now = [0.0]
  engines = split(clock=lambda: now[0])
  late = engines.submit(prompt(3, 4), limits(40, deadline_s=1.0))
  engines.submit(prompt(3, 5), limits(40))
  now[0] = 2.0
  ((name, result),) = [each for each in engines.step() if isinstance(each[1], Failure)]
  assert name == late and result.kind == "deadline"


@pytest.mark.parametrize("way", ["set", "change"])
def test_new_weights_reach_every_engine_between_two_steps(way):
  engines, new = split(), draw_params(5)
  if way == "set":
    engines.set_params(new, 3)
  else:
    engines.change_params(lambda held: single(new).params, 3)
  assert engines.version == 3
  asked = requests(6, seed=4)
  for one, both in zip(play(single(new), asked), play(engines, asked), strict=True):
    np.testing.assert_array_equal(both.tokens, one.tokens)
    assert set(both.versions.tolist()) == {3}


def test_equal_calls_have_equal_results_in_equal_order():
  def played():
    engines, draw = split(lockstep=True), np.random.default_rng(3)
    waiting, told = requests(12, seed=3), []
    while waiting or engines.num_unfinished:
      for _ in range(min(len(waiting), draw.integers(0, 4))):
        engines.submit(*waiting.pop())
      told += [(i, tuple(each.tokens), each.logprobs.tobytes()) for i, each in engines.step()]
    return told

  assert played() == played()


def test_an_engine_goes_on_while_a_step_of_another_one_takes_long():
  engines = split()
  for request in requests(4, seed=7):
    engines.submit(*request)
  slow, fast = engines._cores
  expected, ended = set(fast.names.values()), {}
  assert len(expected) == 2
  with Held(slow.engine):
    while not expected <= {*ended}:
      ended.update(engines.step())
    assert engines.num_unfinished == 2
  while engines.num_unfinished:
    ended.update(engines.step())
  assert len(ended) == 4


def test_what_comes_during_a_step_reaches_the_engine_after_it():
  engines = split()
  first = prompt(*range(2, 18))
  play(engines, [(first, limits(2))])
  holder = max(engines._cores, key=lambda core: core.engine.cached_tokens(first))
  other = next(core for core in engines._cores if core is not holder)
  with Held(holder.engine):
    running = engines.submit(first, limits())
    engines.submit(prompt(5), limits())
    while other.names:
      engines.step()
    later, dropped = (engines.submit(first, limits(seed=i)) for i in (1, 2))
    assert [each.name for each in holder.requests] == [later, dropped]
    engines.cancel(dropped)
    engines.cancel(running)
  ended = {}
  while engines.num_unfinished:
    ended.update(engines.step())
  assert set(ended) & {running, later, dropped} == {later}
  (alone,) = play(single(), [(first, limits(seed=1))])
  np.testing.assert_array_equal(ended[later].tokens, alone.tokens)


def test_new_weights_wait_for_steps_whose_results_are_reported_later():
  engines, new = split(), draw_params(5)
  asked = [(prompt(token), limits(1)) for token in (5, 6)]
  for request in asked:
    engines.submit(*request)
  with Held(engines._cores[0].engine) as held:
    threading.Timer(0.2, held.released.set).start()
    told = engines.step()
    engines.set_params(new, 1)
  assert engines.num_unfinished == 2 - len(told)
  told += engines.step()
  assert sorted(name for name, _ in told) == [0, 1]
  assert all(reply.versions.tolist() == [0] for _, reply in told)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_called_between_steps_each_request_ends_once_as_it_would_alone(engines, seed):
  draw = np.random.default_rng(seed)
  waiting, asked, cancelled, told = requests(24, seed=seed), {}, set(), []
  while waiting or engines.num_unfinished:
    for _ in range(min(len(waiting), draw.integers(0, 5))):
      request = waiting.pop()
      asked[engines.submit(*request)] = request
    ended = {name for name, _ in told}
    running = [name for name in asked if name not in ended | cancelled]
    if running and draw.random() < 0.1:
      name = int(draw.choice(running))
      cancelled.add(name)
      engines.cancel(name)
    if draw.random() < 0.1:
      engines.set_params(PARAMS, engines.version + 1)
    if engines.num_unfinished:
      told += engines.step()
  assert sorted(name for name, _ in told) == sorted(set(asked) - cancelled)
  alone = play(single(), [asked[name] for name, _ in told])
  for (_, found), expected in zip(told, alone, strict=True):
    np.testing.assert_array_equal(found.tokens, expected.tokens)


def test_an_engine_that_hangs_is_an_error(monkeypatch, engines):
  never = concurrent.futures.Future()
  monkeypatch.setattr(core_engines, "STEP_S", 0.05)
  monkeypatch.setattr(core_engines.background, "call", lambda function, name: never)
  for request in requests(2, seed=6):
    engines.submit(*request)
  with pytest.raises(TimeoutError, match="2 of the engines"):
    engines.step()
  monkeypatch.undo()
  never.set_result([])
  while engines.num_unfinished:
    engines.step()


@pytest.mark.slow
def test_each_engine_computes_on_its_own_device():
  code = (
    "import jax; from tests.sampler import test_core_engines as t;"
    "engines = t.split(jax.devices()); engines.warm_up();"
    "t.play(engines, t.requests(9)); before = engines.stats.compiles;"
    "engines.set_params(t.draw_params(5), 1); t.play(engines, t.requests(9));"
    "engines.change_params(lambda held: held, 2); t.play(engines, t.requests(9));"
    "assert engines.stats.compiles == before, (before, engines.stats.compiles);"
    "held = [{d for x in jax.tree.leaves((c.engine.params, c.engine._state)) for d in x.devices()}"
    " for c in engines._cores];"
    "assert held == [{d} for d in jax.devices()], held; print('apart');"
    "[engines.submit(*each) for each in t.requests(9)]; engines.step()"  # ends while others run
  )
  result = subprocess.run(
    [sys.executable, "-c", code],
    cwd=forced_devices.ROOT,
    env=forced_devices.environment(2),
    capture_output=True,
    text=True,
    timeout=280,
  )
  assert result.returncode == 0, result.stderr[-3000:]
  assert "apart" in result.stdout
