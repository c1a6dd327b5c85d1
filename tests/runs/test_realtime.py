"""Cycles of the real-time loop with a real engine and a real learner."""

import asyncio
import contextlib

import jax
import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents import record_log
from jaxrl_agents.gateway.requests import Request
from jaxrl_agents.gateway.sessions import Limits, Served, Session
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.learner import state, train_step
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.realtime import feedback
from jaxrl_agents.realtime.arms import CANARY, STABLE
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import Kind
from jaxrl_agents.realtime.traffic import Traffic
from jaxrl_agents.runs.realtime import Cycles, Learning
from jaxrl_agents.runs.serving import EngineSampler
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import Message, SamplingLimits
from jaxrl_agents.weights import store

CHAT = chat_lib.load("base")
CFG = PolicyConfig(
  vocab_size=CHAT.vocab_size,
  embed_dim=8,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_dim=8,
  num_dense_layers=1,
  dense_ffw_dim=8,
)
TX = state.make_optimizer(CFG, learning_rate=1e-2)
LEARNING = Learning(CFG, TX, train_step.Objective("rl"), 64, 4, shadow_calls=4)
SAMPLING = Sampling(max_new_tokens=4)


class World:
  """A policy, its users, and scores of an evaluation that a test chooses."""

  def __init__(self, folder, engines):
    self.now_s, self.count = 0.0, 0
    loop = asyncio.get_running_loop()
    self.samplers = {
      arm: EngineSampler(engine, loop)
      for arm, engine in zip((STABLE, CANARY), engines, strict=True)
    }
    deployer = Deployer(folder / "weights")
    self.traffic = Traffic(
      folder,
      deployer,
      self.samplers,
      kinds={"persist": Kind(10.0)},
      clock=lambda: self.now_s,
    )
    self.scores = {STABLE: 1.0, CANARY: 1.0}
    self.cycles = self.made_again()

  def made_again(self):
    """The cycles as the next process would make them."""
    limits = SamplingLimits(4, CHAT.stop_tokens)
    return Cycles(
      self.traffic, self.samplers, LEARNING, evaluate=self.evaluate, chat=CHAT, limits=limits
    )

  async def evaluate(self, sampler):
    score = self.scores[CANARY if sampler is self.samplers[CANARY] else STABLE]
    if score is None:
      raise ValueError("no scores")
    return {str(i): score for i in range(20)}

  async def session(self, value):
    """A session of one call and its feedback; returns the id of the call."""
    self.count += 1
    served = Served(CHAT, self.samplers[STABLE], SAMPLING, 64, training=True)
    user = f"user {self.count}"
    session = Session(served, Limits(), info={"metadata": {"user": user}})
    self.traffic.opened(session)
    asked = Request((Message("user", f"say {self.count}"),))
    replies = await session.begin(asked, str(self.count))
    session.delivered(replies)
    event = {"event_id": "e", "session": session.id, "user": user}
    self.traffic.feedback({**event, "kind": "persist", "value": value})
    return replies[0].id


def engine(params):
  """As few programs as an engine can have."""
  return Engine(
    CFG,
    params,
    version=0,
    slots=1,
    page_tokens=8,
    num_pages=20,
    max_context_tokens=64,
    prefill_tokens=32,
    prefill_rows=1,
    decode_steps=1,
  )


async def learns(world):
  """Joined traffic is trained, judged and given to the canary."""
  names = [await world.session(float(i % 2)) for i in range(6)]
  assert (await world.cycles.train())[0] == -1  # no window is over
  world.now_s = 11.0
  version, metrics = await world.cycles.train()
  assert version == 1 and metrics["calls"] == 6 and metrics["reward"] == 0.5
  assert metrics["gap_max"] < 1e-4  # what was logged is what the learner computes
  assert world.traffic.join.batches == {0: tuple(names)}
  old, new = (np.asarray(world.cycles.fetched(v)["head"]) for v in (0, 1))
  assert np.abs(new - old).max() > 1e-3
  for cycles in (world.cycles, world.made_again()):
    assert await cycles.train() == (1, {})  # nothing is trained twice: version 1 waits for the gate
  world.scores[CANARY] = None
  with pytest.raises(ValueError, match="no scores"):
    await world.cycles.gate(1)
  assert await world.cycles.train() == (1, {})  # the gate that failed is asked again
  world.scores[CANARY] = 1.0
  verdict = await world.cycles.gate(1)
  assert verdict.passed and set(verdict.unchecked) >= {"length", "question", "entropy"}
  now = world.traffic.deployer.now
  assert (now.trial.version, now.share, world.samplers[CANARY].version) == (1, 0.05, 1)
  assert world.samplers[STABLE].version == 0
  assert await world.cycles.train() == (-1, {})  # another version could not be proposed


