"""The real-time loop with simulated users: what it learns, refuses, takes back, and survives.

    python scripts/realtime_sim.py --json=FILE

A small policy is served by two engines behind the gateway, and trained by the learner on what users
say of it. Users are a process of their own with the `openai` client (scripts/realtime/users.py):
hidden preferences that change at a set time, feedback that is late and biased, adversaries.

Prints: `gained` (mean preference over the start), `regained` (share of what a change of
preferences cost), planted regressions and harmless updates that the gate refused, sessions until a
roll-back and the share of users that were exposed, how far adversaries moved the trained reward,
and events that were lost or doubled when the server was killed.
"""

import asyncio
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
import time

import jax
import numpy as np
from absl import flags
from realtime import crashes, rollbacks, small_policy

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.app import make_app
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.server import Server
from jaxrl_agents.gateway.sessions import Served
from jaxrl_agents.harness.rollout import Sampling, generate
from jaxrl_agents.learner import losses, train_step
from jaxrl_agents.realtime import advantage
from jaxrl_agents.realtime.arms import CANARY, STABLE, user_hash
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import KINDS, Kind
from jaxrl_agents.realtime.traffic import Traffic
from jaxrl_agents.realtime.trial import Rules
from jaxrl_agents.runs import entry_point
from jaxrl_agents.runs.realtime import Cycles, Learning
from jaxrl_agents.runs.serving import EngineSampler
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import Sampler, SamplingLimits
from jaxrl_agents.weights import store

_SEEDS = flags.DEFINE_integer("seeds", 1, "whole simulations")
_CYCLES = flags.DEFINE_integer("cycles", 6, "before preferences change, and as many after")
_SESSIONS = flags.DEFINE_integer("sessions", 240, "of a cycle")
_USERS = flags.DEFINE_integer("users", 180, "honest ones; one in ten beside them is an adversary")
_PLANTS = flags.DEFINE_integer("plants", 50, "regressions, and as many harmless updates")
_ROLLBACKS = flags.DEFINE_integer("rollbacks", 50, "candidates that are worse past the gate")
_KILLS = flags.DEFINE_integer("kills", 20, "of a server with kill -9")
_JSON = flags.DEFINE_string("json", None, "also write the figures to this file")

SERVICE_KEY = "key of the simulation"
BEFORE, AFTER = (0.3, 0.9, 0.5, 0.3), (0.5, 0.2, 0.3, 0.9)
WINDOW_S = 600.0
PREFERENCE_KINDS = {name: dataclasses.replace(KINDS[name], window_s=WINDOW_S) for name in KINDS} | {
  "persist": Kind(WINDOW_S, silence=0.5)
}
RULES = Rules(sessions=(1, 12))
"""Few sessions, so that a candidate reaches all users within a cycle of a few hundred."""
EVALUATED, REPLY_TOKENS = 256, 20


class Clock:
  """Simulated seconds."""

  def __init__(self) -> None:
    self.now_s = 0.0

  def __call__(self) -> float:
    """Now."""
    return self.now_s


class Users:
  """The process of the users."""

  def __init__(self, process: asyncio.subprocess.Process):
    self._process = process

  async def play(self, now_s: float, sessions: int, preference) -> dict[str, float]:
    """Feedback that is due, and sessions; returns counts."""
    told = {"now_s": now_s, "sessions": sessions, "preference": preference}
    assert self._process.stdin and self._process.stdout
    self._process.stdin.write(json.dumps(told).encode() + b"\n")
    line = await asyncio.wait_for(self._process.stdout.readline(), 600)
    if not line:
      raise RuntimeError("the process of the users ended; its error is above")
    return json.loads(line)


async def evaluated(chat: Chat, sampler: Sampler) -> dict[str, float]:
  """{task: whether the answer is right}: the evaluation knows what is right, not what is liked."""
  things = list(small_policy.COLOURS)
  room = asyncio.Semaphore(32)

  async def one(i: int) -> float:
    thing = things[i % len(things)]
    limits = SamplingLimits(REPLY_TOKENS, chat.stop_tokens, seed=i)
    async with room:
      found = await generate(sampler, chat.render([small_policy.prompt(thing)]), limits)
    said = chat.parse(found.tokens)
    style = small_policy.style_of(said.content, len(said.tool_calls), thing)
    return float(style < len(small_policy.STYLES))

  return {str(i): score for i, score in enumerate(await asyncio.gather(*map(one, range(EVALUATED))))}


async def preferred(chat: Chat, sampler: Sampler, preference, seed: int) -> float:
  """Mean preference for the replies of a policy."""
  things, total = list(small_policy.COLOURS), []

  async def one(i: int) -> float:
    thing = things[i % len(things)]
    limits = SamplingLimits(REPLY_TOKENS, chat.stop_tokens, seed=seed * 10_000 + i)
    found = await generate(sampler, chat.render([small_policy.prompt(thing)]), limits)
    said = chat.parse(found.tokens)
    style = small_policy.style_of(said.content, len(said.tool_calls), thing)
    return preference[style] if style < len(preference) else 0.05

  for start in range(0, 200, 40):
    total += await asyncio.gather(*map(one, range(start, start + 40)))
  return statistics.mean(total)


def movement(traffic: Traffic, number: int) -> float:
  """By how much adversaries moved the trained reward of a batch, as a share of its range."""
  join = traffic.join
  key = traffic.user_key
  bad = {user_hash(f"bad {i}", key) for i in range(_USERS.value)}
  batch = [join.calls[name] for name in join.batches[number]]
  none = advantage.Baseline((), np.zeros(1))
  mean = lambda rows: advantage.samples(rows, join.kinds, none, most_per_user=16)[1]["reward"]
  spread = [k.weight * (k.high - k.low) for k in join.kinds.values()]
  honest = [each for each in batch if each.call.user not in bad]
  return abs(mean(batch) - mean(honest)) / (sum(map(abs, spread)) + 0.5)
