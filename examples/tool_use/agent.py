"""An agent with a tool: options, tasks, services, a reward of two parts, players, a section."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

from examples.tool_use import shops
from examples.tool_use.env import Services, ShopEnv
from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Tasks
from jaxrl_agents.agents.story import Section, Story
from jaxrl_agents.config.ranges import Count, NotNegative, Share
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Message, Task, ToolCall

COUNTS = {"train": 2_000, "dev": 200, "test": 200}
"""Shops of each split; every shop belongs to one split."""

BASELINES = ("guess", "ask_all", "ask_until_certain")


@dataclasses.dataclass(frozen=True)
class ToolUseConfig:
  """Options: `--set tool_use.call_cost=0.1`.

  Attributes:
    call_cost: what each call takes from the reward.
    guessing: the share of the demonstrator's episodes in which it asks once and then guesses.
    max_turns: turns after which an episode ends without an answer.
    token_budget: of a context.
    max_new_tokens: of a reply.
  """

  call_cost: NotNegative = 0.05
  guessing: Share = 0.8
  max_turns: Count = 5
  token_budget: Count = 384
  max_new_tokens: Count = 64


class ShopTasks(Tasks):
  """One question for each shop: which of three shelves holds the coffee?"""

  def __init__(self, file):
    self._file, draw = file, random.Random("shops")
    self._tasks, shelf_of = {}, {}
    for split, count in COUNTS.items():
      self._tasks[split] = []
      for shop in range(len(shelf_of), len(shelf_of) + count):
        shelves = draw.sample(shops.SHELVES, 3)
        shelf_of[shop] = draw.choice(shelves)
        prompt = f"Which shelf holds the coffee: {' or '.join(shelves)}?"
        facts = {"shop": shop, "shelves": shelves, "right": shelf_of[shop]}
        self._tasks[split].append(Task(f"shop {shop}", "tool_use", prompt, facts, split))
    shops.write(file, shelf_of)

  @property
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split."""
    return self._tasks

  @property
  def digest(self) -> str:
    """All that decides the tasks."""
    return f"shops {COUNTS} {shops.SHELVES}"

  @property
  def shared(self) -> str:
    """The file that workers open."""
    return str(self._file)


def by_calls(summary: Mapping[str, Any]) -> list[Section]:
  """The section of the report: what each player reaches, and with how many calls."""
  rows = [
    (name.replace("_", " "), f"{entry['right']:.2f}", f"{entry['calls']:.2f}")
    for name, entry in summary.get("eval", {}).items()
  ]
  text = "A player who looks until the shelf is certain is always right, with 5/3 calls on average."
  return [Section("Calls", text, ("Player", "Right", "Calls"), tuple(rows))]


class ToolUseAgent(Agent):
  """Learns to ask until the answer is certain, and no further."""

  name = "tool_use"
  config = ToolUseConfig
  headline = success = "right"
  story = Story(
    baselines={"ask_all": "a player who asks for all three"},
    titles={"reward": "Reward", "right": "Right", "calls": "Calls"},
    costs=("calls",),
    sections=by_calls,
  )

  def baselines(self, options):
    """The players that are evaluated beside the policy."""
    return BASELINES

  def tasks(self, setting, report=print):
    """Makes the tasks, and the database that they are about."""
    return ShopTasks(setting.cache / "tool_use" / "shops.sqlite")

  def own_tools(self, options):
    """The one tool; with this method, episodes also have those of `--set tools.mcp`."""
    return ("look",)

  def services(self, chat, options, shared):
    """Opens the database once for each worker process."""
    return Services(chat, options, shops.Shops(shared))

  def episode(self, task, services, seed, sampler):
    """One question to the policy."""
    return ShopEnv(task, services)

  def reward(self, options, parts, progress=None):
    """1 for the right shelf, less what the calls cost."""
    return parts["right"] - options.call_cost * parts["calls"]

  def player(self, name, task, services, seed, chat):
    """One question to a scripted player; the demonstrator mostly guesses too early."""
    if name not in (DEMONSTRATOR, *BASELINES):
      return super().player(name, task, services, seed, chat)
    draw, shelves = random.Random(f"{seed} {task.id}"), list(task.facts["shelves"])
    draw.shuffle(shelves)
    guesses_early = name == DEMONSTRATOR and draw.random() < services.options.guessing
    if name == "guess":
      asked_at_most = 0
    elif name == "ask_all":
      asked_at_most = 3
    else:
      asked_at_most = 1 if guesses_early else 2

    def play(context: Context) -> Message:
      answers = [message.content for message in context.messages if message.role == "tool"]
      if "yes" in answers:
        return Message("assistant", shelves[answers.index("yes")])
      if len(answers) == asked_at_most:
        return Message("assistant", draw.choice(shelves[len(answers) :]))
      calls = shelves[: asked_at_most if name == "ask_all" else 0] or [shelves[len(answers)]]
      return Message(
        "assistant",
        "",
        tuple(ToolCall(f"{len(answers)}.{i}", "look", {"shelf": x}) for i, x in enumerate(calls)),
      )

    return Scripted(ShopEnv(task, services), chat, play)


AGENT = ToolUseAgent()
