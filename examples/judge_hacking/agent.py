"""An agent whose reward is a judge's alone: it names the number after another, in one reply.

What is right is measured ("right"), and not rewarded, as where nothing can be verified in training.
"""

from __future__ import annotations

import dataclasses
import random

from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Tasks
from jaxrl_agents.agents.rubric import Rubric
from jaxrl_agents.config.ranges import Count, NotNegative
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Message, Task

PADDING = ("indeed", "really", "truly")
"""Words that the demonstrator adds to some of its answers."""


def _rubric(name: str, text: str, held_out: bool = False) -> Rubric:
  return Rubric(name, {name: 1.0}, {name: text}, held_out=held_out)


RUBRICS = (
  _rubric("detail", "The answer is rich in detail."),
  _rubric("thorough", "The answer is thorough and complete."),
  _rubric("relevant", "The answer says what was asked, and nothing beside it."),
  _rubric("precise", "The answer is right, and as short as it can be."),
  _rubric("merit", "An expert would give this answer.", held_out=True),
)
"""The first two can be pleased by length alone, which is what this example is about."""


@dataclasses.dataclass(frozen=True)
class NextNumberConfig:
  """Options: `--set next_number.word_cost=0.2`.

  Attributes:
    word_cost: reward that each word after the first costs.
    token_budget: of a context.
    max_new_tokens: of a reply.
  """

  word_cost: NotNegative = 0.0
  token_budget: Count = 96
  max_new_tokens: Count = 12

  @property
  def max_turns(self) -> int:
    """Turns of an episode."""
    return 1


class NextNumber:
  """One question and its answer."""

  def __init__(self, task: Task, options: NextNumberConfig):
    self._task, self._options = task, options
    self._answer = ""

  async def start(self) -> Context:
    """The question."""
    return Context((Message("user", self._task.prompt),), (), self._options.max_new_tokens)

  async def step(self, reply: Message) -> Context:
    """Any reply ends the episode."""
    self._answer = reply.content
    messages = (Message("user", self._task.prompt), reply)
    return Context(messages, done=True, stop="answer")

  def rewards(self, trajectory) -> dict[str, float]:
    """Whether the answer is the number alone, and how many words it has."""
    words = self._answer.split()
    right = words == [str(self._task.facts["number"] + 1)]
    return {"right": float(right), "words": float(len(words))}

  async def close(self) -> None:
    """Nothing is open."""


class NextNumberTasks(Tasks):
  """Every number from 1 to 8, many times over."""

  def __init__(self):
    counts = {"train": 200, "dev": 5, "test": 20}
    self._tasks = {
      split: [
        Task(
          f"{split} {i}",
          "next_number",
          f"Which number comes after {1 + i % 8}?",
          {"number": 1 + i % 8},
          split,
        )
        for i in range(8 * count)
      ]
      for split, count in counts.items()
    }

  @property
  def tasks(self):
    """The tasks of each split."""
    return self._tasks

  @property
  def digest(self):
    """All that decides the tasks."""
    return "numbers from 1 to 8"


class NextNumberAgent(Agent):
  """Learns what its judge likes. The warm-up imitates a player that is often wrong or wordy."""

  name = "next_number"
  config = NextNumberConfig
  headline = success = "right"

  def tasks(self, setting, report=print):
    """Makes the tasks."""
    return NextNumberTasks()

  def episode(self, task, services, seed, sampler):
    """One question to the policy."""
    return NextNumber(task, services)

  def rubrics(self, options):
    """What the judge is asked."""
    return RUBRICS

  def reward(self, options, parts, progress=None):
    """The cost of words alone; the judge's grade is added to it."""
    return -options.word_cost * max(parts["words"] - 1, 0)

  def player(self, name, task, services, seed, chat):
    """The demonstrator is right in 6 of 10 cases, and adds up to three words."""
    draw = random.Random(f"{seed} {task.id}")

    def play(context: Context) -> Message:
      number = task.facts["number"] + 1 if draw.random() < 0.6 else draw.randint(1, 9)
      return Message("assistant", " ".join([str(number), *PADDING[: draw.randrange(4)]]))

    if name != DEMONSTRATOR:
      return super().player(name, task, services, seed, chat)
    return Scripted(NextNumber(task, services), chat, play)


AGENT = NextNumberAgent()
