"""Scores of groups, averaged within a task and then over tasks, with intervals; pass@k; paired
comparison of two sets.

Every score was measured by the environment (`Trajectory.rewards`); nothing is judged again. A
failed rollout has no score: it is counted, but neither averaged nor taken as 0. A task whose
rollouts all failed has no score either.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxrl_agents.types import Group, Task, Trajectory

TaskScores = Mapping[str, float]  # task id -> score

COUNTS = ("tasks", "rollouts", "failed", "failed_tasks")
"""What `summary` counts beside the means of the metrics."""

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

  Metrics: "reward" (what is trained, also where a part has this name), "verified_reward" (without a
  judge's grade), every measured reward part, "tokens_per_turn" (sampled) and "calls_per_turn". A
  metric that only some rollouts have ("prune_accuracy" needs a prune) is averaged over those.
  Several groups of one task are pooled.
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
  parts = {name: part for name, part in trajectory.rewards.items() if name != "reward"}
  measured = {"reward": trajectory.reward, **parts}
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
  tasks = len({group.task.id for group in groups})
  counts = (scored, len(rollouts) - failed, failed, tasks - scored)
  return means | dict(zip(COUNTS, map(float, counts), strict=True))


def entry(groups: Sequence[Group], metrics: Sequence[str] = ()) -> dict[str, float]:
  """The means over the tasks of those `metrics` that an evaluation has, in their order; all of them
  for ().
  """
  found = summary(groups)
  return {name: found[name] for name in metrics or found if name in found}


def reward_bounds(
  groups: Sequence[Group],
  *,
  cluster: Callable[[Task], str] | None = None,
  resamples: int = 10_000,
  seed: int = 0,
) -> dict[str, float]:
  """{"reward_lower95", "reward_upper95"} of the mean reward over tasks, see `mean_bounds`; {} if no
  rollout has finished. `cluster` returns the cluster of a task.

  Raises:
    ValueError: as `mean_bounds`.
  """
  rewards = scores(groups).get("reward", {})
  if not rewards:
    return {}
  clusters = {group.task.id: cluster(group.task) for group in groups} if cluster else None
  lower, upper = mean_bounds(rewards, clusters=clusters, resamples=resamples, seed=seed)
  return {"reward_lower95": lower, "reward_upper95": upper}


def pass_at_k(rollouts: int, right: int, k: int) -> float:
  """`1 - C(n - c, k) / C(n, k)` of n rollouts of a task, c of them right: the unbiased estimate of
  the probability that one of k rollouts is right (Chen et al. 2021,
  https://arxiv.org/abs/2107.03374, equation 1).

  Raises:
    ValueError: k is not in 1 to n.
  """
  if not 1 <= k <= rollouts:
    raise ValueError(f"k={k} is not in 1 to {rollouts}, the number of rollouts; play more of them")
  return 1.0 - math.comb(rollouts - right, k) / math.comb(rollouts, k)


def passes(groups: Iterable[Group], success: str, *, threshold: float) -> dict[str, float]:
  """{"pass_at_1", "pass_at_2", "pass_at_4", ...}: means of `pass_at_k` over tasks, for powers of
  two up to the largest number of finished rollouts of a task; {} if that is below 2.

  Args:
    groups: several of one task are pooled.
    success: the part of the rewards that says that a rollout is right; a rollout without it counts
      by its reward.
    threshold: from which value on it is right.

  A task with fewer than k finished rollouts is not in the mean of k.
  """
  right: dict[str, list[bool]] = {}
  for group in groups:
    for trajectory in group.trajectories:
      if not trajectory.error:
        value = trajectory.rewards.get(success, trajectory.reward)
        right.setdefault(group.task.id, []).append(value >= threshold)
  most = max(map(len, right.values()), default=0)
  if most < 2:
    return {}
  found = {}
  for k in itertools.takewhile(lambda k: k <= most, (2**i for i in itertools.count())):
    each = [pass_at_k(len(task), sum(task), k) for task in right.values() if len(task) >= k]
    found[f"pass_at_{k}"] = float(np.mean(each))
  return found


def mean_bounds(
  values: TaskScores,
  *,
  clusters: Mapping[str, str] | None = None,
  resamples: int = 10_000,
  seed: int = 0,
) -> tuple[float, float]:
  """The two-sided 95 % interval of the mean of `values` over tasks.

  Tasks are resampled with replacement `resamples` times; the bounds are the 2.5 % and 97.5 %
  quantiles of the mean (percentile bootstrap; Efron and Tibshirani 1993, ch. 13). Similar tasks are
  not independent: with `clusters`, {task id: its cluster}, whole clusters are resampled.

  Raises:
    ValueError: there is no task, a value is not finite, or `resamples` is less than 1.
  """
  if not values or resamples < 1:
    raise ValueError(
      f"an interval needs a task and a resample; there are {len(values)} tasks, and resamples="
      f"{resamples}"
    )
  tasks = sorted(values)
  numbers = np.array([values[task] for task in tasks], np.float64)
  if not np.isfinite(numbers).all():
    bad = tasks[int(np.flatnonzero(~np.isfinite(numbers))[0])]
    raise ValueError(f"the score of task {bad!r} is {values[bad]}, not finite")
  _, place = np.unique(
    [clusters[task] for task in tasks] if clusters else tasks, return_inverse=True
  )
  sums, sizes = np.bincount(place, numbers), np.bincount(place)
  rng = np.random.default_rng(seed)
  means = np.empty(resamples)
  for start in range(0, resamples, _RESAMPLES_AT_ONCE):
    count = min(_RESAMPLES_AT_ONCE, resamples - start)
    drawn = rng.integers(len(sums), size=(count, len(sums)), dtype=np.int32)
    means[start : start + count] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
  lower, upper = np.quantile(means, (0.025, 0.975))
  return float(lower), float(upper)


def paired_bootstrap(
  candidate: TaskScores,
  baseline: TaskScores,
  *,
  clusters: Mapping[str, str] | None = None,
  resamples: int = 10_000,
  seed: int = 0,
) -> Gain:
  """The gain of `candidate` over `baseline` on the tasks that both have, with the `mean_bounds` of
  its differences.

  Raises:
    ValueError: no task is in both, a score is not finite, or `resamples` is less than 1.
  """
  tasks = sorted(set(candidate) & set(baseline))
  if not tasks:
    raise ValueError(
      "candidate and baseline have no task in common; evaluate both on the same tasks"
    )
  differences = {task: candidate[task] - baseline[task] for task in tasks}
  for task, difference in differences.items():
    if not math.isfinite(difference):
      raise ValueError(
        f"the scores of task {task!r} are {candidate[task]} and {baseline[task]}, not finite"
      )
  lower, upper = mean_bounds(differences, clusters=clusters, resamples=resamples, seed=seed)
  return Gain(float(np.mean(list(differences.values()))), lower, upper, len(tasks))


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

  `cluster` returns the cluster of a task, see `mean_bounds`.

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
