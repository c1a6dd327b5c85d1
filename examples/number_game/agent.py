"""An agent outside of the package: its options, its tasks, its episodes, two players to beat."""

from __future__ import annotations

import dataclasses
import random
from typing import Annotated

from examples.number_game.env import NumberGame
from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Tasks
from jaxrl_agents.config.ranges import Count, Range
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Message, Task

BASELINES = ("random", "halving")


@dataclasses.dataclass(frozen=True)
class NumberConfig:
  """Options: `--set number_game.guesses=2`.

  Attributes:
    size: numbers are from 1 to this.
    guesses: turns of a game.
    token_budget: of a context.
    max_new_tokens: of a reply.
  """

  size: Annotated[int, Range(1, 9)] = 7
  guesses: Count = 3
  token_budget: Count = 96
  max_new_tokens: Count = 4

  @property
  def max_turns(self) -> int:
    """Turns of an episode."""
    return self.guesses


class NumberTasks(Tasks):
  """Every number, many times over."""

  def __init__(self, options: NumberConfig):
    self.options = options
    counts = {"train": 400, "dev": 50, "test": 20}
    self._tasks = {
      split: [self._task(split, i, 1 + i % options.size) for i in range(count * options.size)]
      for split, count in counts.items()
    }

  def _task(self, split: str, i: int, number: int) -> Task:
    prompt = f"Guess a number from 1 to {self.options.size}."
    return Task(f"{split} {i}", "number_game", prompt, {"number": number}, split)

  @property
  def tasks(self):
    """The tasks of each split."""
    return self._tasks

  @property
  def digest(self):
    """All that decides the tasks."""
    return f"numbers to {self.options.size}"


class NumberAgent(Agent):
  """Learns to halve what is left. The warm-up imitates a player who takes no hint."""

  name = "number_game"
  config = NumberConfig
  success = "reward"

  def baselines(self, options):
    """The players that are evaluated beside the policy."""
    return BASELINES

  def tasks(self, setting, report=print):
    """Makes the tasks."""
    return NumberTasks(setting.options)

  def episode(self, task, services, seed, sampler):
    """One game of the policy."""
    return NumberGame(task, services)

  def player(self, name, task, services, seed, chat):
    """One game of a player who guesses at random (the demonstrator, too), or who halves."""
    draw = random.Random(f"{seed} {task.id}")

    def play(context: Context) -> Message:
      low, high = 1, services.size
      if name == "halving":
        for guess, hint in zip(context.messages[1::2], context.messages[2::2], strict=True):
          higher = hint.content == "higher"
          low, high = (int(guess.content) + 1, high) if higher else (low, int(guess.content) - 1)
        return Message("assistant", str((low + high) // 2))
      return Message("assistant", str(draw.randint(low, high)))

    if name not in (DEMONSTRATOR, *BASELINES):
      return super().player(name, task, services, seed, chat)
    return Scripted(NumberGame(task, services), chat, play)


AGENT = NumberAgent()
