"""Simple tasks without number, for first practice: a few clues, one of them asked for."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from jaxrl_agents.types import Task


@dataclasses.dataclass(frozen=True)
class Clue:
  """A described entity: `chunk_ids` state what `text` says in other words."""

  text: str
  chunk_ids: tuple[str, ...]
  name: str
  kind: str


def practice_tasks(clues: Sequence[Clue], n: int, seed: int, max_clues: int = 3) -> list[Task]:
  """Makes n simple tasks of one to `max_clues` unrelated clues each.

  Task i depends on (clues, seed, max_clues, i) alone, so any number can be drawn. Facts are as
  those of `chains.task`, level 0, without distractors.
  """
  if len(clues) < max_clues:
    raise ValueError(f"{len(clues)} clues; practice needs at least {max_clues}")
  return [_practice(clues, index, seed, max_clues) for index in range(n)]


def _practice(clues: Sequence[Clue], index: int, seed: int, max_clues: int) -> Task:
  draw = random.Random(f"{seed}/{index}")
  while True:
    picked = draw.sample(range(len(clues)), draw.randint(1, max_clues))
    parts = [clues[i] for i in picked]
    chunk_ids = [chunk_id for part in parts for chunk_id in part.chunk_ids]
    if len(set(chunk_ids)) == len(chunk_ids):
      break
  asked = draw.randrange(len(parts))
  sentences = [f"{i + 1}. {part.kind.capitalize()}: {part.text}." for i, part in enumerate(parts)]
  facts = [
    {"fact": sentence, "chunk_ids": list(part.chunk_ids), "is_final_answer": i == asked}
    for i, (sentence, part) in enumerate(zip(sentences, parts, strict=True))
  ]
  question = f"Question: which {parts[asked].kind} is {asked + 1}?"
  return Task(
    id=f"practice-{seed}-{index}",
    env="search",
    prompt=" ".join([*sentences, question]),
    facts={
      "level": 0,
      "kind": f"practice {len(parts)}",
      "truth": parts[asked].name,
      "facts": facts,
      "clues": [
        {"text": part.text, "chunk_ids": list(part.chunk_ids), "name": part.name} for part in parts
      ],
      "distractors": [],
    },
    split="train",
    seed=seed,
  )
