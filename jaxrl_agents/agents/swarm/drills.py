"""Short exercises in what a swarm writes: assignments, search queries, a row from a result, a
table.

The words to copy stand near the end of each prompt. Every drill replaces names and values by new
random ones, in prompt, results and reply alike, so that they must be copied and cannot be
memorised.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents.search import view
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.swarm import expert
from jaxrl_agents.agents.swarm import view as swarm_view
from jaxrl_agents.chat import Chat
from jaxrl_agents.types import Message, Task, ToolCall, ToolSpec

FORMS = {"assign": 0.25, "query": 0.1, "row": 0.4, "table": 0.25}
"""{form of a drill: probability}."""
PICKED = 1.0
"""The weight of the form "table" for tasks whose question asks for one row of many."""

KEPT = 0.15
"""Probability that a drill keeps the names of its task."""

LOOK_UP = (view.SEARCH, view.GREP, view.READ)
"""The tools of a sub-agent."""
ALL = (swarm_view.CREATE, swarm_view.ASSIGN, *LOOK_UP)
"""The tools of an orchestrator."""
PART = re.compile(r"[A-Z]?[a-z]+")


def role_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  chat: Chat,
  *,
  count: int,
  max_rows: int,
  seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields `count` drills: the token ids of a prompt and of the reply, int32 [P] and [R].

  Args:
    tasks: of `agents.swarm.tasks.make_tasks`; they are used in turn, repeatedly.
    chunk_text: returns the text of a chunk by its id. New names are made of its words.
    chat: template and tokenizer.
    count: number of drills; none if there are no tasks.
    max_rows: most rows of a drill, which are assignments that run at once.
    seed: of all random draws.
  """
  parts = words(tasks, chunk_text)
  for number, task in enumerate(itertools.islice(itertools.cycle(tasks), count)):
    draw = random.Random(f"{seed}/{number}/{task.id}")
    rows = list(task.facts["rows"])
    draw.shuffle(rows)
    # For a question, the row that it asks for must be kept.
    rows.sort(key=lambda row: row["cells"]["name"] != task.facts.get("truth"))
    most = min(len(rows), max_rows)
    rows = rows[
      : max(draw.randint(1, most), draw.randint(1, most))
    ]  # many rows more often than few
    draw.shuffle(rows)
    drill = Drill(task, rows, {})
    if draw.random() > KEPT:
      drill = renamed(drill, parts, draw)
    forms = FORMS | ({"table": PICKED} if "question" in task.facts else {})
    form = draw.choices(list(forms), list(forms.values()))[0]
    messages, tools, reply = _MAKERS[form](drill, chunk_text, chat, draw)
    yield chat.render(messages, tools), chat.encode_reply(reply, messages)


def words(tasks: Sequence[Task], chunk_text: Callable[[str], str]) -> list[str]:
  """The parts of words in the chunks of the tasks, of which new names are made."""
  every = {i for task in tasks for row in task.facts["rows"] for i in row["chunk_ids"]}
  texts = map(chunk_text, sorted(every))
  return sorted({part.lower() for text in texts for part in PART.findall(text)})


@dataclasses.dataclass(frozen=True)
class Drill:
  """Rows of a task, and {original name: name in this drill}."""

  task: Task
  rows: Sequence[Mapping[str, Any]]
  names: Mapping[str, str]

  def called(self, text: str) -> str:
    """A text with the names of this drill."""
    if not self.names:
      return text
    known = "|".join(sorted(map(re.escape, self.names), key=len, reverse=True))
    return re.sub(rf"\b(?:{known})\b", lambda found: self.names[found[0]], text)

  def line(self, row: Mapping[str, Any], source: Callable[[str], str]) -> str:
    """A row of the table; `source` says how the id of a chunk is written."""
    facts = self.task.facts
    cells = expert.cells(row, facts["columns"], source)
    return self.called(expert.line(facts["header"], cells))


SPELT = 0.25
"""Probability that a part of a new name is a few letters in which tokens come again: what follows
the same token twice can only be told from the tokens before it.
"""


ALIKE = 0.3
"""Probability that a new name begins as another one does."""


