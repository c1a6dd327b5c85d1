"""Rejection sampling: chooses the successful rollouts of a policy for fine-tuning (RFT).

Source: Kimi K2.5, https://arxiv.org/abs/2602.02276, names the loop but no numbers; they are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from jaxrl_agents.types import Group, Trajectory

EASY = 0.9
"""Share of right rollouts from which a task counts as easy."""

NGRAM = 8
"""Consecutive sampled tokens that are compared."""

MAX_OVERLAP = 0.8
"""Largest share of the n-grams of a rollout that another one which is kept may have too."""


def chosen(
  groups: Iterable[Group],
  is_right: Callable[[Trajectory], bool],
  *,
  best: Callable[[Trajectory], float] | None = None,
  per_task: int = 2,
) -> list[Trajectory]:
  """The best right rollouts of each task, best first, with the tasks in order.

  A rollout is left out if it shares more than MAX_OVERLAP of its n-grams with a kept one.

  Args:
    groups: groups of the same task are pooled; failed rollouts are ignored. Tasks with the same
      prompt may have other answers, and stay apart.
    is_right: whether a finished rollout is worth imitating.
    best: the score by which rollouts of a task are preferred, the shorter of equal ones; without
      one, the shortest are.
    per_task: most rollouts of one task; an easy one gives 1.
  """
  pooled: dict[str, list[Trajectory]] = {}
  for group in groups:
    finished = [trajectory for trajectory in group.trajectories if not trajectory.error]
    pooled.setdefault(group.task.id, []).extend(finished)
  kept: list[Trajectory] = []
  for rollouts in pooled.values():
    right = sorted(filter(is_right, rollouts), key=lambda t: len(_sampled(t)))
    if best is not None:
      right.sort(key=best, reverse=True)
    most = 1 if len(right) >= EASY * len(rollouts) else per_task
    taken: list[Trajectory] = []
    for trajectory in right:
      mine = _ngrams(trajectory)
      if len(taken) < most and all(
        _overlap(mine, _ngrams(other)) <= MAX_OVERLAP for other in taken
      ):
        taken.append(trajectory)
    kept += taken
  return kept


def _sampled(trajectory: Trajectory) -> list[int]:
  """All tokens that the policy sampled."""
  return [t for segment in trajectory.segments for t in segment.tokens[segment.loss_mask].tolist()]


def _ngrams(trajectory: Trajectory) -> set[tuple[int, ...]]:
  tokens: Sequence[int] = _sampled(trajectory)
  n = min(NGRAM, max(len(tokens), 1))
  return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


def _overlap(mine: set[tuple[int, ...]], other: set[tuple[int, ...]]) -> float:
  return len(mine & other) / len(mine) if mine else math.inf
