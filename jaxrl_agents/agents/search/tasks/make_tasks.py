"""Makes task sets: documents, chunks, facts, tasks and clues of a corpus, all of
the same chunking.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import hashlib
import json
import os
import pathlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxrl_agents.agents.search.tasks import chains as chains_lib
from jaxrl_agents.agents.search.tasks import (
  entity_graph,
  hops,
  page_chains,
  python_facts,
  synthesis,
  text_facts,
)
from jaxrl_agents.agents.search.tasks import task_set as task_set_lib
from jaxrl_agents.agents.search.tasks.hop_search import HopSearch
from jaxrl_agents.agents.search.tasks.practice import Clue
from jaxrl_agents.agents.search.tasks.task_set import TaskSet, load, save
from jaxrl_agents.corpus import chunks as chunks_lib
from jaxrl_agents.corpus import code_digest, entities, splits
from jaxrl_agents.corpus import documents as documents_lib
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.splits import SPLITS
from jaxrl_agents.types import Task

LIMITS: Mapping[str, int] = {"train": 4000, "dev": 160, "test": 480}
"""Most tasks, about, of each split."""

HOP_LIMITS: Mapping[str, int] = {"train": 1200, "dev": 160, "test": 400}
"""Most tasks with hops of each split; each takes some twenty searches to make."""

PER_TRUTH = 4
"""Most chains that start with the same truth."""


def make(
  source: str | os.PathLike[str],
  *,
  count_tokens: Callable[[str], int],
  chunk_tokens: int,
  seed: int = 0,
  per_truth: int = PER_TRUTH,
  limits: Mapping[str, int] = LIMITS,
  hop_search: HopSearch | None = None,
  report: Callable[[str], None] = lambda line: None,
) -> tuple[TaskSet, dict[str, tuple[chains_lib.Chain, ...]]]:
  """Makes documents, chunks and verified tasks of a corpus; also returns the chains by split.

  Args:
    source: "python" or a folder, as `corpus.documents.load` takes it.
    count_tokens: tokens of a text, by the policy's tokenizer.
    chunk_tokens: most tokens of a chunk.
    seed: of document numbers and tasks. Splits do not depend on it.
    per_truth: most chains that start with the same truth.
    limits: most tasks of each split, about.
    hop_search: makes tasks with hops (see `hops`), of which there are no chains.
    report: told of each stage when it ends.

  Raises:
    ValueError: the corpus holds nothing to ask for.
  """
  documents = documents_lib.load(source, seed=seed)
  report(f"{len(documents)} documents")
  chunks = chunks_lib.cut(documents, count_tokens, max_tokens=chunk_tokens)
  report(f"{len(chunks)} chunks of at most {chunk_tokens} tokens")
  domain = read_facts(documents)
  report(f"{len(domain.entities)} entities, {len(domain.relations)} relations")
  chunk_map = entities.ChunkMap(documents, chunks)
  made: dict[str, tuple[chains_lib.Chain, ...]] = {}
  tasks: dict[str, tuple[Task, ...]] = {}
  clues: dict[str, tuple[Clue, ...]] = {}
  refused: collections.Counter[str] = collections.Counter()
  searching = hop_search.over(chunks) if hop_search else contextlib.nullcontext()
  with searching as search:
    for split in SPLITS:
      grounded = entity_graph.build(domain, chunk_map, split)
      options: dict[str, int] = {"seed": seed, "per_truth": per_truth, "limit": limits[split]}
      if search is not None:
        tasks[split] = tuple(hops.tasks(grounded, split, search, **options))
      else:
        found = synthesis.chains(grounded, split, **options)
        made[split] = found.chains
        refused.update(found.refused)
        tasks[split] = tuple(
          chains_lib.task(chain, level, seed)
          for chain in found.chains
          for level in range(len(chain.levels))
        )
      clues[split] = tuple(
        Clue(each.clue, each.chunk_ids, each.entity.name, each.entity.kind)
        for each in grounded.described.values()
        if splits.split_of(each.entity.group) == split
      )
      report(f"{split}: {len(clues[split])} clues, {len(tasks[split])} verified tasks")
  if not any(tasks.values()):
    needed = "texts that mention each other by title, or share rare terms, are needed"
    if hop_search:
      needed = "tasks with hops are made of Python code; set search.hops=False for other texts"
    raise ValueError(f"{source}: no task could be made of {len(documents)} documents; {needed}")
  manifest = {
    "source": str(source),
    "seed": seed,
    "chunk_tokens": chunk_tokens,
    "per_truth": per_truth,
    "limits": dict(limits),
    "hops": hop_search.settings if hop_search else None,
    "python": platform.python_version(),
    "counts": yield_table(tasks),
    "refused": dict(refused.most_common(20)),
  }
  return TaskSet(tuple(documents), tuple(chunks), tasks, clues, manifest), made


def from_chains(
  chains: Sequence[chains_lib.Chain],
  *,
  count_tokens: Callable[[str], int],
  chunk_tokens: int,
  gold: str,
  seed: int = 0,
) -> TaskSet:
  """The task set of chains that bring their pages: task files of Context-1's generator, say.

  Args:
    chains: as `chroma.read_folder` gives them.
    count_tokens: tokens of a text, by the policy's tokenizer.
    chunk_tokens: most tokens of a chunk.
    gold: "fact" or "document"; see `pages.tasks`.
    seed: of document numbers.

  Raises:
    ValueError: no chain passed its verification, or a page is missing.
  """
  documents = page_chains.corpus(chains, seed=seed)
  chunks = chunks_lib.cut(documents, count_tokens, max_tokens=chunk_tokens)
  made = page_chains.tasks(chains, documents, chunks, gold=gold, seed=seed)
  if not made:
    raise ValueError(
      f"none of {len(chains)} task files passed its verification; run their verify stage first"
    )
  by_split: dict[str, tuple[Task, ...]] = {
    split: tuple(task for task in made if task.split == split) for split in SPLITS
  }
  clues: dict[str, tuple[Clue, ...]] = {
    split: tuple(
      Clue(clue["text"], tuple(clue["chunk_ids"]), clue["name"], "text")
      for task in by_split[split]
      if task.facts["level"] == 0
      for clue in task.facts["clues"]
      if clue["text"]
    )
    for split in SPLITS
  }
  manifest = {
    "source": "task files",
    "seed": seed,
    "chunk_tokens": chunk_tokens,
    "gold": gold,
    "python": platform.python_version(),
    "counts": yield_table(by_split),
  }
  return TaskSet(tuple(documents), tuple(chunks), by_split, clues, manifest)


def read_facts(documents: Sequence[Document]) -> entities.Domain:
  """The facts of a corpus: python source by its syntax, everything else by plain text."""
  source = [document for document in documents if document.metadata.get("kind") == "python"]
  texts = [document for document in documents if document.metadata.get("kind") != "python"]
  first, second = python_facts.read(source), text_facts.read(texts)
  return entities.Domain(
    {**first.entities, **second.entities}, (*first.relations, *second.relations)
  )


def yield_table(tasks: Mapping[str, Sequence[Task]]) -> dict[str, dict[str, dict[str, int]]]:
  """Tasks counted by split, by level, and by kind (the shape, without its relations)."""
  return {
    split: {
      "level": dict(collections.Counter(str(task.facts["level"]) for task in each)),
      "kind": dict(collections.Counter(_shape(task) for task in each)),
    }
    for split, each in tasks.items()
  }


def _shape(task: Task) -> str:
  """The kind of a task without its relations."""
  kind = task.facts["kind"]
  return kind if kind.startswith("hops") else kind.rpartition(" ")[0] or "unnamed"


def prepared(
  source: str | os.PathLike[str],
  *,
  count_tokens: Callable[[str], int],
  chunk_tokens: int,
  cache_dir: str | os.PathLike[str],
  seed: int = 0,
  train_tasks: int = 0,
  hop_search: HopSearch | None = None,
  report: Callable[[str], None] = lambda line: None,
) -> TaskSet:
  """The task set of a corpus: made once, then loaded from a folder named by a hash of its inputs.

  A `source` that is the folder of a frozen task set is loaded as it is. `train_tasks` are the most
  tasks of the train split, 0 for those of `LIMITS` or `HOP_LIMITS`.

  Raises:
    ValueError: no tasks can be made, or those of a frozen set have hops and should not, or the
      other way around.
  """
  if task_set_lib.is_there(source):
    frozen = task_set_lib.opened(source, env="search", chunk_tokens=chunk_tokens, seed=seed)
    has_hops = bool(frozen.manifest.get("hops"))
    if has_hops != (hop_search is not None):
      raise ValueError(
        f"search.hops={not has_hops} has no effect on the frozen task set corpus.source={source}, "
        f"which was made with{'' if has_hops else 'out'} hops; set search.hops={has_hops}"
      )
    return frozen
  documents = documents_lib.load(source, seed=seed)
  digest = hashlib.sha256(documents_lib.content_hash(documents).encode())
  probes = [document.text[:2000] for document in documents[:100]]
  digest.update(json.dumps([seed, chunk_tokens, *map(count_tokens, probes)]).encode())
  if hop_search:
    digest.update(json.dumps(hop_search.settings).encode())
  limits = dict(HOP_LIMITS if hop_search else LIMITS)
  if train_tasks:
    limits["train"] = train_tasks
    digest.update(json.dumps(limits).encode())
  digest.update(code_digest.of(__name__).encode())
  folder = pathlib.Path(cache_dir) / f"tasks_{digest.hexdigest()[:16]}"
  if not (folder / "manifest.json").is_file():
    with rare_garbage_collection():
      made, _ = make(
        source,
        count_tokens=count_tokens,
        chunk_tokens=chunk_tokens,
        seed=seed,
        limits=limits,
        hop_search=hop_search,
        report=report,
      )
    save(made, folder)
  return load(folder)


@contextlib.contextmanager
def rare_garbage_collection() -> Iterator[None]:
  """Lets the collector run a hundred times more rarely while the context lasts.

  Syntax trees and facts are millions of objects without a cycle. Going through them again and again
  took a third of the time.
  """
  before = gc.get_threshold()
  gc.set_threshold(100_000, 50, 1_000)
  try:
    yield
  finally:
    gc.set_threshold(*before)
