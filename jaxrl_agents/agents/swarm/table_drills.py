"""Short exercises in what a swarm writes about tables of every size (see `drills`): assignments of
several names, several searches in one turn, rows from their results, tables, and what two rows
share.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents.search import view
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.swarm import drills, expert, tables
from jaxrl_agents.agents.swarm import view as swarm_view
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.swarm.drills import ALL, KEPT, LOOK_UP, Drill, Made
from jaxrl_agents.agents.swarm.pace import ROW_TOKENS, Pace
from jaxrl_agents.agents.swarm.reading import mark
from jaxrl_agents.agents.swarm.tasks import budgets
from jaxrl_agents.chat import Chat
from jaxrl_agents.types import Message, Task, ToolCall, ToolSpec

FORMS = {"assign": 0.15, "search": 0.05, "rows": 0.3, "table": 0.3, "answer": 0.2}
"""{form of a drill: probability}."""

FORMS_OF_QUESTIONS = {"assign": 0.15, "search": 0.05, "rows": 0.2, "answer": 0.6}
"""Shares of the forms of drills of questions, whose answer has to be put together."""

ALONE = 0.25
"""Share of the drills of agents who look names up themselves in which they have no sub-agents."""


def role_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  chat: Chat,
  *,
  count: int,
  limits: SwarmConfig,
  seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields `count` drills: the token ids of a prompt and of the reply, int32 [P] and [R].

  Args:
    tasks: of `tasks.sized_tables`; they are used in turn, repeatedly.
    chunk_text: returns the text of a chunk by its id. New names are made of its words.
    chat: template and tokenizer.
    count: number of drills; none if there are no tasks.
    limits: calls of a turn, and assignments that run at once.
    seed: of all random draws.
  """
  parts = drills.words(tasks, chunk_text)
  for number, task in enumerate(itertools.islice(itertools.cycle(tasks), count)):
    draw = random.Random(f"{seed}/{number}/{task.id}")
    drill = Drill(task, _some(task, draw), {})
    if draw.random() > KEPT:
      beside = [{"cells": {"name": text.split()[1]}} for text in task.facts.get("beside", ())]
      link = [task.facts["link"]] if "link" in task.facts else []
      every = dataclasses.replace(drill, rows=[*drill.rows, *link, *beside])
      drill = dataclasses.replace(drill, names=drills.renamed(every, parts, draw).names)
    forms = FORMS_OF_QUESTIONS if "truth" in task.facts else FORMS
    form = draw.choices(list(forms), list(forms.values()))[0]
    hops = len(drill.rows[0]["lookups"])
    lookups, sized = len(drill.rows) * hops + ("link" in task.facts), limits.tables
    steps = budgets.paced_steps(lookups, sized.steps, sized.steps_per_lookup)
    pace = Pace(limits, names_per_search=1, hops=hops, last=0)
    if form == "assign" and not pace.rows_each(steps):
      form = "search"
    each = draw.randint(1, max(limits.message_tokens // ROW_TOKENS, 1))
    each = max(each, -(-len(drill.rows) // limits.max_assignments_per_turn))
    alone = max(pace.rows_alone(steps), 1)
    made = _Maker(drill, chunk_text, chat, draw, each, alone, steps, limits.search)
    messages, tools, reply = _MAKERS[form](made)
    yield chat.render(messages, tools), chat.encode_reply(reply, messages)


def _some(task: Task, draw: random.Random) -> list[Mapping[str, Any]]:
  """Rows of a task; of a question those that share a value and some others, in their order."""
  facts = task.facts
  rows = list(facts["rows"])
  count = max(draw.randint(1, len(rows)), draw.randint(1, len(rows)))
  if "truth" not in facts:
    return draw.sample(rows, count)
  shared = facts.get("shared", facts["truth"])
  key = facts["columns"][1]
  others = [row for row in rows if row["cells"][key] != shared]
  kept = draw.sample(others, min(count, len(others)))
  return [row for row in rows if row in kept or row["cells"][key] == shared]


@dataclasses.dataclass(frozen=True)
class _Maker:
  """Makes one drill of each form: `each` names for one sub-agent, and at most `alone` names for an
  agent that looks them up itself, both within the `limits` of a search agent; `steps` are the
  budget of the question.
  """

  drill: Drill
  chunk_text: Callable[[str], str]
  chat: Chat
  draw: random.Random
  each: int
  alone: int
  steps: int
  limits: SearchConfig

  def assign(self) -> Made:
    """All names are given to sub-agents in one turn."""
    role = {"name": expert.AGENT, "system_prompt": self.drill.task.facts["header"]}
    calls = [ToolCall("", swarm_view.CREATE.name, role)]
    for group in self._groups():
      asked = {"agent": expert.AGENT, "prompt": self._asked(group)}
      calls.append(ToolCall("", swarm_view.ASSIGN.name, asked))
    return [self._question()], ALL, Message("assistant", "", tuple(calls))

  def search(self) -> Made:
    """The first searches of a sub-agent, or of an orchestrator that works alone."""
    if self.draw.random() < 0.5:
      queries = [self._numbered(row) for row in self.drill.rows[: self.limits.max_calls]]
      return [self._question()], self._tools(), self._searches(queries)
    group = self._groups()[0]
    queries = [self._numbered(row) for row in group[: self.limits.max_calls]]
    return self._role(group), LOOK_UP, self._searches(queries)

  def rows(self) -> Made:
    """The rows of a sub-agent from its results."""
    ids, group = ShortIds(self.drill.task), self._groups()[0]
    messages = [*self._role(group), *self._found(group, ids)]
    return messages, LOOK_UP, Message("assistant", self._lines(group, ids))

  def table(self) -> Made:
    """The table of an agent that looked up the first names itself."""
    ids = ShortIds(self.drill.task)
    group = self.drill.rows[: self.draw.randint(1, self.alone)]
    found = self._found(group, ids)
    found[-1] = Message("tool", found[-1].content + swarm_view.steps_line(1))
    said = f"{self.drill.task.facts['header']}\n{self._lines(group, ids)}"
    return [self._question(), *found], self._tools(), Message("assistant", said)

  def _tools(self) -> tuple[ToolSpec, ...]:
    """The tools of an orchestrator that looks names up itself, or of a single agent."""
    return LOOK_UP if self.draw.random() < ALONE else ALL

  def _found(self, group: Sequence[Mapping[str, Any]], ids: ShortIds) -> list[Message]:
    """The searches for some rows, as many in one turn as it may make, and their results."""
    messages: list[Message] = []
    for i in range(0, len(group), self.limits.max_calls):
      together = group[i : i + self.limits.max_calls]
      for hop in range(len(together[0]["lookups"])):
        queries = [row["lookups"][hop] if hop else self._numbered(row) for row in together]
        messages.append(self._searches(queries))
        found = [row["chunk_ids"][hop] for row in together]
        messages += [self._hit(*each, ids) for each in zip(queries, found, strict=True)]
    return messages

  def answer(self) -> Made:
    """What follows the messages of all sub-agents: the table; or the rows up to the second one with
    the value that two share (`tables.compared`), the look-up that it leads to, and the
    row with its answer.
    """
    ids, facts = ShortIds(self.drill.task), self.drill.task.facts
    told = [Message("tool", self._lines(group, ids)) for group in self._groups()]
    left = 1 if "link" not in facts else 2
    told[-1] = Message("tool", told[-1].content + swarm_view.steps_line(left))
    if self.draw.random() < 0.5:
      asked = self.assign()[2]
      told = [asked, Message("tool", swarm_view.CREATED), *told]
    messages = [self._question(), *told]
    if "truth" not in facts:
      said = f"{facts['header']}\n{self._lines(self.drill.rows, ids)}"
      return messages, ALL, Message("assistant", said)
    key = facts["columns"][1]
    sharing = [r for r in self.drill.rows if r["cells"][key] == facts.get("shared", facts["truth"])]
    lines = self._lines(self.drill.rows, ids).split("\n")
    compared = "\n".join(tables.compared(lines, [r["cells"][key] for r in self.drill.rows]))
    if "link" in facts:
      entry = f"{self._numbered(sharing[1])},{facts['link']['lookups'][0]}"
      search = self._searches(facts["link"]["lookups"], f"{compared}\n{self.drill.called(entry)}")
      if self.draw.random() < 0.5:
        return messages, ALL, search
      link = facts["link"]
      shown = self._hit(link["lookups"][0], link["chunk_ids"][0], ids)
      last = Message("tool", shown.content + swarm_view.steps_line(1))
      messages += [search, last]
      said = expert.line(facts["header"], [link["cells"]["name"], facts["truth"]])
      return messages, ALL, Message("assistant", self.drill.called(said))
    return messages, ALL, Message("assistant", compared)

  def _groups(self) -> list[Sequence[Mapping[str, Any]]]:
    rows = self.drill.rows
    return [rows[i : i + self.each] for i in range(0, len(rows), self.each)]

  def _asked(self, group: Sequence[Mapping[str, Any]]) -> str:
    return self.drill.called(". ".join(map(self._numbered, group)))

  def _numbered(self, row: Mapping[str, Any]) -> str:
    """A name as the question lists it."""
    return f"{self._number(row)}.{row['lookups'][0]}"

  def _number(self, row: Mapping[str, Any]) -> int:
    """The number of a name, downwards: 1 is the last one."""
    return len(self.drill.rows) - self.drill.rows.index(row)

  def _lines(self, group: Sequence[Mapping[str, Any]], ids: ShortIds) -> str:
    """Rows of the table, each after the number of its name."""
    source = lambda chunk_id: mark(ids.name(chunk_id))
    return "\n".join(f"{self._number(row)}. {self.drill.line(row, source)}" for row in group)

  def _role(self, group: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The first messages of a sub-agent."""
    header = self.drill.task.facts["header"]
    return [Message("system", header), Message("user", self._asked(group))]

  def _question(self) -> Message:
    facts = self.drill.task.facts
    names = [row["cells"]["name"] for row in facts["rows"]]
    beside = dict(zip(names, facts.get("beside", ()), strict=False))
    queries = [
      ",".join(filter(None, [self._numbered(row), beside.get(row["cells"]["name"])]))
      for row in self.drill.rows
    ]
    asked = " ".join(f"{query}." for query in queries)
    asked = " ".join(filter(None, [self.drill.called(asked), facts.get("question")]))
    left = swarm_view.steps_line(self.steps)
    return Message("user", f"{asked} Table: {facts['header']}{left}")

  def _searches(self, queries: Sequence[str], said: str = "") -> Message:
    arguments = [{"query": self.drill.called(query)} for query in queries]
    calls = tuple(ToolCall("", view.SEARCH.name, each) for each in arguments)
    return Message("assistant", said, calls)

  def _hit(self, query: str, chunk_id: str, ids: ShortIds) -> Message:
    text = self.drill.called(self.chunk_text(chunk_id))
    shown = view.hit(ids.name(chunk_id), text, self.chat.count(text))
    if self.limits.quote_query:
      shown = view.quoting(self.drill.called(query), shown)
    return Message("tool", shown)


_MAKERS: Mapping[str, Callable[[_Maker], Made]] = {
  "assign": _Maker.assign,
  "search": _Maker.search,
  "rows": _Maker.rows,
  "table": _Maker.table,
  "answer": _Maker.answer,
}
