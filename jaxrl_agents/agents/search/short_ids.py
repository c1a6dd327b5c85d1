"""Numbers in the place of chunk ids: the policy reads "7", the code "asyncio.tasks_31".

An id of one token costs less context, and a small model quotes it without garbling. Each task draws
its numbers anew, so that the policy must copy them and cannot remember them. The gold chunks of a
task have their numbers in `facts["short_ids"]`, so that a log alone can be judged; the other chunks
get theirs when they are first shown.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

from jaxrl_agents.agents.search import reward
from jaxrl_agents.types import Task

NUMBERS = 100
"""Numbers are below this, or below a higher power of ten where an episode may need more: few, so
that each is seen often.
"""

BELOW = "short_ids_below"
"""The name of this bound among the facts of a task."""


def shortened(task: Task, chunks_of_gold_documents: Iterable[str] = (), shown: int = 0) -> Task:
  """`task` with `facts["short_ids"]`, {gold chunk id: number}; the numbers depend on its id alone.

  Args:
    task: of the search agent or of a swarm.
    chunks_of_gold_documents: ids of the gold chunks of a task whose gold are documents.
    shown: chunks that an episode may show. There are numbers for all of them and the gold, so that
      a number says nothing about its chunk.
  """
  gold = chunks_of_gold_documents if "facts" not in task.facts else reward.gold_ids(task.facts)
  gold, below = sorted(gold), NUMBERS
  while below < len(gold) + shown:
    below *= 10
  numbers = dict(zip(gold, map(str, _shuffled(task, below)), strict=False))
  return dataclasses.replace(task, facts={**task.facts, "short_ids": numbers, BELOW: below})


class ShortIds:
  """The names of one episode's chunks; every chunk's own id where the task has no short ids.

  Invariant: a chunk keeps its name, and no two share one.

  Attributes:
    used: whether the task has short ids.
    ids: {name: chunk id} of the gold chunks and of all that have a name so far.
  """

  def __init__(self, task: Task):
    gold = task.facts.get("short_ids")
    self.used = gold is not None
    self.ids = {name: chunk_id for chunk_id, name in (gold or {}).items()}
    self._names = dict(gold or {})
    self._below = task.facts.get(BELOW, NUMBERS)
    drawn = map(str, _shuffled(task, self._below))
    self._free = (name for name in drawn if name not in self.ids)

  def name(self, chunk_id: str) -> str:
    """The chunk's name in all that the policy reads; the first call draws it."""
    if not self.used:
      return chunk_id
    if chunk_id not in self._names:
      name = next(self._free, str(len(self._names) + self._below))
      self._names[chunk_id], self.ids[name] = name, chunk_id
    return self._names[chunk_id]

  def chunk_id(self, name: str) -> str:
    """The chunk of a name; any other text unchanged."""
    return self.ids.get(name, name)


def _shuffled(task: Task, below: int) -> list[int]:
  return random.Random(f"short ids of {task.id}").sample(range(below), below)
