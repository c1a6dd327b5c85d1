"""A small policy behind a gateway, its learner, and the process of its users."""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import statistics
import sys
from collections.abc import Callable

from realtime import small_policy

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.app import make_app
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.server import Server
from jaxrl_agents.gateway.sessions import Served
from jaxrl_agents.harness.rollout import Sampling, generate
from jaxrl_agents.learner import losses, train_step
from jaxrl_agents.realtime.arms import CANARY, STABLE
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import KINDS, Kind
from jaxrl_agents.realtime.traffic import Traffic
from jaxrl_agents.realtime.trial import Rules
from jaxrl_agents.runs.realtime import Cycles, Learning
from jaxrl_agents.runs.serving import EngineSampler
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import Sampler, SamplingLimits
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights import store

SERVICE_KEY = "key of the simulation"
BEFORE, AFTER = (0.3, 0.9, 0.5, 0.3), (0.5, 0.2, 0.3, 0.9)
WINDOW_S = 600.0
PREFERENCE_KINDS = {name: dataclasses.replace(KINDS[name], window_s=WINDOW_S) for name in KINDS} | {
  "persist": Kind(WINDOW_S, silence=0.5)
}
RULES = Rules(sessions=(1, 12))
"""Few sessions, so that a candidate reaches all users within a cycle of a few hundred."""
EVALUATED, MARGIN = 1_024, 0.05
"""Questions of the evaluation, and the lost share of right answers that the gate tolerates."""

REPLY_TOKENS = 20

RL_LR, RL_EPS, KL, SUBSTEPS = 3e-3, 1e-3, 0.8, 8
"""A strong pull to the start keeps a share of every style: what is never tried is never learned."""


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


async def evaluated(chat: Chat, sampler: Sampler, questions: int) -> dict[str, float]:
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

  scores = await asyncio.gather(*map(one, range(questions)))
  return {str(i): score for i, score in enumerate(scores)}


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


@dataclasses.dataclass
class World:
  """What a simulation holds."""

  cycles: Cycles
  users: Users
  clock: Clock
  chat: Chat
  samplers: dict[str, EngineSampler]

  async def play(self, sessions: int, preference) -> dict[str, float]:
    """Sessions over some time, until all they are told about is over; lets the trial go on."""
    counts: dict[str, float] = {}
    for part in (sessions // 3, sessions // 3, sessions // 3, 0):
      self.clock.now_s += 250.0 if part else WINDOW_S
      told = await self.users.play(self.clock.now_s, part, preference)
      counts = {name: counts.get(name, 0) + told.get(name, 0) for name in counts | told}
    self.clock.now_s += 1.0
    await self.cycles.step()
    return counts


@contextlib.asynccontextmanager
async def serving(
  folder: pathlib.Path, chat: Chat, params, clock: Callable[[], float], *, questions: int
):
  """The cycles, samplers and address of a policy behind a gateway while the context lasts.

  `params` are those of version 0, to which the learner is held. Goes on with what the folder holds.
  """
  cfg, loop, weights = small_policy.config(chat), asyncio.get_running_loop(), folder / "weights"
  if not manifest_lib.versions(weights):
    store.publish(params, 0, weights)
  engines = [
    Engine(
      cfg,
      params,
      version=0,
      slots=32,
      page_tokens=8,
      num_pages=400,
      max_context_tokens=64,
      prefill_tokens=32,
    )
    for _ in range(2)
  ]
  for engine in engines:
    engine.warm_up()  # so that no guard of latencies sees how long compiling takes
  async with contextlib.AsyncExitStack() as stack:
    made = [stack.enter_context(EngineSampler(engine, loop).running()) for engine in engines]
    samplers = {STABLE: made[0], CANARY: made[1]}
    deployer = Deployer(weights)
    traffic = Traffic(folder, deployer, samplers, kinds=PREFERENCE_KINDS, clock=clock)
    stack.callback(traffic.log.close)
    objective = train_step.Objective("rl", loss=losses.named("cispo"), kl=KL)
    cycles = Cycles(
      traffic,
      samplers,
      Learning(
        cfg,
        small_policy.optimizer(cfg, RL_LR, RL_EPS),
        objective,
        small_policy.ROW_TOKENS,
        small_policy.ROWS,
        substeps=SUBSTEPS,
        reference=params,
        shadow_calls=128,
        margin=MARGIN,
      ),
      evaluate=lambda sampler: evaluated(chat, sampler, questions),
      chat=chat,
      limits=SamplingLimits(REPLY_TOKENS, chat.stop_tokens),
      rules=RULES,
    )
    await cycles.serve()
    sampling = Sampling(max_new_tokens=REPLY_TOKENS, generate_deadline_s=120)
    served = Served(chat, samplers[STABLE], sampling, 64, training=True)
    app = make_app(Registry(), service_key=SERVICE_KEY, served=served, traffic=traffic)
    server = Server(app)
    await server.start()
    stack.push_async_callback(server.stop)
    yield cycles, samplers, server.url


@contextlib.asynccontextmanager
async def opened(
  folder: pathlib.Path, chat: Chat, params, *, users: int, adversaries: int, seed: int
):
  """A world while the context lasts; `params` are those of version 0."""
  clock = Clock()
  async with contextlib.AsyncExitStack() as stack:
    cycles, samplers, url = await stack.enter_async_context(
      serving(folder, chat, params, clock, questions=EVALUATED)
    )
    process = await asyncio.create_subprocess_exec(
      sys.executable,
      str(pathlib.Path(__file__).with_name("users.py")),
      *map(str, (url, SERVICE_KEY, users, adversaries, seed)),
      stdin=asyncio.subprocess.PIPE,
      stdout=asyncio.subprocess.PIPE,
    )
    stack.callback(process.kill)
    yield World(cycles, Users(process), clock, chat, samplers)
