"""How hard tasks are for a search engine alone: the share of gold facts that it finds with the
whole question as one query, and with one query for each clue.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from jaxrl_agents.corpus.index.hybrid import Fusion, Index, Mode
from jaxrl_agents.types import Task


@dataclasses.dataclass(frozen=True)
class Difficulty:
  """Shares of gold facts with a chunk among the best hits.

  Attributes:
    whole: with the whole prompt as one query.
    by_clue: with one query per clue, each counted for its own fact; a clue without a description
      counts as not found.
    answer: of the answers' facts alone, by the whole prompt.
    facts: how many facts were looked for.
  """

  whole: float
  by_clue: float
  answer: float
  facts: int


def measure(
  index: Index,
  tasks: Sequence[Task],
  *,
  limit: int = 10,
  mode: Mode = "bm25",
  settings: Fusion = Fusion(),
) -> Difficulty:
  """Searches for the facts of fact-level tasks; `limit` hits count of each search.

  `mode` and `settings` are those of `Index.search`.

  Raises:
    ValueError: there are no tasks.
  """
  if not tasks:
    raise ValueError("no tasks to measure; name a split that has some")
  search = functools.partial(index.search, limit=limit, mode=mode, settings=settings)
  whole = by_clue = answers = answered = total = 0
  for task in tasks:
    shown = {hit.chunk.id for hit in search(task.prompt)}
    for fact, clue in zip(task.facts["facts"], task.facts["clues"], strict=True):
      gold = set(fact["chunk_ids"])
      total += 1
      whole += bool(gold & shown)
      answers += fact["is_final_answer"]
      if fact["is_final_answer"]:
        answered += bool(shown.intersection(fact["answer_chunk_ids"]))
      if clue["text"]:
        by_clue += bool(gold & {hit.chunk.id for hit in search(clue["text"])})
  return Difficulty(whole / total, by_clue / total, answered / max(1, answers), total)
