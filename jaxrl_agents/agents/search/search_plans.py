"""What scripted players without gold search for, and which hits they list.

`queries` are those still to be made, `ask(n)` marks the first n of them as made, and `learn` reads
their results in order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.agents.search.tasks import code_names
from jaxrl_agents.corpus.entities import PHRASES


class Plan:
  """Searches for fixed queries, and lists the first `hits` new hits of each search.

  Attributes:
    queries: still to be made.
    listed: ids of the answer.
  """

  def __init__(self, queries: Sequence[str], hits: int):
    self.queries, self.listed = list(queries), list[str]()
    self._hits = hits

  def ask(self, count: int) -> None:
    """The first `count` queries are made."""
    del self.queries[:count]

  def learn(self, results: Sequence[str]) -> None:
    """The texts of their results."""
    for text in results:
      fresh = [i for i in reward.hit_ids(text) if i not in self.listed]
      self.listed += fresh[: self._hits]


@dataclasses.dataclass
class _Clue:
  """A clue, and what is known of it. `refers_to`: places of others; `texts`: of its hits."""

  text: str
  refers_to: tuple[int, ...]
  open_searches: int = 1
  texts: list[str] = dataclasses.field(default_factory=list)


_PHRASES = "|".join(phrase for pair in PHRASES.values() for phrase in pair).replace(" {}", "")
_TIE = re.compile(rf"; (?:{_PHRASES}) (\d+)$")


def untied(clue: str) -> tuple[str, int | None]:
  """A clue without how it refers to another one, and the number of that one: "part; built on 1"
  -> ("part", 1).
  """
  found = _TIE.search(clue)
  return (clue[: found.start()], int(found[1])) if found else (clue, None)


class HopPlan:
  """Searches for every clue; for one that refers to others with names in the hits of these: those
  that the hits define, then the rest.

  Names are taken by regular expressions (`code_names`). Hits of a search with a name count where
  they hold it. Invariant: a clue that refers to others waits until their searches are made.

  Attributes:
    queries, listed: as of `Plan`.
  """

  def __init__(self, prompt: str, clues: Sequence[tuple[str, str]], names: int, hits: int):
    """`clues` are pairs of what stands before the colon of a clue, and after it. Either may refer
    to others: "Class holding 1" before it, or "; built on 1" at its end.
    """
    self._prompt, self._names, self._hits = prompt, names, hits
    self.listed: list[str] = []
    self._clues: list[_Clue] = []
    for place, (head, text) in enumerate(clues):
      described, number = untied(text)
      numbers = [*map(int, re.findall(r"\b\d+\b", head)), *([number] if number else [])]
      self._clues.append(_Clue(described, tuple(n - 1 for n in numbers if 1 <= n <= place)))
    self._waiting = [i for i, clue in enumerate(self._clues) if clue.refers_to]
    self._open: list[tuple[int, str, str]] = [
      (i, clue.text, "") for i, clue in enumerate(self._clues) if not clue.refers_to
    ]
    self._asked: list[tuple[int, str, str]] = []

  @property
  def queries(self) -> list[str]:
    """The queries that can be made now."""
    return [query for _, query, _ in self._open]

  def ask(self, count: int) -> None:
    """The first `count` queries are made."""
    self._asked, self._open = self._open[:count], self._open[count:]

  def learn(self, results: Sequence[str]) -> None:
    """The texts of their results."""
    for (place, _, name), text in zip(self._asked, results, strict=False):
      clue = self._clues[place]
      clue.open_searches -= 1
      hits = [hit for hit in view.hits(text) if not name or code_names.stands_in(name, hit[1])]
      for chunk_id, passage in hits[: self._hits]:
        clue.texts.append(passage)
        if chunk_id not in self.listed:
          self.listed.append(chunk_id)
    for place in list(self._waiting):
      referred = [self._clues[i] for i in self._clues[place].refers_to]
      if not any(clue.open_searches for clue in referred):
        self._waiting.remove(place)
        texts = "\n".join(text for clue in referred for text in clue.texts)
        self._hop(self._clues[place], place, texts)

  def _hop(self, clue: _Clue, place: int, text: str) -> None:
    found = dict.fromkeys([*code_names.defined(text), *code_names.names(text)])
    fresh = [name for name in found if not code_names.stands_in(name, self._prompt)]
    chosen = fresh[: self._names] or [""]
    clue.open_searches = len(chosen)
    self._open += [(place, f"{clue.text} {name}".strip(), name) for name in chosen]
