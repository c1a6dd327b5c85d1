"""Several runs side by side: their evaluations as a Markdown table, their curves as one SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxrl_agents.viewer.inputs import Run

EVALUATIONS = ("warm_start", "trained", "one_shot_hybrid")

COLUMNS = ("reward", "output_recall", "trajectory_recall", "precision", "completed", "turns")
"""Of an evaluation, in the table."""

CURVES = (
  ("reward", "reward"),
  ("output_recall", "output recall"),
  ("trajectory_recall", "trajectory recall"),
  ("turns", "turns"),
  ("tool_calls", "tool calls"),
  ("completed", "completed"),
)
"""(scalar, title) of each panel."""

HELD_OUT = ("reward", "output_recall", "trajectory_recall")
"""Of the evaluations, in the first row of panels."""

SMOOTHED = 5
"""Steps behind a point of the thick lines; the thin ones are the steps themselves."""

COLOURS = ("#1f5fad", "#c9610c", "#2f855a", "#8b3a8b", "#b8860b", "#444444", "#c0392b", "#16a2a2")

_WIDTH, _HEIGHT, _PER_ROW = 280, 150, 3
_LEFT, _TOP, _GAP, _LEGEND = 34, 24, 26, 22
_NOT_NUMBER = "–"


def table(runs: Sequence[Run]) -> str:
  """A row of means for each evaluation, and the gain with its lower bound behind the trained one.

  Raises:
    ValueError: a run has no evaluation yet.
  """
  lines = [
    f"| run | weights | {' | '.join(c.replace('_', ' ') for c in COLUMNS)} | gain in reward (from) "
    "| gain in output recall (from) |",
    "|---" * (len(COLUMNS) + 4) + "|",
  ]
  for run in runs:
    summary = run.summary
    if "trained" not in summary.get("eval", {}):
      raise ValueError(f"{run.name} has no evaluation yet; let the run finish")
    for weights in EVALUATIONS:
      entry = summary["eval"].get(weights, {})
      cells = [_cell(entry.get(column)) for column in COLUMNS]
      gains = ["", ""]
      if weights == "trained":
        gains = [_gain(summary["paired_bootstrap"], name) for name in ("reward", "output_recall")]
      words = weights.replace("_", " ")
      lines.append(f"| {run.name} | {words} | {' | '.join([*cells, *gains])} |")
  return "\n".join(lines)


def svg(runs: Sequence[Run]) -> str:
  """Small charts, a colour a run, as an SVG document.

  First the held-out evaluations of the runs that have them, from the warm start (hollow) to the
  trained policy (full), with a bar where one hybrid search of as many chunks stands; then the
  scalars of the steps of reinforcement learning.

  Raises:
    ValueError: no run has a step.
  """
  curves = [[row for row in run.rows if row["phase"] == "rl"] for run in runs]
  last = max((row["step"] for rows in curves for row in rows), default=-1)
  if last < 0:
    raise ValueError("no run has a step of reinforcement learning yet")
  panels = [_held_out(key.replace("_", " "), key, runs) for key in HELD_OUT]
  for key, title in CURVES:
    lines = [[(row["step"], row[key]) for row in rows if key in row] for rows in curves]
    panels.append(_chart(title, lines, last))
  if not any(_evaluated(run) for run in runs):
    panels = panels[len(HELD_OUT) :]
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


def _evaluated(run: Run) -> bool:
  return all("reward" in run.summary.get("eval", {}).get(name, {}) for name in EVALUATIONS)


def _held_out(title: str, key: str, runs: Sequence[Run]) -> str:
  """A line a run: hollow dot, full dot, and a bar for one search."""
  rows = []
  for i, run in enumerate(runs):
    if _evaluated(run):
      rows.append((i, [run.summary["eval"][name].get(key, math.nan) for name in EVALUATIONS]))
  high = max([v for _, values in rows for v in values if math.isfinite(v)], default=0) or 1.0
  across = lambda value: value / high * (_WIDTH - 20)
  drawn = [f'<text y="-8" font-weight="bold">held out: {escape(title)}</text>']
  for value in (0.0, high):
    drawn.append(
      f'<line x1="{across(value)}" x2="{across(value)}" y2="{_HEIGHT}" stroke="#ddd"/>'
      f'<text x="{across(value)}" y="{_HEIGHT + 14}" text-anchor="middle">{value:.3g}</text>'
    )
  for place, (i, values) in enumerate(rows):
    if not all(map(math.isfinite, values)):
      continue
    y = (place + 0.5) * _HEIGHT / len(rows)
    warm, trained, one = (f"{across(value):.1f}" for value in values)
    drawn.append(
      f'<line x1="{warm}" x2="{trained}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_colour(i)}" '
      f'stroke-width="2"/><circle cx="{warm}" cy="{y:.1f}" r="4" fill="white" '
      f'stroke="{_colour(i)}" stroke-width="1.6"/><circle cx="{trained}" cy="{y:.1f}" r="4.5" '
      f'fill="{_colour(i)}"/><line x1="{one}" x2="{one}" y1="{y - 7:.1f}" y2="{y + 7:.1f}" '
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
