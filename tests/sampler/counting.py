"""A two-turn environment for the workers of test_server."""

import asyncio
import dataclasses
import os
import pathlib
import random

import numpy as np

from jaxrl_agents import chat
from jaxrl_agents.agents.agent import Agent
from jaxrl_agents.harness.rollout import EpisodeError, Pinned, at_once
from jaxrl_agents.harness.worker_process import Services
from jaxrl_agents.types import Context, Message, SamplingLimits

CHAT = chat.load("base")

LATENCIES = "COUNTING_LATENCIES"


class TwoTurns:
  """Asks twice. A task with `facts["dies"]` ends its worker that many times, as it starts or, if
  `facts["late"]` is set, when the first reply has come. A number in LATENCIES seeds how long its
  answers take. `facts["reward"]` is a reward that does not depend on what was sampled;
  `facts["tokens"]` is the length of replies. It fails while there is a file `facts["outage"]`.
  """

  def __init__(self, task):
    self.task = task
    self.messages = (Message("user", task.prompt),)

  async def start(self):
    if os.path.exists(self.task.facts.get("outage", "")):
      raise ConnectionError("the sandboxes do not answer")
    if not self.task.facts.get("late"):
      self.maybe_die()
    return Context(self.messages, max_new_tokens=self.task.facts.get("tokens", 6))

  def maybe_die(self):
    facts = self.task.facts
    if facts.get("dies"):
      folder = pathlib.Path(facts["folder"])
      marks = len(list(folder.iterdir()))
      if marks < facts["dies"]:
        (folder / str(marks)).touch()
        os._exit(3)

  async def step(self, reply):
    if seed := os.environ.get(LATENCIES):
      draw = random.Random(f"{seed} {self.task.id} {reply.tokens.tolist()}")
      await asyncio.sleep(draw.choice([0.0, 0.05, 0.2]))
    if self.task.facts.get("late"):
      self.maybe_die()
    self.messages += (reply, Message("user", "again"))
    tokens = self.task.facts.get("tokens", 6)
    return Context(self.messages, max_new_tokens=tokens, done=len(self.messages) > 4, stop="answer")

  def rewards(self, trajectory):
    sampled = np.concatenate([s.tokens[s.loss_mask] for s in trajectory.segments])
    reward = self.task.facts.get("reward", float(np.mean(sampled % 2)))
    return {"tokens": float(len(sampled)), "reward": reward}

  async def close(self):
    pass


class AsksAnother(TwoTurns):
  """Between its turns it asks the policy `facts["other"]` three times at once, some after a wait.

  What that one said, and which of its versions, becomes the next observation. A task that `dies`
  does so when the first of the three was answered.
  """

  def __init__(self, task, sampler):
    super().__init__(task)
    self.sampler = Pinned(sampler, task.facts["other"])

  async def start(self):
    return Context(self.messages, max_new_tokens=6)

  async def step(self, reply):
    if len(self.messages) > 1:
      return await super().step(reply)
    said = await at_once(self.sampler.playing, [self._ask(i) for i in range(3)])
    self.messages += (reply, Message("user", " ".join(said)))
    return Context(self.messages, max_new_tokens=6)

  async def _ask(self, i):
    await asyncio.sleep(0.03 * i)
    prompt = CHAT.render([Message("user", f"{self.task.prompt} {i}")])
    limits = SamplingLimits(max_new_tokens=4, stop_tokens=CHAT.stop_tokens, seed=i)
    try:
      generation = await self.sampler.generate(prompt, limits)
    except EpisodeError as error:
      return str(error)
    self.maybe_die()
    return f"v{generation.versions[0]}:" + "-".join(map(str, generation.tokens))


@dataclasses.dataclass(frozen=True)
class CountingConfig:
  """Options of the counting agent."""

  token_budget: int = 64
  max_new_tokens: int = 6
  max_turns: int = 2


class CountingAgent(Agent):
  """Plays TwoTurns; its reward, the share of odd ids, differs between any two rollouts."""

  name = "counting"
  config = CountingConfig

  def tasks(self, setting, report=print):
    raise NotImplementedError("tests bring tasks of their own")

  def episode(self, task, services, seed, sampler):
    return AsksAnother(task, sampler) if "other" in task.facts else TwoTurns(task)


AGENT = CountingAgent()


def build():
  def make_episode(task, seed, sampler):
    return (AsksAnother(task, sampler) if "other" in task.facts else TwoTurns(task)), sampler

  return Services(CHAT, make_episode)
