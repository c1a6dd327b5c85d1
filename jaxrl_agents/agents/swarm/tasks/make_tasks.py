"""Makes tasks for an agent swarm: Python source, and more look-ups than one agent has steps for.

    wide     a table with a row for each of many names; a row takes one look-up or a chain of two
    deep     many chains of look-ups, of which one alone ends with the value in the question: which?
    narrow   a table of one or two rows, for which sub-agents would exceed the budget of steps

No prompt tells how to proceed. A wide or deep task is kept if an ideal plan of sub-agents takes at
most `share` of a single agent's steps, and a single agent finds at most half of the rows within
that budget. A narrow task is kept if a single agent is within the budget and a plan of sub-agents
is not. Every look-up was tried: a search for its query shows the line that answers it. All look-ups
of a task are in modules of its split.

`sized_tables` makes tasks of every size instead, which nobody's plan chooses.

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

from jaxrl_agents.agents.search.tasks import task_set as frozen
from jaxrl_agents.agents.search.tasks.practice import Clue
from jaxrl_agents.agents.search.tasks.task_set import TaskSet
from jaxrl_agents.agents.swarm.config import TablesConfig
from jaxrl_agents.agents.swarm.tasks import budgets as swarm_steps
from jaxrl_agents.agents.swarm.tasks import rows as rows_lib
from jaxrl_agents.agents.swarm.tasks import sized_tables
from jaxrl_agents.agents.swarm.tasks.budgets import Budgets
from jaxrl_agents.agents.swarm.tasks.rows import COLUMNS, KEY, Row
from jaxrl_agents.corpus import chunks as chunks_lib
from jaxrl_agents.corpus import code_digest, splits
from jaxrl_agents.corpus import documents as documents_lib
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.corpus.index.hybrid import Index
from jaxrl_agents.corpus.splits import SPLITS
from jaxrl_agents.types import Split, Task

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
  sized: TablesConfig = TablesConfig(),
) -> TaskSet:
  """Makes the tasks of a corpus of Python source; those of `sized_tables` if `sized` has rows.

  Raises:
    ValueError: no task of the train split could be made.
  """
  rows = rows_lib.read_rows(documents, chunks, index, count_tokens=count_tokens, budgets=budgets)
  tasks: dict[str, tuple[Task, ...]] = {}
  clues: dict[str, tuple[Clue, ...]] = {}
  for split in SPLITS:
    own = {
      key: [r for r in each if {splits.split_of(group) for group in r.groups} == {split}]
      for key, each in rows.items()
    }
    limit = limits[split]
    if sized.max_rows:
      tasks[split] = tuple(sized_tables.tasks(own, split, seed, limit, sized, budgets))
    else:
      tasks[split] = tuple(_tasks(own, split, seed, kinds, limit, budgets))
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
    "sized": dataclasses.asdict(sized),
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
  sized: TablesConfig = TablesConfig(),
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
  sections = (dataclasses.asdict(budgets), dataclasses.asdict(sized))
  settings = [seed, chunk_tokens, dense, *sections, dict(kinds), dict(limits)]
  probes = [count_tokens(document.text[:2000]) for document in documents[:100]]
  digest.update(json.dumps([*settings, *probes]).encode())
  digest.update(code_digest.of(__name__).encode())
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
      sized=sized,
    )
    frozen.save(made, folder)
  task_set = frozen.load(folder)
  return task_set, index_lib.build(task_set.chunks, cache_dir, dense_leg=dense)


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
    picked = rows_lib.pick(rows[key], count, draw)
    truth = _only_end(picked, draw) if picked and form == "deep" else None
    if picked is None or (form == "deep" and truth is None):
      continue
    # The same rows in another order would be the same task.
    same = (kind, frozenset(row.name for row in picked), truth.name if truth else "")
    if same not in seen:
      yield _task(f"{split}-{len(seen)}", kind, picked, truth, split, seed, budgets)
      seen.add(same)


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
  header = rows_lib.header(columns)
  facts: dict[str, Any] = {
    "level": LEVELS[form],
    "kind": kind,
    "max_steps": swarm_steps.max_steps(form, len(rows), lookups, budgets),
    "single_steps": swarm_steps.single_steps(len(rows), lookups, budgets.max_calls),
    "swarm_steps": swarm_steps.swarm_steps(len(rows), lookups, budgets.max_assignments),
    "columns": list(columns),
    "keys": [KEY],
    "header": header,
    **rows_lib.facts_of(rows),
  }
  question = f"Table: {header}"
  if truth is not None:
    which = f"Which {KEY} has |{_end(truth)}|?"
    facts |= {"truth": truth.name, "asked": _end(truth), "question": which}
    question = f"{which} {question}"
  return Task(
    id=task_id,
    env="swarm",
    prompt=f"{rows_lib.listed([row.queries[0] for row in rows])} {question}",
    facts=facts,
    split=split,
    seed=seed,
  )
