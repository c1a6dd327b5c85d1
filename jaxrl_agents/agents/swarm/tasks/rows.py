"""Rows of tables: names of Python source, and look-ups that a search answers."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.swarm import tables
from jaxrl_agents.agents.swarm.tasks import facts as swarm_facts
from jaxrl_agents.agents.swarm.tasks.budgets import Budgets
from jaxrl_agents.agents.swarm.tasks.facts import Fact
from jaxrl_agents.corpus import entities
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.index.hybrid import Index

COLUMNS = {
  "class": ("name", "base", "source"),
  "def": ("name", "first argument", "source"),
  "constant": ("name", "value", "source"),
  "class chain": ("name", "base", "base of base"),
}
"""{kind of row: its columns}; the first column is the key. "source" is the id of the chunk."""

KEY = "name"


@dataclasses.dataclass(frozen=True)
class Row:
  """A name, its look-ups in order, and the cells that they answer, except the source.

  A query after the first begins with the result of the one before it, exactly as the source has it:
  after a bracket, without a space. `groups` are the modules of the look-ups.
  """

  name: str
  queries: tuple[str, ...]
  chunk_ids: tuple[str, ...]
  cells: Mapping[str, str]
  groups: tuple[str, ...]

  @property
  def group(self) -> str:
    """The module of the name, which decides the split."""
    return self.groups[0]


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
      rows[fact.kind].append(Row(fact.name, (fact.query,), (chunk_id,), cells, (fact.group,)))
    if chunk_id and fact.kind == "class":
      found[fact.name] = (fact, chunk_id)
  for fact, chunk_id in found.values():
    if fact.value in found:
      base, base_chunk = found[fact.value]
      cells = dict(zip(COLUMNS["class chain"], (fact.name, base.name, base.value), strict=True))
      queries = (fact.query, f"{base.name} {base.kind}")
      row = Row(fact.name, queries, (chunk_id, base_chunk), cells, (fact.group, base.group))
      if shown_in(base, queries[1]):
        rows["class chain"].append(row)
  return rows


def header(columns: Sequence[str]) -> str:
  """The header of a table. A name follows a space, as in the prompt; a result is written as it was
  found.
  """
  return f"|{'|'.join(f' {each} ' if each == KEY else each for each in columns)}|"


def listed(queries: Sequence[str]) -> str:
  """The numbered names of a prompt, each with a space before it."""
  return " ".join(f"{i + 1}.{query}." for i, query in enumerate(queries))


def described(row: Row) -> dict[str, Any]:
  """A row as it stands in `Task.facts`."""
  return {
    "cells": dict(row.cells),
    "source": row.chunk_ids[-1],
    "lookups": list(row.queries),
    "chunk_ids": list(row.chunk_ids),
  }


def facts_of(rows: Sequence[Row]) -> dict[str, Any]:
  """What `Task.facts` says of the rows: "rows", their gold "facts", and "clues"."""
  return {
    "rows": [described(row) for row in rows],
    "facts": [
      {"fact": query, "chunk_ids": [chunk_id], "is_final_answer": False}
      for row in rows
      for query, chunk_id in zip(row.queries, row.chunk_ids, strict=True)
    ],
    "clues": [
      {"text": row.queries[0], "chunk_ids": list(row.chunk_ids), "name": row.name} for row in rows
    ],
  }


def pick(rows: Sequence[Row], count: int, draw: random.Random) -> list[Row] | None:
  """Random rows of which no two have their first answer in the same chunk or names that a table
  takes for one (`tables.normal`), and few share a value.
  """
  picked: list[Row] = []
  chunks: set[str] = set()
  names: set[str] = set()
  values: collections.Counter[str] = collections.Counter()
  for row in draw.sample(rows, len(rows)):
    value, name = list(row.cells.values())[1], tables.normal(row.name)
    if row.chunk_ids[0] not in chunks and name not in names and values[value] <= count // 4:
      picked.append(row)
      chunks.add(row.chunk_ids[0])
      names.add(name)
      values[value] += 1
    if len(picked) == count:
      return picked
  return None
