"""Tasks of every size: tables of 1 to N rows without a gap, and questions about such tables.

    wide, narrow    a table with a row for each name: wide from `WIDE_ROWS` rows on; a row takes one
                    look-up, or a chain of two ("class chain")
    deep shared     which value do two of the names share? All values have to be put together.
    deep relay      the same, and a further look-up: a class stands beside each name, and the base
                    of the class beside the second of the two names is asked for

The budget of critical steps grows with the number of look-ups at one pace for all players
(`SwarmConfig.tables`). No task is left out because of who can solve it within its budget. A chain
takes two look-ups a row and has at most half as many rows. All look-ups of a task are in modules of
its split, and each was tried as in `make_tasks`.

The names of a task are numbered downwards: a list that is copied ends with number 1, however long
it is. The source of a row stands between its name and its value: several rows may have the same
value, but seldom the same source, so what stands before a cell says which row it is in.

A question cannot be answered by one clever look-up: two names that share a value stand in different
chunks, so no pattern matches both. Answers are drawn evenly over the values that can be asked for,
so that frequent ones are no better guess than others.

Construction and numbers are ours.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.swarm import tables
from jaxrl_agents.agents.swarm.config import TablesConfig
from jaxrl_agents.agents.swarm.tasks import budgets as swarm_steps
from jaxrl_agents.agents.swarm.tasks import rows as rows_lib
from jaxrl_agents.agents.swarm.tasks.budgets import Budgets
from jaxrl_agents.agents.swarm.tasks.rows import COLUMNS, KEY, Row
from jaxrl_agents.corpus import splits
from jaxrl_agents.types import Split, Task

KINDS = {
  "class": 0.2,
  "def": 0.35,
  "constant": 0.05,
  "class chain": 0.1,
  "shared class": 0.05,
  "shared def": 0.1,
  "relay def": 0.15,
}
"""Relative frequency of each kind of row, and of questions about rows, among the attempts."""

QUESTIONS = {
  "shared": "Which {} do two names share?",
  "relay": "Two names share a {}. Which base has the class beside the second?",
}

WIDE_ROWS = 10
"""Tables of this many rows and more are "wide", others "narrow" (and of level 0)."""

FEWEST = 3
"""Names of a question; with two, the first look-up would answer it."""

TRIES = 20
"""Draws for each wanted task; after that, the split has one task less."""


def tasks(
  rows: Mapping[str, Sequence[Row]],
  split: Split,
  seed: int,
  limit: int,
  sized: TablesConfig,
  budgets: Budgets,
) -> Iterator[Task]:
  """Yields at most `limit` tasks of a split; numbers of look-ups go round from 1 to
  `sized.max_rows`.

  Args:
    rows: those of the split, by the keys of `COLUMNS`.
    split: of the tasks.
    seed: of all random draws.
    limit: number of tasks.
    sized: sizes, and the budget of critical steps.
    budgets: the limits of the agents, for the numbers of steps that are written down beside.
  """
  chains = [
    row for row in rows["class chain"] if {splits.split_of(each) for each in row.groups} == {split}
  ]
  pools = {**rows, "class chain": chains}
  seen: set[tuple[str, frozenset[str]]] = set()
  for number in range(limit):
    size = number % sized.max_rows + 1
    for attempt in range(TRIES):
      draw = random.Random(f"{seed}/{split}/{number}/{attempt}")
      kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
      found = _drawn(pools, kind, size, draw)
      if found is None:
        continue
      same = (kind, frozenset(row.name for row in found.rows))
      if same not in seen:
        yield _task(f"{split}-{len(seen)}", kind, found, (split, seed), sized, budgets)
        seen.add(same)
        break


@dataclasses.dataclass(frozen=True)
class _Drawn:
  """The rows of a task. Of a question, `value` is what two of them share, and of a relay `beside`
  are the rows of the classes beside their names.
  """

  rows: Sequence[Row]
  value: str = ""
  beside: Sequence[Row] = ()

  @property
  def second(self) -> int:
    """The place of the second of the two names that share the value."""
    _, second = (i for i, row in enumerate(self.rows) if _value(row) == self.value)
    return second

  @property
  def link(self) -> Row:
    """The class beside this name."""
    return self.beside[self.second]


def _drawn(
  pools: Mapping[str, Sequence[Row]], kind: str, size: int, draw: random.Random
) -> _Drawn | None:
  """A task with `size` look-ups; None if the rows do not suffice."""
  form, _, key = kind.partition(" ")
  if form in QUESTIONS:
    names = size - (form == "relay")
    made = _sharing(pools[key], names, draw) if names >= FEWEST else None
    return _with_classes(made, pools["class"], draw) if made and form == "relay" else made
  hops = len(kind.split())
  picked = rows_lib.pick(pools[kind], size // hops, draw) if size >= hops else None
  return _Drawn(picked) if picked else None


def _sharing(rows: Sequence[Row], count: int, draw: random.Random) -> _Drawn | None:
  """Rows of which two have the same value, and no others have, in chunks and with names of their
  own.
  """
  by_value: dict[str, list[Row]] = collections.defaultdict(list)
  for row in rows:
    by_value[_value(row)].append(row)
  shared = sorted(value for value, own in by_value.items() if len({r.chunk_ids for r in own}) > 1)
  if not shared:
    return None
  value = draw.choice(shared)
  first = draw.choice(by_value[value])
  name = lambda row: tables.normal(row.name)
  others = [row for row in by_value[value] if row.chunk_ids != first.chunk_ids]
  others = [row for row in others if name(row) != name(first)]
  if not others:
    return None
  picked, values = [first, draw.choice(others)], {value}
  chunks = {chunk_id for row in picked for chunk_id in row.chunk_ids}
  names = set(map(name, picked))
  for row in draw.sample(rows, len(rows)):
    if len(picked) == count:
      break
    if _value(row) in values or name(row) in names:
      continue
    if chunks.isdisjoint(row.chunk_ids):
      picked.append(row)
      names.add(name(row))
      chunks.update(row.chunk_ids)
      values.add(_value(row))
  draw.shuffle(picked)
  return _Drawn(picked, value) if len(picked) == count else None


def _with_classes(made: _Drawn, classes: Sequence[Row], draw: random.Random) -> _Drawn | None:
  """A relay: with a class beside each name. The base that is asked for is drawn evenly over all."""
  bases = sorted({_value(row) for row in classes})
  if len(classes) < len(made.rows):
    return None
  base = draw.choice(bases)
  target = draw.choice([row for row in classes if _value(row) == base])
  others = draw.sample([row for row in classes if row is not target], len(made.rows) - 1)
  others.insert(made.second, target)
  return dataclasses.replace(made, beside=others)


def _columns(kind: str) -> tuple[str, ...]:
  """The columns of a table of a kind, the source before the value; a question has no source."""
  if kind not in COLUMNS:
    return COLUMNS[kind.split()[1]][:2]
  name, *others = COLUMNS[kind]
  return (name, *reversed(others)) if others[-1] == "source" else COLUMNS[kind]


def _value(row: Row) -> str:
  return list(row.cells.values())[1]


def _task(
  task_id: str,
  kind: str,
  found: _Drawn,
  drawn_for: tuple[Split, int],
  sized: TablesConfig,
  budgets: Budgets,
) -> Task:
  """A task of a split and a seed."""
  rows, relay = found.rows, len(found.beside) > 0
  hops = len(rows[0].queries)
  lookups = len(rows) * hops + relay
  columns = _columns(kind)
  header = rows_lib.header(columns)
  form = "deep" if found.value else "wide" if len(rows) >= WIDE_ROWS else "narrow"
  facts: dict[str, Any] = {
    "level": {"narrow": 0, "wide": 1, "deep": 2}[form],
    "kind": f"{form} {kind}",
    "max_steps": swarm_steps.paced_steps(lookups, sized.steps, sized.steps_per_lookup),
    "single_steps": swarm_steps.single_steps(len(rows), hops, budgets.max_calls) + relay,
    "swarm_steps": swarm_steps.swarm_steps(len(rows), hops, budgets.max_assignments) + relay,
    "columns": list(columns),
    "keys": [KEY],
    "header": header,
    **rows_lib.facts_of(rows),
  }
  question = f"Table: {header}"
  if found.value:
    asks = QUESTIONS[kind.split()[0]].format(columns[1])
    facts |= {"truth": found.value, "question": asks}
    question = f"{asks} {question}"
  listed = [row.queries[0] for row in rows]
  if relay:
    listed = [f"{row.queries[0]},{b.queries[0]}" for row, b in zip(rows, found.beside, strict=True)]
    link = rows_lib.described(found.link)
    gold = {"fact": link["lookups"][0], "chunk_ids": link["chunk_ids"], "is_final_answer": True}
    beside = [each.queries[0] for each in found.beside]
    facts |= {"truth": _value(found.link), "shared": found.value, "link": link, "beside": beside}
    facts["facts"] = [*facts["facts"], gold]
  split, seed = drawn_for
  numbered = " ".join(f"{len(listed) - i}.{query}." for i, query in enumerate(listed))
  prompt = f"{numbered} {question}"
  return Task(id=task_id, env="swarm", prompt=prompt, facts=facts, split=split, seed=seed)
