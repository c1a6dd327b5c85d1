"""The result of a run in one sentence and one table, computed from its summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents import scores
from jaxrl_agents.agents.formats import duration, mapping, number, signed
from jaxrl_agents.agents.story import Section, Story
from jaxrl_agents.viewer import stories
from jaxrl_agents.viewer.inputs import Run

_BOUNDS = ("", "_lower95", "_upper95")


@dataclasses.dataclass(frozen=True)
class Row:
  """One metric of the evaluation: its values by column, and the change through training.

  `positions` are percentages along the row's own axis, from 0 to `axis_end`, for the small plot.
  For a cost, the upper bound of the gain is shown instead of the lower. `section` is the heading of
  the rows that share it.
  """

  title: str
  values: tuple[float | None, ...]
  gain: float | None
  lower95: float | None
  axis_end: float
  positions: tuple[float | None, ...]
  upper95: float | None = None
  section: str = ""


def sentence(run: Run) -> str:
  """The result in one or two sentences; it says so if the numbers do not show an effect."""
  story = stories.of(run.summary)
  evaluation = mapping(run.summary.get("eval"))
  before, after = (mapping(evaluation.get(key)) for key in ("warm_start", "trained"))
  if number(before.get(story.score)) is None or number(after.get(story.score)) is None:
    return _progress(run)
  told = [_change(run, story, before, after), story.addition(run.summary)]
  return " ".join(filter(None, told))


def _change(run: Run, story: Story, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
  """What training changed, claiming no more than the bounds allow."""
  bootstrap = mapping(run.summary.get("paired_bootstrap"))
  old, new = before[story.score], after[story.score]
  tasks = number(after.get("tasks"))
  where = f"on {tasks:,.0f} held-out tasks" if tasks else "on held-out tasks"
  gain = number(bootstrap.get(f"{story.gain}_gain"))
  lower, upper = (
    number(bootstrap.get(f"{story.gain}_gain_{side}95")) for side in ("lower", "upper")
  )
  gain = new - old if gain is None else gain
  moved = f"from {old:.2f} to {new:.2f} {where}"
  if lower is None:
    return f"The {story.noun} went {moved} ({signed(gain)}; no confidence bound was recorded)."
  if gain < 0 and upper is not None and upper >= 0:
    return (
      f"The {story.noun} went {moved}, but the upper 95\u00a0% bound of the gain is "
      f"{signed(upper)}: no change is shown."
    )
  if gain < 0:
    return f"Reinforcement learning lowered the {story.noun} {moved} ({signed(gain)})."
  if lower <= 0:
    return (
      f"The {story.noun} went {moved}, but the lower 95\u00a0% bound of the gain is "
      f"{signed(lower)}: no improvement is shown."
    )
  evaluations = mapping(run.summary["eval"])
  scored = [
    (score, words)
    for name, words in story.baselines.items()
    if (score := number(mapping(evaluations.get(name)).get(story.score))) is not None
  ]
  against = ""
  if scored:
    baseline, words = max(scored)
    side = "above" if new > baseline else "still below" if new < baseline else "level with"
    against = f", {side} {words} at {baseline:.2f}"
  return (
    f"Reinforcement learning raised the {story.noun} {moved} "
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
  """One row for each metric of the evaluation, over all tasks and then by kind of task; metrics
  without a value are left out.
  """
  story = stories.of(run.summary)
  evaluation = mapping(run.summary.get("eval"))
  columns = [mapping(evaluation.get(key)) for key, _ in story.columns]
  keys = dict.fromkeys([*story.titles, *(key for column in columns for key in column)])
  shown = story.titles if story.closed else keys
  bootstrap = mapping(run.summary.get("paired_bootstrap"))
  rows = _rows(story, columns, list(shown), bootstrap, _section("All tasks", columns, story))
  for kind, title in story.kinds:
    of_kind = [mapping(mapping(column.get("by_kind")).get(kind)) for column in columns]
    rows += _rows(story, of_kind, story.kind_metrics, {}, _section(title, of_kind, story))
  return rows


def _section(title: str, columns: Sequence[Mapping[str, Any]], story: Story) -> str:
  """The heading of the rows of some tasks, if there are several sections."""
  tasks = next((n for n in (number(column.get("tasks")) for column in columns) if n), None)
  if not story.kinds:
    return ""
  return title if tasks is None else f"{title} · {tasks:,.0f}"


def _rows(
  story: Story,
  columns: Sequence[Mapping[str, Any]],
  keys: Sequence[str],
  bootstrap: Mapping[str, Any],
  section: str,
) -> list[Row]:
  rows = []
  for key in keys:
    values = tuple(_value(story, column, key) for column in columns)
    no_score = key in scores.COUNTS or key.endswith(_BOUNDS[1:])
    if no_score or all(value is None for value in values):
      continue
    told = story.gain if key == story.score else key
    gain = number(bootstrap.get(f"{told}_gain"))
    if gain is None and values[0] is not None and values[1] is not None:
      gain = values[1] - values[0]
    end = _axis_end([value for value in values if value is not None])
    bounds = {side: number(bootstrap.get(f"{told}_gain_{side}95")) for side in ("lower", "upper")}
    rows.append(
      Row(
        title=story.titles.get(key, key.replace("_", " ")),
        values=values,
        gain=gain,
        lower95=None if key in story.costs else bounds["lower"],
        axis_end=end,
        positions=tuple(None if v is None else round(100 * max(v, 0) / end, 2) for v in values),
        upper95=bounds["upper"] if key in story.costs else None,
        section=section,
      )
    )
  return rows


def _value(story: Story, column: Mapping[str, Any], key: str) -> float | None:
  without = key in story.of_sub_agents and column.get("width") == 0
  return None if without else number(column.get(key))


def beside(run: Run) -> list[Section]:
  """A section that compares the trained policy with every other evaluation by the reward; none
  without evaluations.
  """
  evaluation = mapping(run.summary.get("eval"))
  bootstrap = mapping(run.summary.get("paired_bootstrap"))
  rewards = {name: number(mapping(entry).get("reward")) for name, entry in evaluation.items()}
  rows = []
  for name, reward in sorted(rewards.items(), key=lambda pair: pair[1] or 0.0):
    if reward is None:
      continue
    found = [number(bootstrap.get(f"trained_minus_{name}{end}")) for end in _BOUNDS]
    gain, lower, upper = found
    told = "" if gain is None else signed(gain)
    bounds = "" if lower is None or upper is None else f"{signed(lower)} to {signed(upper)}"
    rows.append((name.replace("_", " "), f"{reward:.3f}", told, bounds))
  if len(rows) < 2:
    return []
  text = (
    "Every player had the same tasks in the same environment. Bounds are of the difference on the "
    "same tasks, from a paired bootstrap."
  )
  header = ("Player", "Reward", "Trained minus it", "95\u00a0% bounds")
  return [Section("Beside the baselines", text, header, tuple(rows))]


def judge(run: Run) -> list[Section]:
  """A section on the judge's rubrics: grades, and agreement with gold; none without a judge."""
  found = mapping(run.summary.get("judge"))
  evaluations = {name: mapping(each) for name, each in mapping(found.get("eval")).items()}
  before, after = evaluations.get("warm_start", {}), evaluations.get("trained", {})
  names = [key.removeprefix("agreement_") for key in after if key.startswith("agreement_")]
  told = lambda value: "" if value is None else f"{value:.3f}"
  rows = tuple(
    (
      name.replace("_", " "),
      told(number(before.get(f"agreement_{name}"))),
      told(number(after.get(f"agreement_{name}"))),
    )
    for name in names
  )
  gain, lower, upper = (number(found.get(f"gap_gain{end}")) for end in _BOUNDS)
  if gain is None or lower is None or upper is None:
    return []
  text = (
    "Agreement is the share of pairs of rollouts that a rubric orders as the verified reward does; "
    "0.5 knows nothing of it. Rewarded grades minus held-out ones changed by "
    f"{signed(gain)} ({signed(lower)} to {signed(upper)}) from the warm start to the trained "
    "policy. "
  )
  text += (
    "The policy has learnt what pleases the rewarded rubrics and not the held-out one."
    if lower > 0
    else "This is no sign that the rewarded rubrics are exploited."
  )
  return [Section("Judge", text, ("Rubric", "Agreement before", "Agreement trained"), rows)]


