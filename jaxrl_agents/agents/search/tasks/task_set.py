"""Frozen task sets: a corpus, its chunks, and the tasks and clues made from them, in one folder.

    corpus.jsonl.gz   one document a line, with where its chunks start
    tasks.jsonl       one task a line
    clues.jsonl       one described entity a line: practice
    manifest.json     SHA-256 of the three, counts, seed, chunk size, Python version

What is loaded has the hashes that were written, or is refused: gold chunk ids mean nothing in a
corpus that was cut in another way.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.search.tasks.practice import Clue
from jaxrl_agents.corpus import frozen_sets
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.splits import SPLITS
from jaxrl_agents.types import Task

MAKER = "scripts/make_search_tasks.py"
FILES = ("corpus.jsonl.gz", "tasks.jsonl", "clues.jsonl")


@dataclasses.dataclass(frozen=True)
class TaskSet:
  """Documents, their chunks, and by split the tasks and the clues of all described entities."""

  documents: tuple[Document, ...]
  chunks: tuple[Chunk, ...]
  tasks: Mapping[str, tuple[Task, ...]]
  clues: Mapping[str, tuple[Clue, ...]]
  manifest: Mapping[str, Any]


def save(task_set: TaskSet, folder: str | os.PathLike[str]) -> None:
  """Writes a task set; the folder appears whole or not at all.

  Raises:
    ValueError: the folder exists and holds another task set.
  """
  starts: dict[str, list[int]] = {document.id: [] for document in task_set.documents}
  for chunk in task_set.chunks:
    starts[chunk.doc_id].append(chunk.start)
  corpus = [{**dataclasses.asdict(d), "starts": starts[d.id]} for d in task_set.documents]
  tasks = [dataclasses.asdict(task) for split in SPLITS for task in task_set.tasks[split]]
  clues = [
    {"split": split, **dataclasses.asdict(clue)}
    for split in SPLITS
    for clue in task_set.clues[split]
  ]
  contents = zip(FILES, map(frozen_sets.json_lines, (corpus, tasks, clues)), strict=True)
  frozen_sets.write(folder, dict(contents), task_set.manifest)


def is_there(folder: str | os.PathLike[str]) -> bool:
  """Whether a folder holds a task set."""
  place = pathlib.Path(folder).expanduser()
  return all((place / name).is_file() for name in (frozen_sets.MANIFEST, "tasks.jsonl"))


def opened(folder: str | os.PathLike[str], *, env: str, chunk_tokens: int, seed: int) -> TaskSet:
  """Reads the task set that a config names as its corpus.

  Raises:
    ValueError: as `load`; or its tasks are of another environment than `env`, or it was cut or
      numbered otherwise than `chunk_tokens` and `seed` say.
  """
  place = pathlib.Path(folder).expanduser()
  task_set = load(place)
  others = {task.env for tasks in task_set.tasks.values() for task in tasks} - {env}
  if others:
    raise ValueError(
      f"corpus.source={folder} holds tasks of the agent {min(others)!r}, not of {env!r}; name a "
      f"set of that agent, or a folder of documents, of which {env!r} makes its tasks"
    )
  for option, value in (("chunk_tokens", chunk_tokens), ("seed", seed)):
    frozen = task_set.manifest.get(option, value)
    if frozen != value:
      raise ValueError(
        f"corpus.{option}={value} has no effect on the frozen task set corpus.source={folder}, "
        f"which was made with {frozen}; set corpus.{option}={frozen}"
      )
  return task_set


def load(folder: str | os.PathLike[str]) -> TaskSet:
  """Reads a task set.

  Raises:
    ValueError: a file is missing or is not what was written, or a task's gold chunk does not exist.
  """
  folder = pathlib.Path(folder)
  manifest = frozen_sets.read_manifest(folder, maker=MAKER)
  corpus, tasks, clues = (_records(folder, file, manifest) for file in FILES)
  documents, chunks = [], []
  for record in corpus:
    starts = record.pop("starts")
    document = Document(**record)
    documents.append(document)
    for i, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
      text = document.text[start:end]
      chunks.append(Chunk(f"{document.id}_{i}", document.id, document.title, text, start))
  by_split: dict[str, list[Task]] = {split: [] for split in SPLITS}
  for record in tasks:
    by_split[record["split"]].append(Task(**record))
  pool: dict[str, list[Clue]] = {split: [] for split in SPLITS}
  for record in clues:
    split = record.pop("split")
    pool[split].append(Clue(**{**record, "chunk_ids": tuple(record["chunk_ids"])}))
  known = {chunk.id for chunk in chunks} | {chunk.doc_id for chunk in chunks}
  for task in (task for each in by_split.values() for task in each):
    require_gold(task, known, folder / "tasks.jsonl")
  return TaskSet(
    tuple(documents),
    tuple(chunks),
    {split: tuple(each) for split, each in by_split.items()},
    {split: tuple(each) for split, each in pool.items()},
    manifest,
  )


def require_gold(task: Task, known: set[str], place: Any) -> None:
  """Raises ValueError, naming the task, if a gold chunk or document of it is not in the corpus.

  `known` are the ids of all chunks and documents.
  """
  for document_id in task.facts.get("document_ids", ()):
    if document_id not in known:
      raise ValueError(
        f"{place}: task {task.id}: gold document {document_id!r} is not in the corpus; make corpus "
        "and tasks together"
      )
  for clue in task.facts["clues"]:
    for chunk_id in clue["chunk_ids"]:
      if chunk_id not in known:
        raise ValueError(
          f"{place}: task {task.id}: gold chunk {chunk_id!r} of the clue {clue['text'][:60]!r} is "
          "not in the corpus; make corpus and tasks together"
        )


def _records(folder: pathlib.Path, file: str, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
  content = frozen_sets.read(folder, file, manifest, maker=MAKER)
  return [json.loads(line) for line in content.decode().splitlines()]
