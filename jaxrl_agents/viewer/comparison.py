"""Several runs side by side: evaluations as a Markdown table, curves as small charts."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxrl_agents.agents.story import Comparison
from jaxrl_agents.viewer import stories
from jaxrl_agents.viewer.inputs import Run

SMOOTHED = 5
"""Number of steps averaged for a point of the thick lines; thin lines show the steps themselves."""

_CHARTS_PER_ROW = 3
_NOT_NUMBER = "–"
_OF_POLICY = ("base", "warm_start", "trained")


def table(runs: Sequence[Run]) -> str:
  """A row of means for each evaluation; the trained one also shows gains with their lower bounds.

  Raises:
    ValueError: a run has no evaluation yet, or the runs are of several agents.
  """
  view = _view(runs)
  names = [_words(column) for column in view.columns]
  gains = [f"{_words(name)} (95 % from)" for name in view.gains]
  lines = [
    f"| run | weights | {' | '.join([*names, *gains])} |",
    "|---" * (len(names) + len(gains) + 2) + "|",
  ]
  for run in runs:
    summary = run.summary
    if not _has(summary, "eval", "trained"):
      damage = "; ".join(each for each in run.problems if "summary.json" in each)
      raise ValueError(f"{run.name} has no evaluation yet; let the run finish. {damage}".strip())
    rows = view.evaluations or summary["eval"]
    for weights in (name for name in rows if name in summary["eval"]):
      entry = summary["eval"][weights]
      cells = [_cell(_value(entry, column)) for column in view.columns]
      gain_cells = [""] * len(gains)
      if weights == "trained":
        gain_cells = [_gain(summary.get("paired_bootstrap"), name) for name in view.gains]
      lines.append(f"| {run.name} | {_words(weights)} | {' | '.join([*cells, *gain_cells])} |")
  return "\n".join(lines)


def figure(runs: Sequence[Run]) -> Figure:
  """Small charts, a colour for each run.

  The first charts show the held-out evaluations of the runs that have them: a line from the warm
  start (hollow dot) to the trained policy (full dot), and a bar for the strongest baseline.
  The others show the scalars of the steps of reinforcement learning.

  Raises:
    ValueError: no run has a step, or the runs are of several agents.
  """
  view = _view(runs)
  curves = [[row for row in run.rows if row["phase"] == "rl"] for run in runs]
  if not any(curves):
    raise ValueError("no run has a step of reinforcement learning yet")
  held_out = view.held_out if any(_evaluated(run, view) for run in runs) else ()
  count = len(held_out) + len(view.curves)
  columns = min(count, _CHARTS_PER_ROW)
  rows = -(-count // columns)
  drawing = Figure(figsize=(3.3 * columns, 2.3 * rows + 0.3), layout="constrained")
  charts = iter(drawing.subplots(rows, columns, squeeze=False).flat)
  for key in held_out:
    _draw_held_out(next(charts), key, view, runs)
  for key, title in view.curves:
    lines = [[(row["step"], row[key]) for row in rows if key in row] for rows in curves]
    _draw_curves(next(charts), title, lines)
  for unused in charts:
    unused.set_axis_off()
  marks = [Line2D([], [], color=_colour(i), label=run.name) for i, run in enumerate(runs)]
  drawing.legend(handles=marks, loc="outside upper left", ncols=len(runs), frameon=False)
  return drawing


def bars(runs: Sequence[Run]) -> Figure:
  """One group of bars for each evaluation, one bar for each run: the mean reward on the same tasks.

  Groups are sorted by their mean; the trained policy stands out. A whisker spans the 95 % bounds of
  the difference to the trained policy of the same run, drawn at the other player: where it reaches
  the dotted line of the trained policy, no difference is shown.

  Raises:
    ValueError: a run has no evaluation yet, or the runs are of several agents.
  """
  _view(runs)
  missing = [run.name for run in runs if not _has(run.summary, "eval", "trained", "reward")]
  if missing or not runs:
    raise ValueError(f"{', '.join(missing) or 'no run'} has no evaluation yet; let the run finish")
  rewards: dict[str, list[tuple[int, float]]] = {}
  for i, run in enumerate(runs):
    for name, entry in run.summary["eval"].items():
      if _finite(_value(entry, "reward")):
        rewards.setdefault(name, []).append((i, entry["reward"]))
  mean = lambda name: sum(value for _, value in rewards[name]) / len(rewards[name])
  names = sorted(rewards, key=mean)
  drawing = Figure(figsize=(6.6, 0.42 * len(names) + 0.7), layout="constrained")
  chart = drawing.subplots()
  height = 0.8 / len(runs)
  for row, name in enumerate(names):
    for i, value in rewards[name]:
      place = row - 0.4 + (i + 0.5) * height
      colour = "#1f77b4" if name == "trained" else "#bbbbbb"
      chart.barh(place, value, 0.9 * height, color=colour)
      bounds = [
        _value(runs[i].summary.get("paired_bootstrap"), f"trained_minus_{name}_{side}95")
        for side in ("upper", "lower")
      ]
      if all(map(_finite, bounds)):
        trained = runs[i].summary["eval"]["trained"]["reward"]
        chart.plot([trained - bound for bound in bounds], [place, place], color="#444444", lw=1)
  chart.axvline(mean("trained"), color="#1f77b4", lw=0.8, ls=":")
  chart.set_yticks(range(len(names)), [_words(name) for name in names])
  chart.set_title("mean reward on held-out tasks", fontweight="bold", loc="left")
  for side in ("top", "right"):
    chart.spines[side].set_visible(False)
  return drawing


def sizes(runs: Sequence[Run]) -> Figure:
  """Small charts over the sizes of tasks, a colour for each evaluation: a thick line of the means
  over the runs, weighted by their tasks of a size, and a thin one of each run.

  Raises:
    ValueError: no run has scores by size, or the runs are of several agents.
  """
  view = _view(runs)
  scored: dict[str, list[Mapping[str, Any]]] = {}
  for name in view.sized:
    found = [_value(run.summary.get("eval"), f"{name}.by_size") for run in runs]
    if kept := [entry for entry in found if entry]:
      scored[name] = kept
  if not scored:
    raise ValueError(
      "no run has scores by size; leave the drawing out, or compare runs of a swarm with "
      "swarm.tables.max_rows"
    )
  every = {size for entries in scored.values() for entry in entries for size in entry}
  order = sorted(every, key=lambda size: int(size.partition("-")[0]))
  drawing = Figure(figsize=(3.3 * len(view.sizes), 2.6), layout="constrained")
  for chart, (column, title) in zip(
    drawing.subplots(1, len(view.sizes), squeeze=False).flat, view.sizes, strict=True
  ):
    for i, entries in enumerate(scored.values()):
      for entry in entries if len(entries) > 1 else ():
        chart.plot(*_over_sizes([entry], column, order), color=_colour(i), lw=0.7, alpha=0.35)
      chart.plot(*_over_sizes(entries, column, order), "o-", color=_colour(i), lw=2, ms=3)
    chart.set_title(title, fontweight="bold", loc="left")
    chart.set_xticks(range(len(order)), order)
    chart.set_xlabel("size of the task")
    chart.set_ylim(bottom=min(0.0, chart.get_ylim()[0]))
  marks = [Line2D([], [], color=_colour(i), label=_words(name)) for i, name in enumerate(scored)]
  drawing.legend(handles=marks, loc="outside upper left", ncols=len(marks), frameon=False)
  return drawing


def _over_sizes(
  entries: Sequence[Mapping[str, Any]], column: str, order: Sequence[str]
) -> tuple[list[int], list[float]]:
  """The places of sizes in `order`, and the means of a column over the tasks of each size."""
  places, means = [], []
  for place, size in enumerate(order):
    own = [entry[size] for entry in entries if _finite(_value(entry.get(size), column))]
    count = sum(entry.get("tasks", 1) for entry in own)
    if count:
      places.append(place)
      means.append(sum(entry[column] * entry.get("tasks", 1) for entry in own) / count)
  return places, means


def save_svg(
  runs: Sequence[Run],
  file: pathlib.Path,
  draw: Callable[[Sequence[Run]], Figure] = figure,
) -> None:
  """Writes `draw(runs)`, with text as text; the same runs give the same bytes."""
  with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "runs", "font.size": 8}):
    draw(runs).savefig(file, format="svg", metadata={"Date": None})


def _view(runs: Sequence[Run]) -> Comparison:
  found = {stories.agent(run.summary) for run in runs}
  if len(found) > 1:
    raise ValueError(f"the runs are of several agents ({', '.join(sorted(found))}); name one")
  return stories.of(runs[0].summary if runs else {}).compared


def _words(name: str) -> str:
  return name.removeprefix("by_kind.").replace("_", " ").replace(".", " ")


def _value(entry: Any, column: str) -> Any:
  """The value at a path of names with dots between them; None if there is none."""
  for name in column.split("."):
    entry = entry.get(name) if isinstance(entry, Mapping) else None
  return entry


def _evaluated(run: Run, view: Comparison) -> bool:
  return all(_has(run.summary, "eval", name, "reward") for name in _shown(run, view))


def _has(entry: Any, *path: str) -> bool:
  return _value(entry, ".".join(path)) is not None


def _shown(run: Run, view: Comparison) -> tuple[str, ...]:
  """The evaluations in a panel: before training, after it, and the strongest baseline, if any."""
  found = run.summary.get("eval", {})
  reward = lambda name: _value(found, f"{name}.reward")
  scored = lambda names: [name for name in names if _finite(reward(name))]
  players = [name for name in found if name not in _OF_POLICY]
  rivals = scored(view.rivals) or view.evaluations[-1:] or scored(players)
  return "warm_start", "trained", *sorted(rivals, key=reward)[-1:]


def _draw_held_out(chart: Axes, key: str, view: Comparison, runs: Sequence[Run]) -> None:
  """A line for each evaluated run: hollow dot, full dot, and a bar for the strongest baseline."""
  chart.set_title(f"held out: {_words(key)}", fontweight="bold", loc="left")
  chart.set_yticks([])
  for i, run in enumerate(runs):
    values = [_value(run.summary.get("eval", {}), f"{name}.{key}") for name in _shown(run, view)]
    if not _evaluated(run, view) or not all(map(_finite, values)):
      continue
    warm, trained, *rivals = values
    chart.plot([warm, trained], [i, i], color=_colour(i))
    chart.plot([warm], [i], "o", color=_colour(i), markerfacecolor="white")
    chart.plot([trained], [i], "o", color=_colour(i))
    for rival in rivals:
      chart.plot([rival], [i], "|", color="#222222", markersize=12, markeredgewidth=2)
  chart.set_ylim(len(runs) - 0.5, -0.5)
  chart.set_xlim(left=min(0.0, chart.get_xlim()[0]))


def _draw_curves(chart: Axes, title: str, lines: Sequence[Sequence[tuple[float, float]]]) -> None:
  """A thin line of the steps of each run, and a thick one of their moving means."""
  chart.set_title(title, fontweight="bold", loc="left")
  for i, line in enumerate(lines):
    line = [(step, value) for step, value in line if _finite(value)]
    for shown, width, opacity in ((line, 1, 0.35), (_smoothed(line), 2, 1)):
      steps, values = [step for step, _ in shown], [value for _, value in shown]
      chart.plot(steps, values, color=_colour(i), lw=width, alpha=opacity)
  chart.set_ylim(bottom=min(0.0, chart.get_ylim()[0]))


def _smoothed(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
  """The moving means: each value is averaged over those at most half of `SMOOTHED` away."""
  half, values = SMOOTHED // 2, [value for _, value in line]
  near = [values[max(i - half, 0) : i + half + 1] for i in range(len(values))]
  return [(step, sum(v) / len(v)) for (step, _), v in zip(line, near, strict=True)]


def _colour(i: int) -> str:
  return f"C{i % 10}"


def _finite(value: Any) -> bool:
  return isinstance(value, (int, float)) and math.isfinite(value)


def _cell(value: Any) -> str:
  return f"{value:.3f}" if isinstance(value, (int, float)) else _NOT_NUMBER


def _gain(bootstrap: Any, name: str) -> str:
  gain, lower = (_value(bootstrap, f"{name}{end}") for end in ("", "_lower95"))
  return f"{gain:+.3f} ({lower:+.3f})" if _finite(gain) and _finite(lower) else _NOT_NUMBER
