"""Scripted players of the agent swarm, orchestrator and sub-agents, whose episodes the warm-up
imitates.

They know which look-ups answer a task but use only what they have seen: a sub-agent uses the
results of its searches, and the orchestrator its own results and the answers of sub-agents. In most
episodes the orchestrator does everything itself, which leaves reinforcement learning something to
improve.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
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
  """How often the players vary or make a mistake: probabilities.

  Each episode draws one of `scales`, which multiplies the probabilities of mistakes (from `hasty`
  on).
  """

  alone: float = 0.0  # per episode: a single agent with all the steps and context it needs
  serial: float = 0.7  # per other episode: the orchestrator looks everything up itself
  lonely: float = 0.1  # per parallel episode: assigns one task a turn
  crowded: float = 0.1  # per parallel episode: gives two rows to a sub-agent, even if not necessary
  hasty: float = 0.02  # per turn of the orchestrator: answers with what it has
  drop: float = 0.02  # per row: leaves it out of the assignments or the answer
  give_up: float = 0.03  # per sub-agent: answers before its first search
  wrong_cell: float = 0.03  # per row of a sub-agent: takes the last cell from another hit
  scales: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)


FAULTLESS = SwarmNoise(serial=0.0, lonely=0.0, crowded=0.0, scales=(0.0,))
"""The orchestrator makes no mistakes and assigns all rows at once."""


class Lookups:
  """The look-ups that some rows still need. Invariant: no look-up is tried twice."""

  def __init__(self, rows: Sequence[dict[str, Any]], ids: ShortIds):
    self._rows, self._ids = rows, ids
    self._tried: set[str] = set()

  def next(self, context: Context, count: int) -> list[str]:
    """At most `count` next queries, each of another row; none when nothing is left to look up."""
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
      said = cells(row, self._columns, self._ids.name)
      if self._columns[-1] == "source" and self._draws.errs(self._noise.wrong_cell):
        said[-1] = self._ids.name(self._draws.random.choice(seen))
      lines.append(line(self._header, said))
    return Message("assistant", "\n".join(lines) or NOTHING)


class Orchestrator:
  """Plays the orchestrator of one episode, which is serial or parallel by a random draw."""

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
    """Assignments of the open rows: all at once, or one a turn in a lonely episode."""
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
    """The turn with as many of the calls as fit the token limit of a reply; the others are kept for
    later.
    """
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
    """The table of the rows found or reported; for a question, the row that it asks for."""
    facts = self._task.facts
    columns = facts["columns"]
    if self._serial:
      rows = [cells(row, columns, self._ids.name) for row in self._lookups.done(context)]
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
    """The row with the value that the question asks for. If none is known, a guess among the names
    that have no value yet.
    """
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
  """An episode of the scripted orchestrator with scripted sub-agents. If `roomy` is given, it may
  draw to be the episode of a single agent with the services `roomy`.

  The episode is a function of the arguments; its tokens have version -1 and logprob 0.
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


def cells(
  row: Mapping[str, Any], columns: Sequence[str], source: Callable[[str], str]
) -> list[str]:
  """The cells of a row in the order of the columns; `source` writes the id of a chunk."""
  return [row["cells"][c] if c != "source" else source(row["source"]) for c in columns]


def line(header: str, row_cells: Sequence[str]) -> str:
  """A row of a table; each cell has the spaces that its column has in the header."""
  columns = header.strip("|").split("|")
  pairs = zip(columns, row_cells, strict=True)
  return f"|{'|'.join(column.replace(column.strip(), cell) for column, cell in pairs)}|"
