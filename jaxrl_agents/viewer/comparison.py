"""Several runs side by side: their evaluations as a Markdown table, their curves as one SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxrl_agents.agents.story import Comparison
from jaxrl_agents.viewer import stories
from jaxrl_agents.viewer.inputs import Run

SMOOTHED = 5
"""Steps behind a point of the thick lines; the thin ones are the steps themselves."""

COLOURS = ("#1f5fad", "#c9610c", "#2f855a", "#8b3a8b", "#b8860b", "#444444", "#c0392b", "#16a2a2")

_WIDTH, _HEIGHT, _PER_ROW = 280, 150, 3
_LEFT, _TOP, _GAP, _LEGEND = 34, 24, 26, 22
_NOT_NUMBER = "–"


def table(runs: Sequence[Run]) -> str:
  """A row of means for each evaluation, and gains with their lower bounds behind the trained one.

  Raises:
    ValueError: a run has no evaluation yet, or the runs are of several agents.
  """
  view = _view(runs)
  names = [_words(column) for column in view.columns]
  gains = [f"gain in {_words(name)} (from)" for name in view.gains]
  lines = [
    f"| run | weights | {' | '.join([*names, *gains])} |",
    "|---" * (len(names) + len(gains) + 2) + "|",
  ]
  for run in runs:
    summary = run.summary
    if "trained" not in summary.get("eval", {}):
      raise ValueError(f"{run.name} has no evaluation yet; let the run finish")
    for weights in view.evaluations:
      entry = summary["eval"].get(weights, {})
      cells = [_cell(_value(entry, column)) for column in view.columns]
      told = [""] * len(gains)
      if weights == "trained":
        told = [_gain(summary["paired_bootstrap"], name) for name in view.gains]
      lines.append(f"| {run.name} | {_words(weights)} | {' | '.join([*cells, *told])} |")
  return "\n".join(lines)


def svg(runs: Sequence[Run]) -> str:
  """Small charts, a colour a run, as an SVG document.

  First the held-out evaluations of the runs that have them, from the warm start (hollow) to the
  trained policy (full), with a bar where their rival stands; then the scalars of the steps of
  reinforcement learning.

  Raises:
    ValueError: no run has a step, or the runs are of several agents.
  """
  view = _view(runs)
  curves = [[row for row in run.rows if row["phase"] == "rl"] for run in runs]
  last = max((row["step"] for rows in curves for row in rows), default=-1)
  if last < 0:
    raise ValueError("no run has a step of reinforcement learning yet")
  panels = []
  if any(_evaluated(run, view) for run in runs):
    panels = [_held_out(key, view, runs) for key in view.held_out]
  for key, title in view.curves:
    lines = [[(row["step"], row[key]) for row in rows if key in row] for rows in curves]
    panels.append(_chart(title, lines, last))
  parts = [_legend([run.name for run in runs])]
  for i, panel in enumerate(panels):
    x = i % _PER_ROW * (_WIDTH + _LEFT) + _LEFT
    y = i // _PER_ROW * (_HEIGHT + _TOP + _GAP) + _LEGEND + _TOP
    parts.append(f'<g transform="translate({x},{y})">{panel}</g>')
  height = _LEGEND + -(-len(panels) // _PER_ROW) * (_HEIGHT + _TOP + _GAP)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{_PER_ROW * (_WIDTH + _LEFT)}" '
    f'height="{height}" font-family="sans-serif" font-size="11">'
    f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
  )


def _view(runs: Sequence[Run]) -> Comparison:
  found = {stories.agent(run.summary) for run in runs}
  if len(found) > 1:
    raise ValueError(f"the runs are of several agents ({', '.join(sorted(found))}); name one")
  return stories.of(runs[0].summary if runs else {}).compared


def _words(name: str) -> str:
  return name.removeprefix("by_kind.").replace("_", " ").replace(".", " ")


def _value(entry: Any, column: str) -> Any:
  """What lies at a path of names with dots between them; None where nothing does."""
  for name in column.split("."):
    entry = entry.get(name) if isinstance(entry, Mapping) else None
  return entry


def _evaluated(run: Run, view: Comparison) -> bool:
  found = run.summary.get("eval", {})
  return all("reward" in found.get(name, {}) for name in _shown(view))


def _shown(view: Comparison) -> tuple[str, str, str]:
  """The evaluations in a panel: before, after, the rival."""
  return "warm_start", "trained", view.evaluations[-1]


def _held_out(key: str, view: Comparison, runs: Sequence[Run]) -> str:
  """A line a run: hollow dot, full dot, and a bar for the rival."""
  rows = []
  for i, run in enumerate(runs):
    if _evaluated(run, view):
      found = [_value(run.summary["eval"][name], key) for name in _shown(view)]
      rows.append((i, [math.nan if value is None else value for value in found]))
  high = max([v for _, values in rows for v in values if math.isfinite(v)], default=0) or 1.0
  across = lambda value: value / high * (_WIDTH - 20)
  drawn = [f'<text y="-8" font-weight="bold">held out: {escape(_words(key))}</text>']
  for value in (0.0, high):
    drawn.append(
      f'<line x1="{across(value)}" x2="{across(value)}" y2="{_HEIGHT}" stroke="#ddd"/>'
      f'<text x="{across(value)}" y="{_HEIGHT + 14}" text-anchor="middle">{value:.3g}</text>'
    )
  for place, (i, values) in enumerate(rows):
    if not all(map(math.isfinite, values)):
      continue
    y = (place + 0.5) * _HEIGHT / len(rows)
    warm, trained, rival = (f"{across(value):.1f}" for value in values)
    drawn.append(
      f'<line x1="{warm}" x2="{trained}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_colour(i)}" '
      f'stroke-width="2"/><circle cx="{warm}" cy="{y:.1f}" r="4" fill="white" '
      f'stroke="{_colour(i)}" stroke-width="1.6"/><circle cx="{trained}" cy="{y:.1f}" r="4.5" '
      f'fill="{_colour(i)}"/><line x1="{rival}" x2="{rival}" y1="{y - 7:.1f}" y2="{y + 7:.1f}" '
      'stroke="#222" stroke-width="2"/>'
    )
  return "".join(drawn)


def _chart(title: str, lines: Sequence[Sequence[tuple[float, float]]], last: int) -> str:
  values = [value for line in lines for _, value in line if math.isfinite(value)]
  low, high = min([0.0, *values]), max([*values, 1e-9])
  across = lambda step: step / max(last, 1) * (_WIDTH - 20)
  up = lambda value: _HEIGHT - (value - low) / (high - low) * _HEIGHT
  drawn = [f'<text y="-8" font-weight="bold">{escape(title)}</text>']
  for value in (low, high):
    drawn.append(
      f'<line x2="{_WIDTH - 20}" y1="{up(value):.1f}" y2="{up(value):.1f}" stroke="#ddd"/>'
      f'<text x="-4" y="{up(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    )
  drawn.append(f'<text x="{_WIDTH - 20}" y="{_HEIGHT + 14}" text-anchor="end">step {last}</text>')
  for i, line in enumerate(lines):
    line = [(step, value) for step, value in line if math.isfinite(value)]
    for shown, width, opacity in ((line, 1, 0.35), (_smoothed(line), 2, 1)):
      points = " ".join(f"{across(step):.1f},{up(value):.1f}" for step, value in shown)
      drawn.append(
        f'<polyline points="{points}" fill="none" stroke="{_colour(i)}" stroke-width="{width}" '
        f'opacity="{opacity}"/>'
      )
  return "".join(drawn)


def _smoothed(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
  """Each value the mean of those at most half of `SMOOTHED` away."""
  half, values = SMOOTHED // 2, [value for _, value in line]
  near = [values[max(i - half, 0) : i + half + 1] for i in range(len(values))]
  return [(step, sum(v) / len(v)) for (step, _), v in zip(line, near, strict=True)]


def _legend(names: Sequence[str]) -> str:
  drawn, x = [], 8
  for i, name in enumerate(names):
    drawn.append(
      f'<rect x="{x}" y="7" width="14" height="4" fill="{_colour(i)}"/>'
      f'<text x="{x + 18}" y="13">{escape(name)}</text>'
    )
    x += 36 + 7 * len(name)
  return "".join(drawn)


def _colour(i: int) -> str:
  return COLOURS[i % len(COLOURS)]


def _cell(value: Any) -> str:
  return f"{value:.3f}" if isinstance(value, (int, float)) else _NOT_NUMBER


def _gain(bootstrap: Mapping[str, Any], name: str) -> str:
  return f"{bootstrap[f'{name}_gain']:+.3f} ({bootstrap[f'{name}_gain_lower95']:+.3f})"
