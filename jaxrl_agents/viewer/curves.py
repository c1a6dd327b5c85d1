"""The charts of a run: which scalars are drawn together, their titles and units, and their data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.story import Panel
from jaxrl_agents.viewer import stories
from jaxrl_agents.viewer.inputs import Run, spread

PHASE_TITLES = {
  "sft": "Supervised warm-up",
  "mtp": "Draft modules",
  "rl": "Reinforcement learning",
}
MAX_POINTS = 800

_PART_TITLES = {
  "install": "Install",
  "imports": "Imports",
  "tasks": "Tasks",
  "index": "Index",
  "demonstrations": "Demonstrations",
  "warm_up": "Supervised warm-up",
  "start": "Start",
  "compile_sampler": "Compilation, sampler",
  "learn": "Reinforcement learning",
  "evaluate_warm_start": "Evaluation, warm start",
  "evaluate_trained": "Evaluation, trained",
  "evaluate_others": "Evaluation, others",
}

_NOT_DRAWN = ("phase", "step", "wall_s", "time")
HELD_OUT = "held_out/"
"""Before the name of a score of the evaluator, which is drawn beside that of training."""


PANELS = (
  Panel("Reward", "weighted total, mean over tasks", ("reward",)),
  Panel("Reward parts", "before weighting", ("reward/",)),
  Panel("Turns", "per episode", ("turns",), low=0.0),
  Panel("Tool calls per turn", "", ("calls_per_turn",), low=0.0),
  Panel("Tokens per turn", "sampled", ("tokens_per_turn",), low=0.0),
  Panel("Completed", "share of episodes that answered", ("completed",), low=0.0, high=1.0),
  Panel("Entropy", "of the policy, nats per token", ("entropy",), low=0.0),
  Panel("Draft acceptance", "share of drafted tokens kept", ("draft_acceptance",), 0.0, 1.0),
  Panel(
    "Canary",
    "max |Δ log p|, sampler to learner",
    ("canary_max_abs_logprob_difference",),
    scale="log",
  ),
  Panel("Loss", "global token mean", ("loss",)),
  Panel("Gradient norm", "before clipping", ("grad_norm",), low=0.0),
  Panel("Largest ratio", "policy over behaviour, per token", ("ratio_max",)),
  Panel("Throughput", "tokens per second", ("sampler_tokens_per_s", "learner_tokens_per_s"), 0.0),
  Panel("Seconds per step", "", ("collect_s", "learn_s", "publish_s", "save_s"), low=0.0),
  Panel("Idle", "share of the time", ("sampler_idle_share", "learner_idle_share"), 0.0, 1.0),
  Panel("Queue", "groups", ("groups_in_flight", "groups_ready"), low=0.0),
  Panel("Age of rollouts", "publications since the oldest token", ("age_mean", "age_max"), low=0.0),
  Panel("Pause for new weights", "seconds of a step", ("pause_s",), low=0.0),
  Panel("Published", "bytes of a step", ("publish_bytes",), low=0.0),
  Panel("Memory", "resident, MiB", ("rss_mib",), low=0.0),
)


def phases(run: Run) -> list[dict[str, Any]]:
  """For each phase: steps, elapsed seconds, the columns of numbers, and the panels with data.

  Values that are not finite are None (a gap in the line). If there are more than MAX_POINTS rows,
  evenly spaced ones are kept; "count" is the number of all. A scalar that no panel names gets its
  own panel under `others`. Scores of the evaluator are drawn with the scalars of their names.
  """
  found = []
  for phase in dict.fromkeys(row["phase"] for row in run.rows):
    rows = sorted((row for row in run.rows if row["phase"] == phase), key=lambda row: row["step"])
    count = len(rows)
    kept = {id(rows[i]) for i in spread(len(rows), MAX_POINTS)}
    scored = {row["step"] for row in run.held_out} if phase == "rl" else set()
    rows = [row for row in rows if id(row) in kept or row["step"] in scored]
    if phase == "rl":
      rows = with_held_out(rows, run.held_out)
    columns = _columns(rows)
    own: tuple[Panel, ...] = ()
    if phase == "rl":
      story, options = stories.of(run.summary), stories.options(run.summary)
      own = story.panels
      columns |= story.computed(options, [row["step"] for row in rows])
    panels = [panel for panel in (_panel(p, columns) for p in (*own, *PANELS)) if panel]
    drawn = {key for panel in panels for key in panel["keys"]}
    others = [
      _panel(Panel(_words(key), "", (key,)), columns)
      for key in columns
      if key not in drawn and key.removeprefix(HELD_OUT) not in columns.keys() - {key}
    ]
    found.append(
      {
        "phase": phase,
        "title": PHASE_TITLES.get(phase, phase),
        "count": count,
        "steps": [row["step"] for row in rows],
        "wall_s": _elapsed(rows),
        "columns": columns,
        "panels": panels,
        "others": others,
      }
    )
  return sorted(found, key=lambda entry: entry["phase"] != "rl")


def with_held_out(
  rows: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
  """The rows with what the evaluator found, as "held_out/NAME", at the step that it is of.

  The score of weights after n steps stands beside the rollouts of step n, which the same weights
  have sampled unless they were played ahead. Steps without a row get one.
  """
  found: dict[int, Mapping[str, Any]] = {row["step"]: row for row in rows}
  for record in held_out:
    step = int(record["step"])
    scored = {HELD_OUT + name: value for name, value in record["scores"].items()}
    found[step] = {"phase": "rl", "step": step, **found.get(step, {}), **scored}
  return [found[step] for step in sorted(found)]


def wall_clock(run: Run) -> list[tuple[str, float]]:
  """(phase, seconds) in the order of the run.

  The seconds come from the summary's `wall_s` if it has the phase. Otherwise, and for every phase
  of an unfinished run, they are the time between the phase's first and last row.
  """
  told = run.summary.get("wall_s")
  parts = dict(told) if isinstance(told, Mapping) else {}
  found = []
  for phase in dict.fromkeys(row["phase"] for row in run.rows):
    known = [s for s in _elapsed([r for r in run.rows if r["phase"] == phase]) if s is not None]
    told_as = {"rl": "learn", "sft": "warm_up", "mtp": "warm_up"}.get(phase, phase)
    if known and told_as not in parts:
      found.append((PHASE_TITLES.get(phase, phase), max(known)))
  found += [(_PART_TITLES.get(name, _words(name)), _number(s) or 0.0) for name, s in parts.items()]
  return [(name, seconds) for name, seconds in found if seconds > 0]


def _elapsed(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
  """Seconds of each row: its `wall_s`, else its `time` since the first row given."""
  times = [_epoch(row.get("time")) for row in rows]
  start = min((t for t in times if t is not None), default=0.0)
  return [
    _number(row["wall_s"]) if "wall_s" in row else None if t is None else _number(t - start)
    for row, t in zip(rows, times, strict=True)
  ]


def _epoch(value: Any) -> float | None:
  return float(value) if _number(value) is not None else None


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
  """Every numeric scalar of the rows as one column; keys in alphabetical order."""
  keys = sorted({key for row in rows for key in row} - set(_NOT_DRAWN))
  columns = {key: [_number(row.get(key)) for row in rows] for key in keys}
  return {key: column for key, column in columns.items() if any(x is not None for x in column)}


def _panel(panel: Panel, columns: Mapping[str, Any]) -> dict[str, Any] | None:
  keys: list[str] = []
  for key in panel.keys:
    keys += [k for k in columns if k.startswith(key)] if key.endswith("/") else [key]
  keys = [each for key in keys for each in (key, HELD_OUT + key) if each in columns]
  if not keys:
    return None
  return {
    "title": panel.title,
    "note": panel.note,
    "keys": keys,
    "labels": [
      ("held out: " if key.startswith(HELD_OUT) else "") + _words(key.rpartition("/")[2])
      for key in keys
    ],
    "scale": panel.scale,
    "low": panel.low,
    "high": panel.high,
  }


def _words(key: str) -> str:
  return key.replace("_", " ").replace("/", " / ")


def _number(value: Any) -> float | None:
  """A finite float to 6 significant digits, else None."""
  if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
    return None
  return float(f"{value:.6g}")
