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
import gzip
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from jaxrl_agents.data.practice import Clue
from jaxrl_agents.retrieval.chunks import Chunk
from jaxrl_agents.retrieval.documents import Document
from jaxrl_agents.types import Split, Task

SPLITS: tuple[Split, ...] = get_args(Split)
FILES = ("corpus.jsonl.gz", "tasks.jsonl", "clues.jsonl")


@dataclasses.dataclass(frozen=True)
class TaskSet:
  """Documents, their chunks, and by split the tasks and the clues of all described entities."""

  documents: tuple[Document, ...]
  chunks: tuple[Chunk, ...]
  tasks: Mapping[str, tuple[Task, ...]]
  clues: Mapping[str, tuple[Clue, ...]]
  manifest: Mapping[str, Any]

  def clue_pool(self, split: Split) -> tuple[Clue, ...]:
    """Every described entity of a split's modules (or documents), in the split's words."""
    return self.clues[split]


def save(task_set: TaskSet, folder: str | os.PathLike[str]) -> None:
  """Writes a task set; the folder appears whole or not at all.

  Raises:
    ValueError: the folder exists and holds another task set.
  """
  folder = pathlib.Path(folder)
  folder.parent.mkdir(parents=True, exist_ok=True)
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
  with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".writing_") as name:
    place = pathlib.Path(name) / "set"
    place.mkdir()
    hashes = {}
    for file, records in zip(FILES, (corpus, tasks, clues), strict=True):
      content = _lines(records)
      hashes[file] = hashlib.sha256(content).hexdigest()
      packed = gzip.compress(content, 6, mtime=0) if file.endswith(".gz") else content
      (place / file).write_bytes(packed)
    manifest = {**task_set.manifest, "sha256": hashes}
    (place / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    if folder.exists():
      present = folder / "manifest.json"
      if present.is_file() and json.loads(present.read_text()).get("sha256") == hashes:
        return
      if any(folder.iterdir()):
        raise ValueError(f"{folder}: holds something else; name an empty folder")
      folder.rmdir()
    place.rename(folder)


def load(folder: str | os.PathLike[str]) -> TaskSet:
  """Reads a task set.

  Raises:
    ValueError: a file is missing or is not what was written, or a task's gold chunk does not exist.
  """
  folder = pathlib.Path(folder)
  manifest = _manifest(folder)
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
  known = {chunk.id for chunk in chunks}
  for task in (task for each in by_split.values() for task in each):
    require_gold(task, known, folder / "tasks.jsonl")
  return TaskSet(
    tuple(documents),
    tuple(chunks),
    {split: tuple(each) for split, each in by_split.items()},
    {split: tuple(each) for split, each in pool.items()},
    manifest,
  )


def load_tasks(folder: str | os.PathLike[str]) -> dict[str, list[Task]]:
  """The tasks of a folder by split, without reading the corpus; ValueError as from `load`."""
  folder = pathlib.Path(folder)
  by_split: dict[str, list[Task]] = {split: [] for split in SPLITS}
  for record in _records(folder, "tasks.jsonl", _manifest(folder)):
    by_split[record["split"]].append(Task(**record))
  return by_split


def require_gold(task: Task, chunk_ids: set[str], place: Any) -> None:
  """Raises ValueError, naming the task, if one of its gold chunks is not in the corpus."""
  for clue in task.facts["clues"]:
    for chunk_id in clue["chunk_ids"]:
      if chunk_id not in chunk_ids:
        raise ValueError(
          f"{place}: task {task.id}: gold chunk {chunk_id!r} of the clue {clue['text'][:60]!r} is "
          "not in the corpus; make corpus and tasks together"
        )


def _lines(records: Sequence[Mapping[str, Any]]) -> bytes:
  return "".join(json.dumps(record, sort_keys=True) + "\n" for record in records).encode()


def _manifest(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / "manifest.json"
  if not path.is_file():
    raise ValueError(f"{folder}: no manifest.json; make a task set with scripts/synthesize.py")
  manifest = json.loads(path.read_text())
  if not isinstance(manifest.get("sha256"), dict):
    raise ValueError(f"{path}: no field 'sha256'; make the task set anew")
  return manifest


def _records(folder: pathlib.Path, file: str, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
  """The lines of a file whose content has the hash of the manifest."""
  path = folder / file
  if not path.is_file():
    raise ValueError(f"{path}: no such file; make the task set anew with scripts/synthesize.py")
  content = path.read_bytes()
  if file.endswith(".gz"):
    try:
      content = gzip.decompress(content)
    except (OSError, EOFError) as error:
      raise ValueError(f"{path}: not a whole gzip file ({error}); make the set anew") from error
  found, wanted = hashlib.sha256(content).hexdigest(), manifest["sha256"].get(file)
  if found != wanted:
    raise ValueError(
      f"{path}: its content has sha256 {found}, the manifest says {wanted}; a task set is frozen: "
      "restore the file or make the set anew"
    )
  return [json.loads(line) for line in content.decode().splitlines()]
