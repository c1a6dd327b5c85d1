"""Makes tasks for an agent swarm: Python source, and more look-ups than one agent has steps for.

    wide     a table with a row for each of many names; a row takes one look-up or a chain of two
    deep     many chains of look-ups, of which one alone ends with the value in the question: which?
    narrow   a table of one or two rows, for which sub-agents would exceed the budget of steps

No prompt tells how to proceed. A wide or deep task is kept if an ideal plan of sub-agents takes at
most `share` of a single agent's steps, and a single agent finds at most half of the rows within
that budget. A narrow task is kept if a single agent is within the budget and a plan of sub-agents
is not. Every look-up was tried: a search for its query shows the line that answers it.

Source: Kimi K2.5, https://arxiv.org/abs/2602.02276 section 3, names the kinds; construction and
numbers are ours.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.tasks import entity_graph
from jaxrl_agents.agents.search.tasks import task_set as frozen
from jaxrl_agents.agents.search.tasks.practice import Clue
from jaxrl_agents.agents.search.tasks.task_set import TaskSet
from jaxrl_agents.agents.swarm.tasks import budgets as swarm_steps
from jaxrl_agents.agents.swarm.tasks import facts as swarm_facts
from jaxrl_agents.agents.swarm.tasks.budgets import Budgets
from jaxrl_agents.agents.swarm.tasks.facts import Fact
from jaxrl_agents.corpus import chunks as chunks_lib
from jaxrl_agents.corpus import documents as documents_lib
from jaxrl_agents.corpus import entities, python_source, splits
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.index import dense as lsa
from jaxrl_agents.corpus.index import fusion, store
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.corpus.index.hybrid import Index
from jaxrl_agents.corpus.splits import SPLITS
from jaxrl_agents.types import Split, Task

COLUMNS = {
  "class": ("name", "base", "source"),
  "def": ("name", "first argument", "source"),
  "constant": ("name", "value", "source"),
  "class chain": ("name", "base", "base of base"),
}
"""{kind of row: its columns}; the first column is the key. "source" is the id of the chunk."""

KEY = "name"

KINDS = {
  "wide class": 0.25,
  "wide def": 0.25,
  "wide constant": 0.05,
  "wide class chain": 0.15,
  "deep class chain": 0.15,
  "narrow class": 0.05,
  "narrow def": 0.05,
  "narrow class chain": 0.05,
}
"""Relative frequency of each kind among the attempts."""

LEVELS = {"narrow": 0, "wide": 1, "deep": 2}
"""The level of each kind, for the curriculum."""

LIMITS: Mapping[str, int] = {"train": 3_000, "dev": 160, "test": 480}
"""Tasks of each split."""

MAX_TRIES = 20
"""Draws for each wanted task; after that, the split has fewer tasks."""


@dataclasses.dataclass(frozen=True)
class Row:
  """A name, its look-ups in order, and the cells that they answer, except the source.

  A query after the first begins with the result of the one before it, exactly as the source has it:
  after a bracket, without a space.
  """

  name: str
  queries: tuple[str, ...]
  chunk_ids: tuple[str, ...]
  cells: Mapping[str, str]
  group: str


def make(
  documents: Sequence[Document],
  chunks: Sequence[Chunk],
  index: Index,
  *,
  count_tokens: Callable[[str], int],
  budgets: Budgets,
  seed: int = 0,
  kinds: Mapping[str, float] = KINDS,
  limits: Mapping[str, int] = LIMITS,
) -> TaskSet:
  """Makes the tasks of a corpus of Python source.

  Raises:
    ValueError: no task of the train split could be made.
  """
  rows = read_rows(documents, chunks, index, count_tokens=count_tokens, budgets=budgets)
  tasks: dict[str, tuple[Task, ...]] = {}
  clues: dict[str, tuple[Clue, ...]] = {}
  for split in SPLITS:
    own = {
      key: [r for r in each if splits.split_of(r.group) == split] for key, each in rows.items()
    }
    tasks[split] = tuple(_tasks(own, split, seed, kinds, limits[split], budgets))
    clues[split] = tuple(
      Clue(row.queries[0], row.chunk_ids, row.name, key)
      for key, each in own.items()
      for row in each
      if len(row.queries) == 1
    )
  if not tasks["train"]:
    raise ValueError(
      f"no task could be made of {len(documents)} documents: they hold too few python definitions "
      "that a search finds; use a larger corpus"
    )
  manifest = {
    "seed": seed,
    "budgets": dataclasses.asdict(budgets),
    "limits": dict(limits),
    "python": platform.python_version(),
    "counts": {
      split: dict(collections.Counter(task.facts["kind"] for task in each))
      for split, each in tasks.items()
    },
  }
  return TaskSet(tuple(documents), tuple(chunks), tasks, clues, manifest)


def prepared(
  source: str | os.PathLike[str],
  *,
  count_tokens: Callable[[str], int],
  chunk_tokens: int,
  cache_dir: str | os.PathLike[str],
  budgets: Budgets,
  dense: index_lib.Dense = "lsa",
  seed: int = 0,
  kinds: Mapping[str, float] = KINDS,
  limits: Mapping[str, int] = LIMITS,
) -> tuple[TaskSet, Index]:
  """The task set of a corpus and its index. They are made once, then loaded from a folder whose
  name is a hash of everything that determines them.
  """
  if frozen.is_there(source):
    raise ValueError(
      f"corpus.source={source} is a frozen task set of the search agent; a swarm makes tables of "
      "its own: name a corpus of Python source"
    )
  documents = documents_lib.load(source, seed=seed)
  digest = hashlib.sha256(documents_lib.content_hash(documents).encode())
  settings = [seed, chunk_tokens, dense, dataclasses.asdict(budgets), dict(kinds), dict(limits)]
  probes = [count_tokens(document.text[:2000]) for document in documents[:100]]
  digest.update(json.dumps([*settings, *probes]).encode())
  ranking = (lsa, fusion, index_lib, store)
  for module in (chunks_lib, entity_graph, python_source, swarm_facts, swarm_steps, *ranking):
    digest.update(pathlib.Path(str(module.__file__)).read_bytes())
  digest.update(pathlib.Path(__file__).read_bytes())
  folder = pathlib.Path(cache_dir) / f"swarm_{digest.hexdigest()[:16]}"
  if not (folder / "manifest.json").is_file():
    chunks = chunks_lib.cut(documents, count_tokens, max_tokens=chunk_tokens)
    index = index_lib.build(chunks, cache_dir, dense_leg=dense)
    made = make(
      documents,
      chunks,
      index,
      count_tokens=count_tokens,
      budgets=budgets,
      seed=seed,
      kinds=kinds,
      limits=limits,
    )
    frozen.save(made, folder)
  task_set = frozen.load(folder)
  return task_set, index_lib.build(task_set.chunks, cache_dir, dense_leg=dense)


def read_rows(
  documents: Sequence[Document],
  chunks: Sequence[Chunk],
  index: Index,
  *,
  count_tokens: Callable[[str], int],
  budgets: Budgets,
) -> dict[str, list[Row]]:
  """The rows that can be made, by the keys of COLUMNS: short, and found by a search."""
  chunk_map = entities.ChunkMap(documents, chunks)

  def shown_in(fact: Fact, query: str) -> str:
    """The chunk that a search shows and that states the fact; "" if there is none."""
    chunk = chunk_map.find(fact.line)
    if chunk is None or max(map(count_tokens, (fact.name, fact.value))) > budgets.name_tokens:
      return ""
    hits = index.search(query, limit=budgets.max_shown, settings=budgets.fusion)
    return chunk.id if chunk.id in {hit.chunk.id for hit in hits} else ""

  rows: dict[str, list[Row]] = {key: [] for key in COLUMNS}
  found: dict[str, tuple[Fact, str]] = {}
  for fact in swarm_facts.read(documents):
    chunk_id = shown_in(fact, fact.query)
    if chunk_id:
      cells = dict(zip(COLUMNS[fact.kind], (fact.name, fact.value), strict=False))
      rows[fact.kind].append(Row(fact.name, (fact.query,), (chunk_id,), cells, fact.group))
    if chunk_id and fact.kind == "class":
      found[fact.name] = (fact, chunk_id)
  for fact, chunk_id in found.values():
    if fact.value in found:
      base, base_chunk = found[fact.value]
      cells = dict(zip(COLUMNS["class chain"], (fact.name, base.name, base.value), strict=True))
      queries = (fact.query, f"{base.name} {base.kind}")
      row = Row(fact.name, queries, (chunk_id, base_chunk), cells, fact.group)
      if shown_in(base, queries[1]):
        rows["class chain"].append(row)
  return rows


def _tasks(
  rows: Mapping[str, Sequence[Row]],
  split: Split,
  seed: int,
  kinds: Mapping[str, float],
  limit: int,
  budgets: Budgets,
) -> Iterator[Task]:
  seen: set[tuple[str, frozenset[str], str]] = set()
  for number in range(limit * MAX_TRIES):
    if len(seen) == limit:
      return
    draw = random.Random(f"{seed}/{split}/{number}")
    kind = draw.choices(list(kinds), list(kinds.values()))[0]
    form, _, key = kind.partition(" ")
    possible = swarm_steps.sizes(form, len(key.split()), budgets)
    if not possible:
      continue
    count = draw.choice(possible)
    picked = _pick(rows[key], count, draw)
    truth = _only_end(picked, draw) if picked and form == "deep" else None
    if picked is None or (form == "deep" and truth is None):
      continue
    # The same rows in another order would be the same task.
    same = (kind, frozenset(row.name for row in picked), truth.name if truth else "")
    if same not in seen:
      yield _task(f"{split}-{len(seen)}", kind, picked, truth, split, seed, budgets)
      seen.add(same)


def _pick(rows: Sequence[Row], count: int, draw: random.Random) -> list[Row] | None:
  """Random rows of which no two have their first answer in the same chunk and few share a value."""
  picked: list[Row] = []
  chunks: set[str] = set()
  values: collections.Counter[str] = collections.Counter()
  for row in draw.sample(rows, len(rows)):
    value = list(row.cells.values())[1]
    if row.chunk_ids[0] not in chunks and values[value] <= count // 4:
      picked.append(row)
      chunks.add(row.chunk_ids[0])
      values[value] += 1
    if len(picked) == count:
      return picked
  return None


def _only_end(rows: Sequence[Row], draw: random.Random) -> Row | None:
  """A row whose last value no other row has."""
  ends = collections.Counter(_end(row) for row in rows)
  alone = [row for row in rows if ends[_end(row)] == 1]
  return draw.choice(alone) if alone else None


def _end(row: Row) -> str:
  return list(row.cells.values())[-1]


def _task(
  task_id: str,
  kind: str,
  rows: Sequence[Row],
  truth: Row | None,
  split: Split,
  seed: int,
  budgets: Budgets,
) -> Task:
  """A task. `truth` is the row that the question asks for; None if it asks for the whole table."""
  form, _, key = kind.partition(" ")
  lookups = len(rows[0].queries)
  columns = COLUMNS[key] if truth is None else (COLUMNS[key][-1], KEY)
  names = " ".join(f"{i + 1}.{row.queries[0]}." for i, row in enumerate(rows))
  # A name follows a space, as in the prompt; a result is written as it was found.
  header = f"|{'|'.join(f' {each} ' if each == KEY else each for each in columns)}|"
  facts: dict[str, Any] = {
    "level": LEVELS[form],
    "kind": kind,
    "max_steps": swarm_steps.max_steps(form, len(rows), lookups, budgets),
    "single_steps": swarm_steps.single_steps(len(rows), lookups, budgets.max_calls),
    "swarm_steps": swarm_steps.swarm_steps(len(rows), lookups, budgets.max_assignments),
    "columns": list(columns),
    "keys": [KEY],
    "header": header,
    "rows": [
      {
        "cells": dict(row.cells),
        "source": row.chunk_ids[-1],
        "lookups": list(row.queries),
        "chunk_ids": list(row.chunk_ids),
      }
      for row in rows
    ],
    "facts": [
      {"fact": query, "chunk_ids": [chunk_id], "is_final_answer": False}
      for row in rows
      for query, chunk_id in zip(row.queries, row.chunk_ids, strict=True)
    ],
    "clues": [
      {"text": row.queries[0], "chunk_ids": list(row.chunk_ids), "name": row.name} for row in rows
    ],
  }
  question = f"Table: {header}"
  if truth is not None:
    which = f"Which {KEY} has |{_end(truth)}|?"
    facts |= {"truth": truth.name, "asked": _end(truth), "question": which}
    question = f"{which} {question}"
  return Task(
    id=task_id,
    env="swarm",
    prompt=f"{names} {question}",
    facts=facts,
    split=split,
    seed=seed,
  )
