"""What a scripted player without gold knows of a table: the names in the question, and what the
results of its look-ups and the messages of sub-agents say about them.

A definition is read from the chunk that shows it, by a regular expression. An entry that a look-up
does not show is looked up once more, by a pattern.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.agents.swarm import expert, tables
from jaxrl_agents.types import Message, ToolCall

NAMED = re.compile(r"(?:(\d+)\. )?(?:\b(class|def) )?\b([A-Za-z_]\w*)(?:, class (\w+))?(?=\.|$)")
HEADER = re.compile(r"\|[^\n]*\|")
ASKS = re.compile(r"Which |Two names ")
CHAIN = "base of base"
GUESSES = {"class": "Exception", "def": "name", "constant": "1"}
"""{kind: a frequent value}."""

Key = tuple[str, str]
"""(kind, name): "class", "def" or "constant"."""


class Reading:
  """The entries of a table. Invariant: an entry is looked up twice at most, by a search and then by
  a pattern.

  Attributes:
    columns, header: of the table.
    names: (kind, name) of its rows, in the order of the question.
    question: the text before the table that asks for one thing; "" if it asks for the table.
  """

  def __init__(self, prompt: str, header: str = ""):
    """Reads a question, or an assignment whose table has the `header`."""
    listed, _, table = prompt.partition("Table: ")
    self.header = header or HEADER.findall(table)[0]
    self.columns = [cell.strip() for cell in self.header.strip("|").split("|")]
    asks = ASKS.search(listed)
    self.question = listed[asks.start() :].strip() if asks else ""
    found = NAMED.findall(listed[: asks.start() if asks else None].rstrip())
    self.names = [(kind or "constant", name) for _, kind, name, _ in found]
    self._numbers = {name: number for number, _, name, _ in found if number}
    self._beside = {name: ("class", beside) for _, _, name, beside in found if beside}
    self._facts: dict[Key, tuple[str, str]] = {}  # value, name of the chunk
    self._hits: list[tuple[str, str]] = []
    self._told: dict[str, list[str]] = {}  # rows that sub-agents reported
    self._tried: collections.Counter[Key] = collections.Counter()

  @property
  def hops(self) -> int:
    """Look-ups of a row."""
    return 2 if CHAIN in self.columns else 1

  @property
  def relays(self) -> bool:
    """Whether the question has a look-up after the values were put together."""
    return bool(self._beside)

  def learn(self, messages: Iterable[Message]) -> None:
    """Reads results of tools."""
    texts = [message.content for message in messages if message.role == "tool"]
    self._hits += [hit for text in texts for hit in view.hits(text)]
    before = -1
    while before < len(self._facts):
      before = len(self._facts)
      for key in self._open():
        found = next((f for f in (_stated(key, *hit) for hit in self._hits) if f), None)
        if found:
          self._facts[key] = found
    known = {name for _, name in self.names}
    for line in (tables.unnumbered(line) for text in texts for line in text.splitlines()):
      cells = [cell.strip() for cell in line.strip("|").split("|")]
      if line.startswith("|") and len(cells) == len(self.columns) and cells[0] in known:
        self._told.setdefault(cells[0], cells)

  def lookups(self, calls: int, together: int = 1) -> list[tuple[ToolCall, tuple[Key, ...]]]:
    """At most `calls` next look-ups, with the entries that each is for: searches for `together`
    names at a time, patterns for those that a search did not show.
    """
    made: list[tuple[ToolCall, tuple[Key, ...]]] = []
    fresh = [key for key in self._open() if not self._tried[key]]
    for i in range(0, len(fresh), together):
      keys = tuple(fresh[i : i + together])
      query = self.queries(keys)
      made.append((ToolCall("", view.SEARCH.name, {"query": query}), keys))
    for key in self._open():
      if self._tried[key] == 1:
        made.append((ToolCall("", view.GREP.name, {"pattern": _pattern(key)}), (key,)))
    made = made[:calls]
    self._tried.update(key for _, keys in made for key in keys)
    return made

  def missing(self) -> list[Key]:
    """The names whose rows are not complete."""
    return [key for key in self.names if not self.row(key)]

  def row(self, key: Key) -> list[str]:
    """The cells of a name's row; empty if an entry is missing."""
    if key[1] in self._told:
      return self._told[key[1]]
    value, source = self._facts.get(key, ("", ""))
    if not value:
      return []
    if self.hops == 1:
      written = {self.columns[0]: key[1], "source": mark(source)}
      return [written.get(column, value) for column in self.columns]
    end, _ = self._facts.get(("class", value), ("", ""))
    return [key[1], value, end] if end else []

  def lines(self, rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as the header writes them, after the numbers that the question gives their names."""
    made = []
    for row in rows:
      number = self._numbers.get(row[0])
      written = expert.line(self.header, row)
      made.append(f"{number}. {written}" if number else written)
    return made

  def guessed(self, key: Key) -> list[str]:
    """A row with values that are frequent elsewhere."""
    written = {self.columns[0]: key[1], "source": "0"}
    return [written.get(column, GUESSES[key[0]]) for column in self.columns]

  def shared(self) -> str:
    """The value that two rows have; "" if none is known."""
    rows = (self.row(key) for key in self.names)
    values = collections.Counter(row[1] for row in rows if row)
    return next((value for value, count in values.items() if count > 1), "")

  def answer(self) -> str:
    """The answer to the question; "" if it is not known."""
    value = self.shared()
    return self._facts.get(self._link(), ("", ""))[0] if value and self.relays else value

  def answer_rows(self) -> list[str]:
    """The answer to the question, last of some rows whose last cell it is; none if it is not known.

    The row of the class beside the second name with the shared value; or the rows of `compared`.
    """
    answer = self.answer()
    if not answer:
      return []
    if self.relays:
      return [expert.line(self.header, [self._link()[1], answer])]
    return self.compared()

  def compared(self) -> list[str]:
    """The rows up to the second one with the shared value (`tables.compared`)."""
    rows = [row for row in map(self.row, self.names) if row]
    return tables.compared(self.lines(rows), [row[1] for row in rows])

  def linked(self) -> str:
    """The rows of `compared`, and the entry of the question whose class is looked up last; "" if
    that is not known.
    """
    if not self.relays or not self.shared():
      return ""
    entry = f"{self._query(self._second())},{self._query(self._link())}"
    return "\n".join([*self.compared(), entry])

  def _link(self) -> Key:
    """The class beside the second name with the shared value."""
    return self._beside[self._second()[1]]

  def _second(self) -> Key:
    """The second name with the shared value."""
    value = self.shared()
    _, second, *_ = (key for key in self.names if value in self.row(key)[1:2])
    return second

  def _open(self) -> list[Key]:
    """The entries that are missing and can be looked up now."""
    if self.question and self.shared():
      return [self._link()] if self.relays and self._link() not in self._facts else []
    keys = []
    for key in self.missing():
      if key in self._facts:
        key = ("class", self._facts[key][0])
      keys.append(key)
    return list(dict.fromkeys(key for key in keys if key not in self._facts))

  def queries(self, keys: Sequence[Key]) -> str:
    """The words of definitions, as the question or the assignment lists them, with its numbers: a
    reader finds his place in a list by them.
    """
    return ". ".join(map(self._query, keys))

  def _query(self, key: Key) -> str:
    """The words of a definition. A value that was read stands without a space before it."""
    kind, name = key
    if key not in self.names and key not in self._beside.values():
      return f"{name} {kind}"
    words = f" {name}" if kind == "constant" else f" {kind} {name}"
    number = self._numbers.get(name) if key in self.names else None
    return f"{number}.{words}" if number else words


def mark(chunk: str) -> str:
  """A source as a table has it: as an answer of the search agent marks a document."""
  return reward.answer([chunk]).content


def _pattern(key: Key) -> str:
  kind, name = key
  return rf"\b{name} *= *\d" if kind == "constant" else rf"{kind} {name}\("


def _stated(key: Key, chunk: str, text: str) -> tuple[str, str] | None:
  """(value, chunk) if the text of a chunk states the entry."""
  kind, name = key
  form = rf"(?m)^ *{name} *= *(\d+)" if kind == "constant" else rf"\b{kind} {name}\((\w+)"
  found = re.search(form, text)
  return (found[1], chunk) if found else None
