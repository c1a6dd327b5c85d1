"""An agent's part of the report: columns, names of metrics, baselines, its own sections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.formats import flatten, mapping


def hasty_note(section: str) -> Callable[[Mapping[str, Any]], str]:
  """A function from the summary to a sentence on a warm start that was made worse on purpose, by
  the option `hasty` of the section; "" if it was not.
  """

  def told(summary: Mapping[str, Any]) -> str:
    text = dict(flatten(mapping(summary.get("config")))).get(f"{section}.hasty", "0")
    try:
      share = float(text)
    except ValueError:  # a damaged summary
      return ""
    if not share:
      return ""
    return (
      f"The warm start imitates a player that was made hasty in {100 * share:.0f}\u00a0% of its "
      f"episodes ({section}.hasty), so at least a part of the gain undoes that."
    )

  return told


@dataclasses.dataclass(frozen=True)
class Section:
  """A section of the report: a title, a paragraph, and a table if it has a header.

  Attributes:
    title: of the section.
    text: plain text.
    header: titles of the table's columns.
    rows: of the table, each with as many cells as the header.
  """

  title: str
  text: str = ""
  header: tuple[str, ...] = ()
  rows: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Panel:
  """One chart. A key ending in "/" takes every scalar with that prefix; scale "linear" or "log"."""

  title: str
  note: str
  keys: tuple[str, ...]
  low: float | None = None
  high: float | None = None
  scale: str = "linear"


@dataclasses.dataclass(frozen=True)
class Comparison:
  """How runs of one agent are compared side by side.

  Attributes:
    evaluations: rows of the table, "trained" among them; () for all that a run has.
    rivals: those of them of which the panels show the one with the highest reward; () for the last,
      and where `evaluations` are all of a run for its scripted players.
    columns: of the table: names in an entry of an evaluation, with dots between levels.
    gains: names of "paired_bootstrap" whose lower bounds are there, too.
    held_out: columns that have a panel of their own.
    curves: (scalar of a step, title) of each further panel.
    sizes: (column, title) of each chart over sizes of tasks ("by_size" of an evaluation), if any.
    sized: the evaluations drawn there.
  """

  evaluations: tuple[str, ...] = ()
  rivals: tuple[str, ...] = ()
  columns: tuple[str, ...] = ("reward",)
  gains: tuple[str, ...] = ("reward_gain",)
  held_out: tuple[str, ...] = ("reward",)
  curves: tuple[tuple[str, str], ...] = (("reward", "reward"),)
  sizes: tuple[tuple[str, str], ...] = ()
  sized: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Story:
  """An agent's part of the report.

  Attributes:
    noun: what is trained for, as a noun in the first sentence.
    score: its metric.
    gain: the words for its gain.
    baselines: {evaluation: words}; the first sentence compares the trained policy with the best
      of these.
    columns: (evaluation, title) of the table, the warm start and the trained policy first.
    titles: {metric: title} in the order of the rows.
    of_sub_agents: metrics that have no meaning where "width" is 0.
    closed: whether metrics without a title are left out of the table.
    costs: metrics of which less is better; the upper bound of their gain is shown.
    kinds: (kind, title) of tasks that have rows of their own.
    kind_metrics: the metrics of those rows.
    bound: header of the bounds of the gains.
    fine: notes below the table.
    addition: a further sentence on the result, computed from the summary; "" for none.
    facts: further numbers beside the result, (name, value) each, computed from the summary.
    sections: the agent's own sections of the report, computed from the summary.
    limits: {"soft", "hard", "budget"}: marks on the curve of context tokens, computed from the
      options in the summary ("section.option": value).
    panels: charts of the scalars of reinforcement learning, before those of every run.
    computed: further scalars to draw, computed from the options in the summary and the steps.
    compared: how runs are compared side by side.
  """

  noun: str = "reward"
  score: str = "reward"
  baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)
  columns: tuple[tuple[str, str], ...] = (("warm_start", "Before"), ("trained", "Trained"))
  titles: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"reward": "Reward"})
  of_sub_agents: tuple[str, ...] = ()
  closed: bool = False
  costs: tuple[str, ...] = ()
  gain: str = "reward"
  kinds: tuple[tuple[str, str], ...] = ()
  kind_metrics: tuple[str, ...] = ()
  bound: str = "lower 95 %"
  fine: str = ""
  addition: Callable[[Mapping[str, Any]], str] = lambda summary: ""
  facts: Callable[[Mapping[str, Any]], Sequence[tuple[str, str | None]]] = lambda summary: ()
  sections: Callable[[Mapping[str, Any]], Sequence[Section]] = lambda summary: ()
  limits: Callable[[Mapping[str, Any]], Mapping[str, int]] = lambda options: {}
  panels: tuple[Panel, ...] = ()
  computed: Callable[[Mapping[str, Any], Sequence[int]], Mapping[str, list[float | None]]] = (
    lambda options, steps: {}
  )
  compared: Comparison = Comparison()
