"""Chains of questions: level 0 asks, and each further level asks on from the answer before it.

The records mirror a task file of Context-1's generator
(https://github.com/chroma-core/context-1-data-gen); `chroma` reads and writes them. `task` makes of
a level what an environment plays: all clues up to it, its question, and the facts to be found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.types import Split, Task


@dataclasses.dataclass(frozen=True)
class Item:
  """A passage that supports one clue.

  Attributes:
    id: chunk id, or address, of the passage.
    text: the passage.
    clue_quotes: what of the clues it supports, word for word.
    item_quotes: where it says so, word for word.
    truth_quotes: where it says the truth, word for word; empty when it does not.
    contains_truth: whether it holds the truth.
    is_answer: whether it is about the truth itself, not only naming it.
    chunk_ids: every chunk that states the fact, `id` first; finding any of them finds the fact.
    answer_chunk_ids: of the answer, those of `chunk_ids` that hold the truth; all if empty.
    name: the entity that the passage is about; "" when not known.
    clue: the description in the clue, a good query; "" when the clue only relates it to others.
    reasoning: why it supports the clue, in words.
    previous_id: of a bridging item, the passage of an earlier level that it is tied to.
    previous_quotes: of a bridging item, what that passage says of the entity the tie goes to.
    extra: fields of a file that we do not know, kept as they were.
  """

  id: str
  text: str
  clue_quotes: tuple[str, ...]
  item_quotes: tuple[str, ...]
  truth_quotes: tuple[str, ...] = ()
  contains_truth: bool = False
  is_answer: bool = False
  chunk_ids: tuple[str, ...] = ()
  answer_chunk_ids: tuple[str, ...] = ()
  name: str = ""
  clue: str = ""
  reasoning: str = ""
  previous_id: str = ""
  previous_quotes: tuple[str, ...] = ()
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Distractor:
  """A passage that fits some clues and lacks every truth of the chain."""

  id: str
  text: str
  reasoning: str = ""
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Level:
  """One question of a chain: three items at level 0, a bridging item and two more after it."""

  level: int
  clues: str
  question: str
  truth: str
  truth_type: str
  supporting_items: tuple[Item, ...]
  bridging_item: Item | None = None
  distractors: tuple[Distractor, ...] = ()
  kind: str = ""
  passed: bool = True
  failure_reasons: tuple[str, ...] = ()
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def items(self) -> tuple[Item, ...]:
    """The bridging item, where there is one, and the supporting items."""
    return ((self.bridging_item,) if self.bridging_item else ()) + self.supporting_items


@dataclasses.dataclass(frozen=True)
class Chain:
  """Levels 0, 1, … that grew from one seed. `split` is that of all its truths."""

  seed_id: str
  levels: tuple[Level, ...]
  split: Split = "train"
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def prompt(chain: Chain, level: int) -> str:
  """All clues up to a level, in order, then its question."""
  return " ".join(
    [*(each.clues for each in chain.levels[: level + 1]), chain.levels[level].question]
  )


def task(chain: Chain, level: int, seed: int = 0) -> Task:
  """The task of a level for the search environment.

  Its facts: "level", "kind", "truth"; "facts", one per item of all levels so far, each found by any
  of its "chunk_ids", the answer's marked "is_final_answer", with the "answer_chunk_ids" that hold
  the truth; "clues", the descriptions with the
  chunks that they should find and the "name" of what these are about ("text" is empty where a clue
  is told by its ties alone); "distractors", chunk ids.
  """
  asked = chain.levels[level]
  facts, clues = [], []
  for each in chain.levels[: level + 1]:
    for item in each.items:
      chunk_ids = list(item.chunk_ids or (item.id,))
      fact = {
        "fact": item.clue_quotes[0] if item.clue_quotes else item.reasoning,
        "chunk_ids": chunk_ids,
        "is_final_answer": each is asked and item.is_answer,
      }
      if fact["is_final_answer"]:
        fact["answer_chunk_ids"] = list(item.answer_chunk_ids or chunk_ids)
      facts.append(fact)
      clues.append({"text": item.clue, "chunk_ids": chunk_ids, "name": item.name})
  distractors = [each.id for part in chain.levels[: level + 1] for each in part.distractors]
  return Task(
    id=f"{chain.seed_id}-{level}",
    env="search",
    prompt=prompt(chain, level),
    facts={
      "level": level,
      "kind": asked.kind,
      "truth": asked.truth,
      "facts": facts,
      "clues": clues,
      "distractors": list(dict.fromkeys(distractors)),
    },
    split=chain.split,
    seed=seed,
  )