async def refuses(world):
  """A candidate that the gate refuses meets nobody, and its number is used up."""
  world.traffic.deployer.roll_back()
  await world.session(1.0)
  world.now_s = 22.0
  assert (await world.cycles.train())[0] == 2  # from the stable weights
  world.scores[CANARY] = 0.5
  verdict = await world.cycles.gate(2)
  assert not verdict.passed and "evaluation: gain -0.5" in verdict.reasons[0]
  now = world.traffic.deployer.now
  assert (now.stable.version, now.trial, now.quarantined) == (0, None, (1, 2))


async def goes_on(world):
  """A batch whose training died, or its gate, is taken up by the next process."""
  names = [await world.session(float(i % 2)) for i in range(4)]
  batch = {"kind": feedback.BATCH, "number": 2, "version": 3, "dropped": []}
  world.traffic.append({**batch, "calls": names[:3]})
  world.now_s = 33.0
  again = world.made_again()
  version, metrics = await again.train()
  assert version == 3 and metrics["calls"] == 3
  world.traffic.deployer.propose(3)  # and the process dies before the gate has decided
  again = world.made_again()
  assert await again.train() == (3, {})
  assert not (await again.gate(3)).passed
  version, metrics = await again.train()
  assert version == 4 and metrics["calls"] == 1
  assert not (await again.gate(4)).passed
  assert world.traffic.deployer.now.quarantined == (1, 2, 3, 4)


def fails(version):
  raise OSError("stale file handle")


async def keeps_watch(world):
  """The next process may still roll back what became stable, and trains a batch whose number was
  promised to a version that is not there, without the calls of the withdrawn weights.
  """
  deployer, join = world.traffic.deployer, world.traffic.join
  await world.session(1.0)
  world.now_s = 44.0
  version, _ = await world.cycles.train()
  deployer.propose(version)
  for _ in range(3):
    deployer.advance()
  assert deployer.now.stable.version == version == 5
  again = world.made_again()
  assert again.trial is not None
  names = [await world.session(1.0)]
  await again.serve()
  names.append(await world.session(0.0))
  assert join.calls[names[1]].call.generation.versions[0] == 5
  number = max(join.batches) + 1
  batch = {"kind": feedback.BATCH, "number": number, "version": 6, "dropped": []}
  world.traffic.append({**batch, "calls": names})
  again.trial.compared.worse = True  # what users say of it later
  fetched, again.fetched = again.fetched, fails
  with pytest.raises(OSError, match="stale"):
    await again.step()
  again.fetched = fetched
  assert not await again.step()  # it was rolled back before
  assert deployer.now.stable.version == world.samplers[STABLE].version == 7
  version, metrics = await world.made_again().train()
  assert (version, metrics["calls"], join.versions[number]) == (8, 1, 8)
  assert join.batches[number] == (names[0],)
  deployer.propose(8)
  deployer.roll_back()
  assert (await world.made_again().train())[0] == -1
  # A batch of which nothing is left does not stop those after it.
  world.traffic.append({**batch, "number": number + 1, "version": 9, "calls": [names[1]]})
  await world.session(1.0)
  world.now_s = 60.0
  version, metrics = await world.made_again().train()
  assert (version, metrics["calls"], join.batches[number + 1]) == (9, 1, ())


async def remembers(world):
  """What the guards compare with is in the log."""
  read = feedback.Join()
  for record in record_log.scan(world.traffic.log.path):
    read.apply(record)
  assert len(read.figures) == 1 and "length" in read.figures[0]
  assert read.figures == world.traffic.join.figures


@pytest.mark.slow
def test_cycles_learn_from_traffic_refuse_what_is_worse_and_go_on_after_a_crash(tmp_path):
  params = params_lib.init(CFG, jax.random.key(0))
  store.publish(params, 0, tmp_path / "weights")

  async def run():
    world = World(tmp_path, [engine(params), engine(params)])
    with contextlib.ExitStack() as stack:
      stack.callback(world.traffic.log.close)
      for sampler in world.samplers.values():
        stack.enter_context(sampler.running())
      for part in (learns, refuses, goes_on, keeps_watch, remembers):
        await part(world)

  asyncio.run(run())
