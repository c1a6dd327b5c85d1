"""Evaluations of a swarm by kind of task and by size of table, and beside a single agent."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_agents.agents import scores as scores_lib
from jaxrl_agents.types import Group

SIZES = ((1, 4), (5, 9), (10, 19), (20, 29), (30, 40))
"""Least and most rows of the tables that are scored together; larger ones by twenties."""

Entry = Callable[[Sequence[Group]], dict[str, float]]
"""The scores of some groups."""


def by_kind(groups: Sequence[Group], entry: Entry) -> dict[str, dict[str, float]]:
  """The scores of each form of task."""
  found: dict[str, list[Group]] = collections.defaultdict(list)
  for group in groups:
    found[form(group)].append(group)
  return {kind: entry(each) for kind, each in sorted(found.items())}


def by_size(groups: Sequence[Group], entry: Entry) -> dict[str, dict[str, float]]:
  """The scores of tables, without questions, by their number of rows."""
  found = {}
  tables = [group for group in groups if form(group) != "deep"]
  largest = max((len(group.task.facts["rows"]) for group in tables), default=0)
  last = SIZES[-1][1]
  larger = [(end + 1, end + 20) for end in range(last, largest, 20)]
  for least, most in (*SIZES, *larger):
    own = [group for group in tables if least <= len(group.task.facts["rows"]) <= most]
    if own:
      found[f"{least}-{most}"] = entry(own)
  return found


def of_forms(groups: Sequence[Group], forms: Sequence[str]) -> list[Group]:
  """The groups of tasks of these forms."""
  return [group for group in groups if form(group) in forms]


def ratios(swarm: Sequence[Group], single: Sequence[Group]) -> dict[str, Any]:
  """The ratios of critical steps that `SwarmAgent.compare` returns."""
  found: dict[str, Any] = {}
  by_kind = {}
  for forms in (("wide",), ("deep",), ("wide", "deep")):
    ours, theirs = (scores_lib.scores(of_forms(groups, forms)) for groups in (swarm, single))
    steps, others = ours.get("critical_steps", {}), theirs.get("critical_steps", {})
    tasks = sorted(set(steps) & set(others))
    if not tasks:
      continue
    ratio = lambda of, a=others, b=steps: sum(a[t] for t in of) / sum(b[t] for t in of)
    if len(forms) == 1:
      by_kind[forms[0]] = ratio(tasks)
      continue
    well = [t for t in tasks if ours["performance"][t] >= theirs["performance"][t]]
    found |= {"critical_steps_ratio": ratio(tasks), "no_worse": len(well) / len(tasks)}
    if well:
      found["critical_steps_ratio_where_no_worse"] = ratio(well)
  return found | {"critical_steps_ratio_by_kind": by_kind}


def form(group: Group) -> str:
  """ "wide", "deep" or "narrow"."""
  return group.task.facts["kind"].partition(" ")[0]
