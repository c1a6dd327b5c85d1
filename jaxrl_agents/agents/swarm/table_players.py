"""Scripted players of tasks of every size, without gold: they read the question and what tools and
sub-agents show, and differ in when they split the work.

They make no mistakes. A policy is compared with them (`agents.swarm.baselines`), and the warm-up
imitates them in styles that are drawn whatever the size of the table.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from jaxrl_agents.agents.random_draws import seeded
from jaxrl_agents.agents.search.env import SearchEnv
from jaxrl_agents.agents.swarm import env as swarm
from jaxrl_agents.agents.swarm import view as swarm_view
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.swarm.env import SwarmServices
from jaxrl_agents.agents.swarm.expert import AGENT, NOTHING, SwarmNoise
from jaxrl_agents.agents.swarm.pace import CALL_TOKENS, ROW_TOKENS, Pace
from jaxrl_agents.agents.swarm.reading import Key, Reading
from jaxrl_agents.agents.swarm.subagents import Assignment, Crew
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Env, Message, Sampler, Task, ToolCall

_STEPS = re.compile(r"\[Steps left: (\d+)")


@dataclasses.dataclass(frozen=True)
class Style:
  """How a player works.

  Attributes:
    splits: "always", "never", or "by size": where that finds more rows, or as many in fewer steps.
    names_per_search: names that one search is for; more than one needs as many hits of a search.
    least_names: of an assignment, where there are so many.
    one_by_one: whether it assigns one task a turn.
  """

  splits: str = "by size"
  names_per_search: int = 1
  least_names: int = 1
  one_by_one: bool = False


class TableSubAgent:
  """Plays one assignment: looks up the names of its prompt, several calls a turn."""

  def __init__(self, prompt: str, header: str, style: Style, limits: SwarmConfig):
    self._reading, self._style, self._limits = Reading(prompt, header), style, limits
    self._read = 0

  def __call__(self, context: Context) -> Message:
    """The next searches, or the rows."""
    reading = self._reading
    reading.learn(context.messages[self._read :])
    self._read = len(context.messages)
    calls = reading.lookups(self._limits.search.max_calls, self._style.names_per_search)
    if calls:
      return Message("assistant", "", tuple(call for call, _ in calls))
    rows = [row for row in map(reading.row, reading.names) if row]
    return Message("assistant", "\n".join(reading.lines(rows)) or NOTHING)


class TableOrchestrator:
  """Plays the orchestrator of one episode. Rows that sub-agents did not report are assigned again,
  or looked up by itself, while steps are left.
  """

  def __init__(self, task: Task, services: SwarmServices, style: Style):
    self._services, self._style, self._reading = services, style, Reading(task.prompt)
    splits = {"always": True, "never": False}.get(style.splits)
    self._splits = splits and not services.limits.alone if splits is not None else None
    self._width = 1 if style.one_by_one else services.limits.max_assignments_per_turn
    self._read, self._created = 0, False

  def __call__(self, context: Context) -> Message:
    """The next turn."""
    reading = self._reading
    reading.learn(context.messages[self._read :])
    left = int(_STEPS.findall(context.messages[-1].content)[-1])
    self._read = len(context.messages)
    pace = Pace(self._services.limits, self._style.names_per_search, reading.hops, reading.relays)
    if self._splits is None:
      alone = self._services.limits.alone
      self._splits = not alone and pace.splits(len(reading.names), left)
    if left == 1 or (reading.question and reading.answer()):
      return self._answer(context)
    missing = [] if reading.question and reading.shared() else reading.missing()
    each = pace.rows_each(left)
    if self._splits and missing and each:
      return self._assign(missing, each, context)
    return self._search(context) or self._answer(context)

  def _assign(self, keys: Sequence[Key], most: int, context: Context) -> Message:
    """Assignments of the names, as few to each as fit one turn, and at most `most`."""
    calls: list[ToolCall] = []
    if not self._created:
      role = {"name": AGENT, "system_prompt": self._reading.header}
      calls.append(ToolCall("", swarm_view.CREATE.name, role))
      self._created = True
    least = math.ceil(len(keys) / self._services.limits.max_assignments_per_turn)
    each = min(max(least, self._style.least_names), most)
    while each < most and not self._fits(calls, keys, each, context):
      each += 1
    asked = self._assignments(keys, each)
    while asked[1:] and self._tokens([*calls, *asked], context) > context.max_new_tokens:
      asked.pop()
    return Message("assistant", "", (*calls, *asked))

  def _assignments(self, keys: Sequence[Key], each: int) -> list[ToolCall]:
    groups = [keys[i : i + each] for i in range(0, len(keys), each)]
    texts = [self._reading.queries(group) for group in groups]
    made = [{"agent": AGENT, "prompt": text} for text in texts[: self._width]]
    return [ToolCall("", swarm_view.ASSIGN.name, arguments) for arguments in made]

  def _fits(self, calls: list[ToolCall], keys: Sequence[Key], each: int, context: Context) -> bool:
    asked = self._assignments(keys, each)
    return self._tokens([*calls, *asked], context) <= context.max_new_tokens

  def _tokens(self, calls: Sequence[ToolCall], context: Context) -> int:
    reply = Message("assistant", "", tuple(calls))
    return len(self._services.search.chat.encode_reply(reply, context.messages))

  def _search(self, context: Context) -> Message | None:
    """As many look-ups as the turn and the context allow; None if there are none."""
    limits, chat = self._services.search.limits, self._services.search.chat
    used = len(chat.render(context.messages, context.tools))
    answer = chat.count(self._answer(context).content) + 2 * ROW_TOKENS
    room = limits.token_budget - used - answer
    calls = min(limits.max_calls, room // (limits.tool_output_tokens + CALL_TOKENS))
    made = self._reading.lookups(max(calls, 0), self._style.names_per_search)
    reply = Message("assistant", self._reading.linked(), tuple(call for call, _ in made))
    return reply if made else None

  def _answer(self, context: Context) -> Message:
    """The table of the rows found, cut to the tokens of a reply; or the row with the answer."""
    reading = self._reading
    if reading.question:
      return Message("assistant", "\n".join(reading.answer_rows()) or NOTHING)
    rows = [row for row in map(reading.row, reading.names) if row]
    said = [reading.header, *reading.lines(rows)]
    reply = Message("assistant", "\n".join(said))
    chat = self._services.search.chat
    while len(chat.encode_reply(reply, context.messages)) > context.max_new_tokens and said[1:]:
      said.pop()
      reply = Message("assistant", "\n".join(said))
    return reply


def make_player(task: Task, services: SwarmServices, style: Style, seed: int) -> Scripted:
  """An episode of an orchestrator of this style, with sub-agents that read as it does.

  The episode is a function of the arguments; its tokens have version -1 and logprob 0.
  """
  chat = services.search.chat

  def player(env: SearchEnv, assignment: Assignment, seed: int) -> tuple[Env, Sampler]:
    header = assignment.system_prompt
    play = TableSubAgent(assignment.prompt, header, style, services.limits)
    made = Scripted(env, chat, play)
    return made, made

  env = swarm.make(task, services, Crew(player), seed)
  return Scripted(env, chat, TableOrchestrator(task, services, style))


def demonstration(task: Task, services: SwarmServices, noise: SwarmNoise, seed: int) -> Scripted:
  """An episode that the warm-up imitates, of a style that is drawn whatever the size of the table.

  Of `noise` it takes `alone` (an agent without sub-agents, within the same steps and context),
  `serial`, `lonely` and `crowded`.
  """
  draw = seeded(seed, f"style {task.id}")
  alone, serial, lonely, crowded = (
    draw.random() < rate for rate in (noise.alone, noise.serial, noise.lonely, noise.crowded)
  )
  if alone:
    limits = dataclasses.replace(services.limits, alone=True)
    return make_player(task, SwarmServices(services.search, limits), Style("never"), seed)
  splits = "never" if serial else "always"
  style = Style(splits, least_names=2 if crowded else 1, one_by_one=lonely)
  return make_player(task, services, style, seed)