def renamed(drill: Drill, parts: Sequence[str], draw: random.Random) -> Drill:
  """The drill with new names and values in the style of the old ones; numbers stay."""
  old = [cell for row in drill.rows for cell in row["cells"].values() if not cell.isdigit()]
  names: dict[str, str] = {}
  first: list[str] = []
  for name in dict.fromkeys(old):
    words = [
      _spelt(draw) if draw.random() < SPELT else word
      for word in draw.sample(parts, min(draw.randint(1, 3), len(parts)))
    ]
    if first and draw.random() < ALIKE:
      words = [draw.choice(first), *words[-2:]]
    first.append(words[0])
    joined = "" if draw.random() < 0.2 else "_"
    case = str.upper if draw.random() < 0.2 else str.title
    new = "".join(map(case, words)) if name[:1].isupper() else joined.join(words)
    names[name] = new if new not in names.values() else name
  return dataclasses.replace(drill, names=names)


def _spelt(draw: random.Random) -> str:
  """One to five of three letters, such as "ppm"."""
  return "".join(draw.choices(draw.sample(string.ascii_lowercase, 3), k=draw.randint(1, 5)))


def _question(drill: Drill) -> Message:
  facts = drill.task.facts
  asked = " ".join(f"{i + 1}.{row['lookups'][0]}." for i, row in enumerate(drill.rows))
  asked = " ".join(filter(None, [asked, facts.get("question")]))
  left = swarm_view.steps_line(facts["max_steps"])
  return Message("user", f"{drill.called(asked)} Table: {facts['header']}{left}")


def _role(drill: Drill) -> list[Message]:
  """The first messages of a sub-agent."""
  asked = drill.called(drill.rows[0]["lookups"][0])
  return [Message("system", drill.task.facts["header"]), Message("user", asked)]


Made = tuple[list[Message], tuple[ToolSpec, ...], Message]
"""The messages before a reply, the tools, and the reply."""


def _assign(drill: Drill, chunk_text, chat: Chat, draw: random.Random) -> Made:
  role = {"name": expert.AGENT, "system_prompt": drill.task.facts["header"]}
  calls = [ToolCall("", swarm_view.CREATE.name, role)]
  for row in drill.rows:
    asked = {"agent": expert.AGENT, "prompt": drill.called(row["lookups"][0])}
    calls.append(ToolCall("", swarm_view.ASSIGN.name, asked))
  return [_question(drill)], ALL, Message("assistant", "", tuple(calls))


def _query(drill: Drill, chunk_text, chat: Chat, draw: random.Random) -> Made:
  query = {"query": drill.called(drill.rows[0]["lookups"][0])}
  calls = (ToolCall("", view.SEARCH.name, query),)
  return _role(drill), LOOK_UP, Message("assistant", "", calls)


def _row(drill: Drill, chunk_text, chat: Chat, draw: random.Random) -> Made:
  """A row from its results: for each look-up the right chunk, often beside a wrong one."""
  ids, row = ShortIds(drill.task), drill.rows[0]
  messages = _role(drill)
  for query, chunk_id in zip(row["lookups"], row["chunk_ids"], strict=True):
    shown = [chunk_id, *(other["chunk_ids"][0] for other in drill.rows[1:2])]
    draw.shuffle(shown)
    hits = []
    for each in dict.fromkeys(shown):
      text = drill.called(chunk_text(each))
      hits.append(view.hit(ids.name(each), text, chat.count(text)))
    call = ToolCall("", view.SEARCH.name, {"query": drill.called(query)})
    messages += [Message("assistant", "", (call,)), Message("tool", "\n".join(hits))]
  return messages, LOOK_UP, Message("assistant", drill.line(row, ids.name))


def _table(drill: Drill, chunk_text, chat: Chat, draw: random.Random) -> Made:
  """The table of all rows. In half of the drills the turn that assigned them is shown."""
  ids = ShortIds(drill.task)
  lines = [drill.line(row, ids.name) for row in drill.rows]
  told = [Message("tool", line) for line in lines]
  told[-1] = Message("tool", lines[-1] + swarm_view.steps_line(1))
  if draw.random() < 0.5:
    _, _, asked = _assign(drill, chunk_text, chat, draw)
    told = [asked, Message("tool", swarm_view.CREATED), *told]
  facts = drill.task.facts
  said = [facts["header"], *lines]
  if "truth" in facts:
    names = [row["cells"]["name"] for row in drill.rows]
    said = [lines[names.index(facts["truth"])]]
  return [_question(drill), *told], ALL, Message("assistant", "\n".join(said))


_MAKERS: Mapping[str, Callable[..., Made]] = {
  "assign": _assign,
  "query": _query,
  "row": _row,
  "table": _table,
}
