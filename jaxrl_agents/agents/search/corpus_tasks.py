"""Tasks about a corpus, with the index that answers searches in it."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.agents.search import short_ids
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.tasks import hops, practice
from jaxrl_agents.agents.search.tasks import task_set as frozen
from jaxrl_agents.agents.search.tasks.practice import Clue
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.types import Task

TEXTS = 4_000
"""Most chunks that stand for the corpus where texts are sampled."""


@dataclasses.dataclass(frozen=True)
class CorpusTasks(Tasks):
  """Tasks by split and the index of their corpus.

  `fusion`: how the search tool ranks; `short_ids` as in SearchConfig; `shown`: chunks that an
  episode may show (`chunks_shown`).
  """

  task_set: frozen.TaskSet
  index: index_lib.Index
  fusion: index_lib.Fusion
  short_ids: bool = False
  shown: int = 0

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

  def practice(self, count: int, seed: int) -> list[Task]:
    """Simple tasks of unrelated clues of the train split."""
    clues = self.task_set.clues["train"]
    return self._named(practice.practice_tasks(clues, count, seed))

  def hop_practice(self, count: int, seed: int, *, found: bool = True) -> list[Task]:
    """Practice tasks in the form of tasks with hops; if `found`, of clues that their own words
    find, and else of all clues.
    """
    clues = self._found_clues if found else self.task_set.clues["train"]
    return self._named(practice.hop_practice(clues, count, seed))

  @functools.cached_property
  def _found_clues(self) -> list[Clue]:
    """The clues of the train split with a chunk among the best hits for them."""

    def is_found(clue: Clue) -> bool:
      hits = self.index.search(clue.text, limit=hops.SHOWN, settings=self.fusion)
      return any(hit.chunk.id in clue.chunk_ids for hit in hits)

    return [clue for clue in self.task_set.clues["train"] if is_found(clue)]

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
    return [short_ids.shortened(task, chunks(task), self.shown) for task in tasks]


def chunks_shown(options: SearchConfig, chunk_tokens: int) -> int:
  """How many chunks an episode may show: as many a turn as its calls ask for, or as fill half of a
  context.
  """
  asked = options.max_calls * max(options.max_shown, options.grep_limit)
  return options.max_turns * min(asked, options.token_budget // (2 * chunk_tokens))
