"""Tasks about a corpus, with the index that answers searches in it."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.agents.search import short_ids
from jaxrl_agents.agents.search.tasks import practice
from jaxrl_agents.agents.search.tasks import task_set as frozen
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.types import Task

TEXTS = 4_000
"""Most chunks that stand for the corpus where texts are sampled."""


@dataclasses.dataclass(frozen=True)
class CorpusTasks(Tasks):
  """Tasks by split and the index of their corpus; `short_ids` as in SearchConfig."""

  task_set: frozen.TaskSet
  index: index_lib.Index
  short_ids: bool = False

  @functools.cached_property
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split."""
    return {split: self._named(tasks) for split, tasks in self.task_set.tasks.items()}

  @property
  def digest(self) -> str:
    """The digest of documents, tasks and index."""
    return f"{self.task_set.manifest['sha256']} {self.index.folder.name}"

  @property
  def shared(self) -> str:
    """The folder of the index."""
    return str(self.index.folder)

  def practice(self, count: int, seed: int, max_clues: int = 3) -> list[Task]:
    """Simple tasks of unrelated clues of the train split."""
    clues = self.task_set.clues["train"]
    return self._named(practice.practice_tasks(clues, count, seed, max_clues))

  def hop_practice(self, count: int, seed: int) -> list[Task]:
    """The same in the form of tasks with hops."""
    return self._named(practice.hop_practice(self.task_set.clues["train"], count, seed))

  def sampled_texts(self) -> list[str]:
    """The text of `TEXTS` random chunks, or of all if there are fewer."""
    chunks = self.task_set.chunks
    return [c.text for c in random.Random(0).sample(chunks, min(TEXTS, len(chunks)))]

  def _named(self, tasks: Iterable[Task]) -> list[Task]:
    if not self.short_ids:
      return list(tasks)
    chunks = lambda task: [
      chunk.id for i in task.facts.get("document_ids", ()) for chunk in self.index.document(i)
    ]
    return [short_ids.shortened(task, chunks(task)) for task in tasks]