def counts(run: Run) -> list[str]:
  """A sentence per column about how many tasks it covers and how many rollouts failed."""
  evaluation = mapping(run.summary.get("eval"))
  sentences = []
  for key, title in stories.of(run.summary).columns:
    column = mapping(evaluation.get(key))
    tasks = number(column.get("tasks"))
    failed = number(column.get("failed_trajectories", column.get("failed")))
    if tasks is not None:
      lost = f", {failed:,.0f} failed rollouts (counted apart, not scored 0)" if failed else ""
      sentences.append(f"{title}: {tasks:,.0f} tasks{lost}.")
  return sentences


def facts(run: Run) -> list[tuple[str, str]]:
  """(name, value) of further numbers: time, speed, memory, checks."""
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
    *stories.of(summary).facts(summary),
  ]
  return [(what, value) for what, value in told if value]


def _total(value: Any) -> Any:
  """The sum of a mapping; any other value as it is."""
  if isinstance(value, Mapping):
    return sum(n for n in map(number, value.values()) if n is not None)
  return value


def _axis_end(values: Sequence[float]) -> float:
  """1 for shares, 2 for the reward's range, else the largest value with some room."""
  largest = max(values)
  return 1.0 if largest <= 1 else 2.0 if largest <= 2 else 1.15 * largest


def _with_unit(value: Any, unit: str) -> str | None:
  n = number(value)
  return None if n is None else f"{n:,.0f} {unit}".rstrip()


def _percent(value: Any) -> str | None:
  n = number(value)
  return None if n is None else f"{100 * n:.1f} %"


def _small(value: Any) -> str | None:
  n = number(value)
  return None if n is None else f"{n:.1e}"
