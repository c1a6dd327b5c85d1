"""Scores of groups, averaged within a task and then over tasks; paired comparison of two sets.

Every score was measured by the environment (`Trajectory.rewards`); nothing is judged again. A
failed rollout has no score: it is counted, but neither averaged nor taken as 0. A task whose
rollouts all failed has no score either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxrl_agents.types import Group, Task, Trajectory

TaskScores = Mapping[str, float]  # task id -> score

_RESAMPLES_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Gain:
  """Candidate minus baseline: mean over `tasks` paired tasks with its two-sided 95 % interval."""

  mean: float
  lower95: float
  upper95: float
  tasks: int


def scores(groups: Iterable[Group]) -> dict[str, dict[str, float]]:
  """{metric: {task id: mean over its finished rollouts}}.

  Metrics: "reward", "verified_reward" (without a judge's grade), every measured reward part,
  "tokens_per_turn" (sampled) and "calls_per_turn". A metric that only some rollouts have
  ("prune_accuracy" needs a prune) is averaged over those. Several groups of one task are pooled.
  """
  values: dict[str, dict[str, list[float]]] = {}
  for group in groups:
    for trajectory in group.trajectories:
      if not trajectory.error:
        for metric, value in _measured(trajectory).items():
          values.setdefault(metric, {}).setdefault(group.task.id, []).append(value)
  return {
    metric: {task: float(np.mean(found)) for task, found in tasks.items()}
    for metric, tasks in values.items()
  }


def _measured(trajectory: Trajectory) -> dict[str, float]:
  measured = {"reward": trajectory.reward, **trajectory.rewards}
  if "verified_reward" in trajectory.metrics:
    measured["verified_reward"] = trajectory.metrics["verified_reward"]
  turns = measured.get("turns", trajectory.metrics.get("turns", 0.0))
  if turns and "sampled_tokens" in trajectory.metrics:
    measured["tokens_per_turn"] = trajectory.metrics["sampled_tokens"] / turns
  if turns and "tool_calls" in measured:
    measured["calls_per_turn"] = measured["tool_calls"] / turns
  return measured


def summary(groups: Sequence[Group]) -> dict[str, float]:
  """The mean over the tasks of every metric of `scores`, and the numbers of tasks and rollouts.

  Counts: "tasks" (with a score), "rollouts" (finished), "failed" (rollouts), "failed_tasks" (tasks
  whose rollouts all failed; they are in no mean).
  """
  by_metric = scores(groups)
  means = {metric: float(np.mean(list(tasks.values()))) for metric, tasks in by_metric.items()}
  rollouts = [trajectory for group in groups for trajectory in group.trajectories]
  failed = sum(bool(trajectory.error) for trajectory in rollouts)
  scored = len(by_metric.get("reward", {}))
  return means | {
    "tasks": float(scored),
    "rollouts": float(len(rollouts) - failed),
    "failed": float(failed),
    "failed_tasks": float(len({group.task.id for group in groups}) - scored),
  }


def entry(groups: Sequence[Group], metrics: Sequence[str] = ()) -> dict[str, float]:
  """The means over the tasks of those `metrics` that an evaluation has, in their order; all of them
  for ().
  """
  found = summary(groups)
  return {name: found[name] for name in metrics or found if name in found}


def paired_bootstrap(
  candidate: TaskScores,
  baseline: TaskScores,
  *,
  clusters: Mapping[str, str] | None = None,
  resamples: int = 10_000,
  seed: int = 0,
) -> Gain:
  """The gain of `candidate` over `baseline` on the tasks that both have.

  Tasks are resampled with replacement `resamples` times; the bounds are the 2.5 % and 97.5 %
  quantiles of the mean difference (percentile bootstrap; Efron and Tibshirani 1993, ch. 13).
  Similar tasks are not independent: with `clusters`, {task id: its cluster}, whole clusters are
  resampled.

  Raises:
    ValueError: no task is in both, a score is not finite, or `resamples` is less than 1.
  """
  tasks = sorted(set(candidate) & set(baseline))
  if not tasks:
    raise ValueError(
      "candidate and baseline have no task in common; evaluate both on the same tasks"
    )
  if resamples < 1:
    raise ValueError(f"resamples={resamples} must be at least 1")
  differences = np.array([candidate[task] - baseline[task] for task in tasks], np.float64)
  if not np.isfinite(differences).all():
    bad = tasks[int(np.flatnonzero(~np.isfinite(differences))[0])]
    raise ValueError(
      f"the scores of task {bad!r} are {candidate[bad]} and {baseline[bad]}, not finite"
    )
  names = [clusters[task] for task in tasks] if clusters else tasks
  _, place = np.unique(names, return_inverse=True)
  sums, sizes = np.bincount(place, differences), np.bincount(place)
  rng = np.random.default_rng(seed)
  means = np.empty(resamples)
  for start in range(0, resamples, _RESAMPLES_AT_ONCE):
    count = min(_RESAMPLES_AT_ONCE, resamples - start)
    drawn = rng.integers(len(sums), size=(count, len(sums)), dtype=np.int32)
    means[start : start + count] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
  lower, upper = np.quantile(means, (0.025, 0.975))
  return Gain(float(differences.mean()), float(lower), float(upper), len(tasks))


def gains(
  candidate: Sequence[Group],
  baseline: Sequence[Group],
  *,
  metrics: Sequence[str] = ("reward",),
  cluster: Callable[[Task], str] | None = None,
  resamples: int = 10_000,
  seed: int = 0,
) -> dict[str, float]:
  """Paired gains as {"reward_gain", "reward_gain_lower95", "reward_gain_upper95", ...}.

  `cluster` returns the cluster of a task, see `paired_bootstrap`.

  Raises:
    ValueError: as `paired_bootstrap`, or neither set has one of the metrics.
  """
  new, old = scores(candidate), scores(baseline)
  clusters = {group.task.id: cluster(group.task) for group in candidate} if cluster else None
  found: dict[str, float] = {}
  for metric in metrics:
    if metric not in new or metric not in old:
      raise ValueError(
        f"no metric {metric!r} in both sets; there are {sorted(set(new) & set(old))}"
      )
    gain = paired_bootstrap(
      new[metric], old[metric], clusters=clusters, resamples=resamples, seed=seed
    )
    found[f"{metric}_gain"] = gain.mean
    found[f"{metric}_gain_lower95"] = gain.lower95
    found[f"{metric}_gain_upper95"] = gain.upper95
  return found


def minus_each(
  evaluations: Mapping[str, Sequence[Group]],
  *,
  cluster: Callable[[Task], str] | None = None,
  resamples: int = 10_000,
  seed: int = 0,
) -> dict[str, float]:
  """The paired gain in reward of "trained" over every other evaluation, as
  {"trained_minus_NAME", "trained_minus_NAME_lower95", "trained_minus_NAME_upper95"}.

  Evaluations without a finished rollout on the tasks of "trained" are left out.
  """
  rewards = {name: scores(groups).get("reward", {}) for name, groups in evaluations.items()}
  trained = rewards.pop("trained")
  tasks = [group.task for group in evaluations["trained"]]
  clusters = {task.id: cluster(task) for task in tasks} if cluster else None
  found: dict[str, float] = {}
  for name, other in rewards.items():
    if set(trained) & set(other):
      gain = paired_bootstrap(trained, other, clusters=clusters, resamples=resamples, seed=seed)
      found[f"trained_minus_{name}"] = gain.mean
      found[f"trained_minus_{name}_lower95"] = gain.lower95
      found[f"trained_minus_{name}_upper95"] = gain.upper95
  return found
