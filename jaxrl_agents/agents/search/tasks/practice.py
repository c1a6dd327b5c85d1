"""An unlimited supply of simple practice tasks: a few clues, one of which is asked for."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

from jaxrl_agents.corpus.entities import PHRASES
from jaxrl_agents.types import Task

HOPS = (1, 1, 2, 2, 3)
"""A task in the form of those with hops has one of these numbers of them."""

MAX_CLUES = 3
"""Most clues of a simple task."""

ATTEMPTS = 1_000
"""Draws of clues that share no chunk."""

_TIES = tuple(dict.fromkeys(phrase for pair in PHRASES.values() for phrase in pair))


@dataclasses.dataclass(frozen=True)
class Clue:
  """A described entity: `chunk_ids` state what `text` says in other words."""

  text: str
  chunk_ids: tuple[str, ...]
  name: str
  kind: str


def practice_tasks(clues: Sequence[Clue], n: int, seed: int) -> list[Task]:
  """Makes n simple tasks of one to MAX_CLUES unrelated clues each.

  Task i depends on (clues, seed, i) alone, so any number can be drawn. Facts are as
  those of `chains.task`, level 0, without distractors.

  Raises:
    ValueError: there are too few clues, or too few that share no chunk.
  """
  _check(clues, MAX_CLUES)
  return [_practice(clues, index, seed) for index in range(n)]


def hop_practice(clues: Sequence[Clue], n: int, seed: int) -> list[Task]:
  """Makes n tasks in the form of those of `hops`, of unrelated clues. The search for a clue that
  refers to another one has the name of that one, as there, but would find the clue without it.

  Task i depends on (clues, seed, i) alone. At most half of a clue is cut off.

  Raises:
    ValueError: there are too few clues, or too few that share no chunk.
  """
  _check(clues, 2 * max(HOPS) + 1)
  return [_hop_practice(clues, index, seed) for index in range(n)]


def _check(clues: Sequence[Clue], needed: int) -> None:
  if len(clues) < needed:
    raise ValueError(
      f"there are {len(clues)} clues that practice can use, and it needs at least {needed}; take a "
      "larger corpus, or set the rates of practice and drills in sft.rates to 0"
    )


def _practice(clues: Sequence[Clue], index: int, seed: int) -> Task:
  draw = random.Random(f"{seed}/{index}")
  parts = _drawn(clues, draw.randint(1, MAX_CLUES), draw)
  return _task(parts, {}, draw.randrange(len(parts)), f"practice-{seed}-{index}", seed)


def _hop_practice(clues: Sequence[Clue], index: int, seed: int) -> Task:
  draw = random.Random(f"{seed}/hops/{index}")
  hops = draw.choice(HOPS)
  parts = _drawn(clues, 2 * hops + 1, draw)
  ties = {
    place: draw.choice(_TIES).format(place)
    for place in range(1, hops + 1)
    if parts[place - 1].kind != "module"  # the name of a module stands in no line of it
  }
  for place in ties:
    words = parts[place].text.split()
    kept = " ".join(words[: draw.randint((len(words) + 1) // 2, len(words))]).rstrip(",;:")
    parts[place] = dataclasses.replace(parts[place], text=kept)
  return _task(parts, ties, hops, f"practice-hops-{seed}-{index}", seed)


def _drawn(clues: Sequence[Clue], count: int, draw: random.Random) -> list[Clue]:
  """Clues that share no chunk."""
  for _ in range(ATTEMPTS):
    parts = [clues[i] for i in draw.sample(range(len(clues)), count)]
    chunk_ids = [chunk_id for part in parts for chunk_id in part.chunk_ids]
    if len(set(chunk_ids)) == len(chunk_ids):
      return parts
  raise ValueError(
    f"{ATTEMPTS} draws found no {count} of {len(clues)} clues that share no chunk; take a larger "
    "corpus, or set the rates of practice and drills in sft.rates to 0"
  )


def _task(parts: Sequence[Clue], ties: Mapping[int, str], asked: int, name: str, seed: int) -> Task:
  """`ties`: {place of a clue: how it refers to the one before it}."""
  tie = lambda i: f"; {ties[i]}" if i in ties else ""
  sentences = [
    f"{i + 1}. {part.kind.capitalize()}: {part.text}{tie(i)}." for i, part in enumerate(parts)
  ]
  facts = [
    {"fact": sentence, "chunk_ids": list(part.chunk_ids), "is_final_answer": i == asked}
    for i, (sentence, part) in enumerate(zip(sentences, parts, strict=True))
  ]
  question = f"Question: which {parts[asked].kind} is {asked + 1}?"
  return Task(
    id=name,
    env="search",
    prompt=" ".join([*sentences, question]),
    facts={
      "level": 0,
      "kind": f"practice {len(parts)}",
      "truth": parts[asked].name,
      "facts": facts,
      "clues": [
        {"text": part.text, "chunk_ids": list(part.chunk_ids), "name": part.name}
        | ({"refers_to": i - 1} if i in ties else {})
        for i, part in enumerate(parts)
      ],
      "distractors": [],
    },
    split="train",
    seed=seed,
  )
