"""What the run showed, in one sentence and one table, from its summary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.viewer.inputs import Run

COLUMNS = (
  ("warm_start", "Warm start"),
  ("trained", "Trained"),
  ("one_shot_hybrid", "One-shot hybrid"),
)
_TITLES = {
  "reward": "Reward",
  "output_recall": "Output recall",
  "trajectory_recall": "Trajectory recall",
  "output_precision": "Output precision",
  "f1": "F1 of the output",
  "answer_found": "Answer found",
  "prune_accuracy": "Pruning accuracy",
  "turns": "Turns",
  "precision": "Precision of the output",
  "num_output": "Chunks listed",
  "tool_calls": "Tool calls",
  "completed": "Episodes that answered",
}
_NOT_A_SCORE = ("tasks", "failed", "trajectories", "failed_trajectories")


@dataclasses.dataclass(frozen=True)
class Row:
  """One metric of the evaluation: its values by column and what the training changed.

  `positions` are percentages along the row's own axis, 0 to `axis_end`, for the small plot.
  """

  title: str
  values: tuple[float | None, ...]
  gain: float | None
  lower95: float | None
  axis_end: float
  positions: tuple[float | None, ...]


def sentence(run: Run) -> str:
  """The result in one sentence; what the numbers do not show is said not to be shown."""
  evaluation = _mapping(run.summary.get("eval"))
  before, after = (_mapping(evaluation.get(key)) for key in ("warm_start", "trained"))
  if number(before.get("reward")) is None or number(after.get("reward")) is None:
    return _progress(run)
  bootstrap = _mapping(run.summary.get("paired_bootstrap"))
  old, new = before["reward"], after["reward"]
  tasks = number(after.get("tasks"))
  where = f"on {tasks:,.0f} held-out tasks" if tasks else "on held-out tasks"
  gain, lower = number(bootstrap.get("reward_gain")), number(bootstrap.get("reward_gain_lower95"))
  upper = number(bootstrap.get("reward_gain_upper95"))
  gain = new - old if gain is None else gain
  moved = f"from {old:.2f} to {new:.2f} {where}"
  if lower is None:
    return f"The reward went {moved} ({signed(gain)}; no confidence bound was recorded)."
  if gain < 0 and upper is not None and upper >= 0:
    return (
      f"The reward went {moved}, but the upper 95\u00a0% bound of the gain is {signed(upper)}: "
      "no change is shown."
    )
  if gain < 0:
    return f"Reinforcement learning lowered the reward {moved} ({signed(gain)})."
  if lower <= 0:
    return (
      f"The reward went {moved}, but the lower 95\u00a0% bound of the gain is {signed(lower)}: "
      "no improvement is shown."
    )
  baseline = number(_mapping(evaluation.get("one_shot_hybrid")).get("reward"))
  against = ""
  if baseline is not None:
    side = "above" if new > baseline else "still below"
    against = f", {side} one-shot hybrid search at {baseline:.2f}"
  return (
    f"Reinforcement learning raised the reward {moved} "
    f"({signed(gain)}, at least {signed(lower)} with 95\u00a0% confidence){against}."
  )


def _progress(run: Run) -> str:
  steps = [row for row in run.rows if row["phase"] == "rl"]
  rewards = [r for r in (number(row.get("reward")) for row in steps) if r is not None]
  if not steps:
    done = len([row for row in run.rows if row["phase"] == "sft"])
    if done:
      return f"{done} steps of supervised warm-up; reinforcement learning has not started."
    return "No training step is recorded yet."
  text = f"{len(steps)} steps of reinforcement learning, no held-out evaluation yet"
  if not rewards:
    return text + "."
  if len(rewards) < 4:
    return f"{text}; the training reward is {rewards[-1]:.2f}."
  window = min(5, len(rewards) // 2)
  first, last = sum(rewards[:window]) / window, sum(rewards[-window:]) / window
  return (
    f"{text}; training reward {first:.2f} over the first {window} steps, {last:.2f} over the last."
  )


def table(run: Run) -> list[Row]:
  """The evaluation, one row a metric; metrics that no column has are left out."""
  evaluation = _mapping(run.summary.get("eval"))
  columns = [_mapping(evaluation.get(key)) for key, _ in COLUMNS]
  bootstrap = _mapping(run.summary.get("paired_bootstrap"))
  keys = dict.fromkeys([*_TITLES, *(key for column in columns for key in column)])
  rows = []
  for key in keys:
    values = tuple(number(column.get(key)) for column in columns)
    if key in _NOT_A_SCORE or all(value is None for value in values):
      continue
    gain = number(bootstrap.get(f"{key}_gain"))
    if gain is None and values[0] is not None and values[1] is not None:
      gain = values[1] - values[0]
    end = _axis_end([value for value in values if value is not None])
    rows.append(
      Row(
        title=_TITLES.get(key, key.replace("_", " ")),
        values=values,
        gain=gain,
        lower95=number(bootstrap.get(f"{key}_gain_lower95")),
        axis_end=end,
        positions=tuple(None if v is None else round(100 * max(v, 0) / end, 2) for v in values),
      )
    )
  return rows


def counts(run: Run) -> list[str]:
  """A sentence per column about how many tasks it covers and how many rollouts failed."""
  evaluation = _mapping(run.summary.get("eval"))
  sentences = []
  for key, title in COLUMNS:
    column = _mapping(evaluation.get(key))
    tasks = number(column.get("tasks"))
    failed = number(column.get("failed_trajectories", column.get("failed")))
    if tasks is not None:
      lost = f", {failed:,.0f} failed rollouts (counted apart, not scored 0)" if failed else ""
      sentences.append(f"{title}: {tasks:,.0f} tasks{lost}.")
  return sentences


def facts(run: Run) -> list[tuple[str, str]]:
  """(what, value) of the numbers beside the result: time, speed, memory, checks."""
  summary = run.summary
  steps = sum(row["phase"] == "rl" for row in run.rows)
  told = [
    ("RL steps", f"{steps:,}" if steps else None),
    ("wall-clock", duration(_total(summary.get("wall_s")))),
    ("sampler", _with_unit(summary.get("sampler_tokens_per_s"), "tokens/s")),
    ("learner", _with_unit(summary.get("learner_tokens_per_s"), "tokens/s")),
    ("drafts accepted", _percent(summary.get("draft_acceptance"))),
    ("recompiles after warm-up", _with_unit(summary.get("recompiles_after_warmup"), "")),
    ("canary, max |Δ log p|", _small(summary.get("canary_max_abs_logprob_difference"))),
    ("peak memory", _with_unit(summary.get("peak_rss_mib"), "MiB")),
    ("seed", _with_unit(summary.get("seed"), "")),
  ]
  return [(what, value) for what, value in told if value]


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
  """Nested settings as ("section.option", text) in their own order."""
  flat: list[tuple[str, str]] = []
  for key, value in values.items():
    name = f"{prefix}{key}"
    if isinstance(value, Mapping):
      flat += flatten(value, name + ".")
    else:
      flat.append((name, str(value)))
  return flat


def number(value: Any) -> float | None:
  """A finite number as float, else None."""
  if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
    return None
  return float(value)


def signed(value: float) -> str:
  """+0.66 or −0.02, with a true minus sign; a value that rounds to zero has no sign."""
  text = f"{abs(value):.2f}"
  return text if float(text) == 0 else ("+" if value > 0 else "−") + text


def duration(seconds: Any) -> str | None:
  """43 s, 13 min 32 s, or 2 h 05 min; None when `seconds` is not a number."""
  value = number(seconds)
  if value is None:
    return None
  minutes, rest = divmod(round(value), 60)
  if not minutes:
    return f"{rest} s"
  if minutes < 60:
    return f"{minutes} min {rest:02d} s"
  return f"{minutes // 60} h {minutes % 60:02d} min"


def _total(value: Any) -> Any:
  """The sum of a mapping of parts; anything else as it is."""
  if isinstance(value, Mapping):
    return sum(n for n in map(number, value.values()) if n is not None)
  return value


def _axis_end(values: Sequence[float]) -> float:
  """1 for shares, 2 for the reward's range, else the largest value with some room."""
  largest = max(values)
  return 1.0 if largest <= 1 else 2.0 if largest <= 2 else 1.15 * largest


def _mapping(value: Any) -> Mapping[str, Any]:
  return value if isinstance(value, Mapping) else {}


def _with_unit(value: Any, unit: str) -> str | None:
  n = number(value)
  return None if n is None else f"{n:,.0f} {unit}".rstrip()


def _percent(value: Any) -> str | None:
  n = number(value)
  return None if n is None else f"{100 * n:.1f} %"


def _small(value: Any) -> str | None:
  n = number(value)
  return None if n is None else f"{n:.1e}"
