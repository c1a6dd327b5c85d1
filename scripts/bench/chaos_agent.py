"""A game for `scripts/chaos.py`: some tasks kill their worker, and tools of some never answer."""

from __future__ import annotations

import asyncio
import os
import random
import signal

from examples.number_game.agent import NumberAgent, NumberTasks
from examples.number_game.env import NumberGame
from jaxrl_agents.types import Context, Message, Trajectory

POISON_EVERY, HUNG_EVERY = 41, 37
"""One task in so many kills its worker, or hangs."""

TURN_S = 5.0
LATENCY_S = 0.1


class FaultyGame(NumberGame):
  """The number game with a tool that takes its time, or never ends, or kills its process."""

  def __init__(self, task, options):
    super().__init__(task, options)
    self._number, self._draw = int(task.id.split()[1]), random.Random(task.id)

  async def step(self, reply: Message) -> Context:
    """One guess."""
    if self._number % POISON_EVERY == 3:
      os.kill(os.getpid(), signal.SIGKILL)
    if self._number % HUNG_EVERY == 5:
      await asyncio.sleep(3600)
    await asyncio.sleep(self._draw.expovariate(1 / LATENCY_S))
    return await super().step(reply)

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """A policy that never played wins no game; most groups have several lengths."""
    return {"reward": float(sum(len(message.content) for message in trajectory.log))}


class ChaosAgent(NumberAgent):
  """Plays `FaultyGame`; its episodes have short deadlines."""

  def tasks(self, setting, report=print):
    """The tasks of the number game."""
    return NumberTasks(setting.options)

  def episode(self, task, services, seed, sampler):
    """Evaluations are spared."""
    game = FaultyGame if task.split == "train" else NumberGame
    return game(task, services)

  def baselines(self, options):
    """None: they would take longer than the run."""
    return ()

  def max_turn_s(self, options, stall_s):
    """Most seconds of a turn."""
    return TURN_S


AGENT = ChaosAgent()
