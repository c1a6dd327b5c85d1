"""Numbers in the place of chunk ids: "7" to the policy, "asyncio.tasks_31" to everyone else.

An id of one token costs less context, and a small model quotes it without garbling; a number that
is drawn anew for each task can only be quoted, never remembered. The gold chunks of a task carry
their numbers in `facts["short_ids"]`, so that whoever reads a log can judge it; the other chunks
get theirs when they are first shown.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

from jaxrl_agents.agents.search import reward
from jaxrl_agents.types import Task

NUMBERS = 100
"""Numbers are below this while an episode has enough of them: few, so that each is well known."""


def shortened(task: Task, chunks_of_gold_documents: Iterable[str] = ()) -> Task:
  """`task` with `facts["short_ids"]`, {chunk id: number}, for what counts as gold.

  Args:
    task: any; its numbers depend on its id alone.
    chunks_of_gold_documents: for a task whose gold are documents, the ids of their chunks.
  """
  gold = chunks_of_gold_documents if "facts" not in task.facts else reward.gold_ids(task.facts)
  numbers = dict(zip(sorted(gold), map(str, _shuffled(task)), strict=False))
  return dataclasses.replace(task, facts={**task.facts, "short_ids": numbers})


class ShortIds:
  """The names of one episode's chunks; every chunk's own id where the task has no short ids.

  Invariant: a chunk keeps its name, and no two share one.

  Attributes:
    used: whether the task has short ids.
    ids: {name: chunk id} of the gold chunks and of all that were named.
  """

  def __init__(self, task: Task):
    gold = task.facts.get("short_ids")
    self.used = gold is not None
    self.ids = {name: chunk_id for chunk_id, name in (gold or {}).items()}
    self._names = dict(gold or {})
    self._free = (name for name in map(str, _shuffled(task)) if name not in self.ids)

  def name(self, chunk_id: str) -> str:
    """What the policy sees the chunk called; given at the first asking."""
    if not self.used:
      return chunk_id
    if chunk_id not in self._names:
      name = next(self._free, str(len(self._names) + NUMBERS))
      self._names[chunk_id], self.ids[name] = name, chunk_id
    return self._names[chunk_id]

  def chunk_id(self, name: str) -> str:
    """The chunk of a name; what is no name is returned as it is."""
    return self.ids.get(name, name)


def _shuffled(task: Task) -> list[int]:
  return random.Random(f"short ids of {task.id}").sample(range(NUMBERS), NUMBERS)
