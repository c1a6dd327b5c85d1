"""Scripted players of the agent swarm, orchestrator and sub-agents: the demonstrations that a
policy starts from.

They know which look-ups answer a task, but say only what they can see: a sub-agent what its
searches showed, the orchestrator what it found or was told. Most episodes are those of an
orchestrator that does everything itself, so that reinforcement learning has room.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.random_draws import Draws, seeded
from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.agents.search.env import SearchEnv
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.swarm import env as swarm
from jaxrl_agents.agents.swarm import view as swarm_view
from jaxrl_agents.agents.swarm.env import SwarmServices
from jaxrl_agents.agents.swarm.subagents import Assignment, Crew
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Env, Message, Sampler, Task, ToolCall

AGENT = "a"
NOTHING = "none"
_STEPS = re.compile(r"\[Steps left: (\d+)")


@dataclasses.dataclass(frozen=True)
class SwarmNoise:
  """How often the players vary or err: probabilities.

  Each episode draws one of `scales`; the rates of real errors (from `hasty` on) are multiplied by
  it.
  """

  alone: float = 0.0  # an episode is that of one agent with all the steps and room it needs
  serial: float = 0.7  # else, its orchestrator looks everything up itself
  lonely: float = 0.1  # among the others: assigns one task a turn
  crowded: float = 0.1  # among the others: gives two rows to a sub-agent, needed or not
  hasty: float = 0.02  # a turn of the orchestrator: answers with what there is
  drop: float = 0.02  # a row, in an assignment or an answer
  give_up: float = 0.03  # a sub-agent: answers before its first search
  wrong_cell: float = 0.03  # a row of a sub-agent has the last cell of another hit
  scales: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)


class Lookups:
  """What is still to be looked up for some rows. Invariant: no look-up is tried twice."""

  def __init__(self, rows: Sequence[dict[str, Any]], ids: ShortIds):
    self._rows, self._ids = rows, ids
    self._tried: set[str] = set()

  def next(self, context: Context, count: int) -> list[str]:
    """The next queries, at most `count`, of different rows; none when there is nothing to do."""
    seen = self.seen(context)
    queries: list[str] = []
    for row in self._rows:
      steps = zip(row["lookups"], row["chunk_ids"], strict=True)
      query = next((query for query, chunk_id in steps if chunk_id not in seen), "")
      if query and query not in self._tried and query not in queries:
        queries.append(query)
    self._tried.update(queries[:count])
    return queries[:count]

  def forget(self, query: str) -> None:
    """Counts a query as not tried."""
    self._tried.discard(query)

  def done(self, context: Context) -> list[dict[str, Any]]:
    """The rows all of whose look-ups are in sight."""
    seen = self.seen(context)
    return [row for row in self._rows if seen.issuperset(row["chunk_ids"])]

  def seen(self, context: Context) -> set[str]:
    """Chunk ids in sight."""
    texts = (m.content for m in context.messages if m.role == "tool")
    return {self._ids.chunk_id(name) for text in texts for name in reward.hit_ids(text)}


class SubAgent:
  """Plays one assignment: looks up the rows whose names are in its prompt, one call a turn."""

  def __init__(self, task: Task, ids: ShortIds, noise: SwarmNoise, assignment: Assignment, seed):
    self._draws = Draws(seed, assignment.id, noise.scales)
    self._noise = noise
    named = [row for row in task.facts["rows"] if _names(assignment.prompt, row)]
    self._lookups, self._ids = Lookups(named, ids), ids
    self._columns, self._header = task.facts["columns"], task.facts["header"]
    self._gives_up = self._draws.errs(noise.give_up)

  def __call__(self, context: Context) -> Message:
    """The next search, or the rows."""
    queries = [] if self._gives_up else self._lookups.next(context, 1)
    if queries:
      return Message("assistant", "", (_search(queries[0]),))
    seen = sorted(self._lookups.seen(context))
    lines = []
    for row in self._lookups.done(context):
      said = cells(row, self._columns, self._ids)
      if self._columns[-1] == "source" and self._draws.errs(self._noise.wrong_cell):
        said[-1] = self._ids.name(self._draws.random.choice(seen))
      lines.append(line(self._header, said))
    return Message("assistant", "\n".join(lines) or NOTHING)


class Orchestrator:
  """Plays the orchestrator of one episode, serial or parallel by its draw."""

  def __init__(
    self, task: Task, services: SwarmServices, ids: ShortIds, noise: SwarmNoise, seed: int
  ):
    self._draws = draws = Draws(seed, task.id, noise.scales)
    self._task, self._services, self._noise, self._ids = task, services, noise, ids
    self._serial = draws.happens(noise.serial)
    self._lonely = not self._serial and draws.happens(noise.lonely)
    crowded = not self._serial and draws.happens(noise.crowded)
    least = -(-len(task.facts["rows"]) // services.limits.max_assignments_per_turn)
    self._rows_each = max(least, 2 if crowded else 1)
    self._lookups = Lookups(task.facts["rows"], ids)
    self._open = [row for row in task.facts["rows"] if not draws.errs(noise.drop)]
    self._created = False

  def __call__(self, context: Context) -> Message:
    """The next turn."""
    left = int(_STEPS.findall(context.messages[-1].content)[-1])
    if left == 1 or (self._created and self._draws.errs(self._noise.hasty)):
      return self._answer(context)
    calls = self._search(context) if self._serial else self._assign(left)
    return self._that_fits(calls, context) if calls else self._answer(context)

  def _search(self, context: Context) -> list[ToolCall]:
    return [_search(q) for q in self._lookups.next(context, self._services.search.limits.max_calls)]

  def _assign(self, left: int) -> list[ToolCall]:
    """Assignments of the rows that are open, all at once unless the episode is lonely."""
    if not self._open or left < 3:
      return []
    width = 1 if self._lonely else self._services.limits.max_assignments_per_turn
    calls = []
    if not self._created:
      role = {"name": AGENT, "system_prompt": self._task.facts["header"]}
      calls.append(ToolCall("", swarm_view.CREATE.name, role))
      self._created = True
    for _ in range(width):
      rows, self._open = self._open[: self._rows_each], self._open[self._rows_each :]
      if rows:
        names = ".".join(row["lookups"][0] for row in rows)
        calls.append(ToolCall("", swarm_view.ASSIGN.name, {"agent": AGENT, "prompt": names}))
    return calls

  def _that_fits(self, calls: list[ToolCall], context: Context) -> Message:
    """The turn with as many of its calls as the reply may have tokens for; the others wait."""
    reply = Message("assistant", "", tuple(calls))
    size = len(self._services.search.chat.encode_reply(reply, context.messages))
    if size <= context.max_new_tokens or len(calls) == 1:
      return reply
    last = calls[-1].arguments
    if "query" in last:
      self._lookups.forget(last["query"])
    else:
      named = [row for row in self._task.facts["rows"] if _names(last["prompt"], row)]
      self._open = [*named, *self._open]
    return self._that_fits(calls[:-1], context)

  def _answer(self, context: Context) -> Message:
    """The table of what was found or told; for a question, the row that it asks for."""
    facts = self._task.facts
    columns = facts["columns"]
    if self._serial:
      rows = [cells(row, columns, self._ids) for row in self._lookups.done(context)]
    else:
      told = (m.content for m in context.messages if m.role == "tool")
      lines = [each for text in told for each in text.splitlines() if each.startswith("|")]
      rows = [[cell.strip() for cell in each.strip("|").split("|")] for each in lines]
    if "truth" in facts:
      return Message("assistant", line(facts["header"], self._asked_for(rows)))
    kept = [row for row in rows if not self._draws.errs(self._noise.drop)]
    lines = [line(facts["header"], row) for row in kept if len(row) == len(columns)]
    return Message("assistant", "\n".join([facts["header"], *lines]))

  def _asked_for(self, rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """The row that ends as asked; where none is known, a guess among the names without one."""
    asked = self._task.facts["asked"]
    found = next((row for row in rows if row[0] == asked), None)
    unknown = {r["cells"]["name"] for r in self._task.facts["rows"]} - {row[-1] for row in rows}
    return found or (asked, self._draws.random.choice(sorted(unknown) or [NOTHING]))


def make_player(
  task: Task,
  services: SwarmServices,
  noise: SwarmNoise,
  seed: int,
  roomy: SwarmServices | None = None,
) -> Scripted:
  """An episode that the scripted orchestrator plays, with scripted sub-agents; with the services of
  `roomy`, those of one agent alone, if it draws so.

  All they do is a function of the arguments; their tokens carry version -1 and logprob 0.
  """
  if roomy is not None and seeded(seed, f"alone {task.id}").random() < noise.alone:
    services, noise = roomy, dataclasses.replace(noise, serial=1.0)
  chat = services.search.chat

  def player(env: SearchEnv, assignment: Assignment, seed: int) -> tuple[Env, Sampler]:
    made = Scripted(env, chat, SubAgent(task, env.ids, noise, assignment, seed))
    return made, made

  env = swarm.make(task, services, Crew(player), seed)
  return Scripted(env, chat, Orchestrator(task, services, env.ids, noise, seed))


def _names(prompt: str, row: dict[str, Any]) -> bool:
  name = re.escape(row["lookups"][0].strip())
  return re.search(rf"(?<!\w){name}(?!\w)", prompt) is not None


def _search(query: str) -> ToolCall:
  return ToolCall("", view.SEARCH.name, {"query": query})


def cells(row: Mapping[str, Any], columns: Sequence[str], ids: ShortIds) -> list[str]:
  """The cells of a row in the order of the columns, its source by the name it goes by."""
  return [row["cells"][c] if c != "source" else ids.name(row["source"]) for c in columns]


def line(header: str, row_cells: Sequence[str]) -> str:
  """A row of a table, each cell with the space around it that its column has in the header."""
  columns = header.strip("|").split("|")
  pairs = zip(columns, row_cells, strict=True)
  return f"|{'|'.join(column.replace(column.strip(), cell) for column, cell in pairs)}|"
