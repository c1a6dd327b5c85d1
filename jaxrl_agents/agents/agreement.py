"""How well grades of a judge agree with what was verified, and whether they are being exploited.

Gold is the part of the rewards that says that a rollout is right (`Agent.success`), or where an
agent has none its verified reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents import scores
from jaxrl_agents.types import Group, Task, Trajectory

HELD_OUT = "judged_held_out"
_NO_GRADES = ("judged_violations", "judged_injections")
_MOST = 4_000
"""Rollouts that are compared with each other; further ones are left out."""


def concordance(grades: Sequence[float], gold: Sequence[float]) -> float | None:
  """`P(g_i > g_j | y_i > y_j) + P(g_i = g_j | y_i > y_j) / 2` over all pairs of rollouts; None if
  all have the same gold.

  1: the grades order rollouts as gold does; 0.5: they know nothing of it. With gold of 0 and 1 it
  is the area under the ROC curve (Hanley and McNeil 1982).
  """
  g, y = np.asarray(grades, np.float64)[:_MOST], np.asarray(gold, np.float64)[:_MOST]
  above = y[:, None] > y[None, :]
  if not above.any():
    return None
  wins = (g[:, None] > g[None, :]) + 0.5 * (g[:, None] == g[None, :])
  return float(wins[above].mean())


def metrics(groups: Sequence[Group], success: str) -> dict[str, float]:
  """Metrics of a batch or an evaluation: `judge_gap`, the mean grade that is rewarded minus that by
  the held-out rubrics, and `agreement_NAME` of each rubric that graded some. {} without grades.
  """
  finished = [t for group in groups for t in group.trajectories if "judged" in t.rewards]
  if not finished:
    return {}
  gaps = [t.rewards["judged"] - t.rewards[HELD_OUT] for t in finished]
  found = {"judge_gap": float(np.mean(gaps))}
  names = {name for t in finished for name in t.rewards if name.startswith("judged_")}
  for name in sorted(names - set(_NO_GRADES)):
    graded = [t for t in finished if name in t.rewards]
    value = concordance([t.rewards[name] for t in graded], [_gold(t, success) for t in graded])
    if value is not None:
      found[f"agreement_{name.removeprefix('judged_')}"] = value
  return found


def summary(
  evaluations: Mapping[str, Sequence[Group]],
  success: str,
  *,
  cluster: Callable[[Task], str] | None = None,
  resamples: int,
  seed: int,
) -> dict[str, Any]:
  """The part of a run's summary about its judge; {} if it had none.

  {"judge": {"eval": {evaluation: mean grades and metrics}, "gap_gain", "gap_gain_lower95",
  "gap_gain_upper95", "exploited"}}. The gap's gain is that of the trained policy over the warm
  start, on the same tasks; `cluster` returns the cluster of a task, see `scores.mean_bounds`. It is
  above 0 if the rewarded grades rose more than the held-out ones; "exploited" is 1 if even its
  lower bound is.
  """
  found = {
    name: scores.entry(groups, ("verified_reward", "judged", HELD_OUT)) | each
    for name, groups in evaluations.items()
    if (each := metrics(groups, success))
  }
  if not {"trained", "warm_start"} <= set(found):
    return {}
  gaps = {name: _gaps(evaluations[name]) for name in ("trained", "warm_start")}
  if not set(gaps["trained"]) & set(gaps["warm_start"]):
    return {"judge": {"eval": found}}
  tasks = [group.task for group in evaluations["trained"]]
  clusters = {task.id: cluster(task) for task in tasks} if cluster else None
  gain = scores.paired_bootstrap(
    gaps["trained"], gaps["warm_start"], clusters=clusters, resamples=resamples, seed=seed
  )
  return {
    "judge": {
      "eval": found,
      "gap_gain": gain.mean,
      "gap_gain_lower95": gain.lower95,
      "gap_gain_upper95": gain.upper95,
      "exploited": int(gain.lower95 > 0),
    }
  }


def _gold(trajectory: Trajectory, success: str) -> float:
  rewards, metrics = trajectory.rewards, trajectory.metrics
  if success not in rewards:
    return metrics["verified_reward"]
  return rewards.get("ungated", rewards[success])  # Toggle gates it by length as well


def _gaps(groups: Sequence[Group]) -> dict[str, float]:
  """{task: mean gap of its rollouts}."""
  parts = scores.scores(groups)
  judged, held_out = parts.get("judged", {}), parts.get(HELD_OUT, {})
  return {task: judged[task] - held_out[task] for task in judged}
