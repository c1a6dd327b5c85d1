"""Toggle of Kimi K2.5: phases in which a problem that is mostly solved must be solved within a
length.

    limited phase:  r'(y_j) = r(y_j) if mean_i r(y_i) < solved or |y_j| <= budget, else 0
    free phase:     r'(y_j) = r(y_j)
    budget = percentile of |y_j| over the right rollouts of the problem's first group that has any

A group is never judged by its own lengths: the budget holds from the problem's next group on.
Otherwise exactly the longest of a group of right rollouts would always fail (ours).

The limit applies only if the group mostly solves the problem. Phases alternate, so that the policy
neither always pays for length nor forgets how to use it. |y| counts all tokens that the policy
sampled in a rollout.

Source: https://arxiv.org/abs/2602.02276 section 4.4.2. Its numbers were not published; the defaults
of config.ToggleConfig are ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_agents.types import Group

RIGHT = 1.0
"""The reward from which a rollout counts as right."""


def is_limited(step: int, phase_steps: int) -> bool:
  """Whether a training step is in a limited phase; the first phase is limited."""
  return (step // phase_steps) % 2 == 0


def length_budget(lengths: Sequence[float], rewards: Sequence[float], percentile: float) -> float:
  """The percentile (linear between neighbours) of the lengths of right rollouts; infinity if there
  are none.
  """
  right = [n for n, r in zip(lengths, rewards, strict=True) if r >= RIGHT]
  return float(np.percentile(right, percentile)) if right else math.inf


def toggled(
  rewards: Sequence[float],
  lengths: Sequence[float],
  *,
  limited: bool,
  budget: float,
  solved: float,
) -> list[float]:
  """The rewards of the rollouts of one group after the gate.

  Args:
    rewards: of the rollouts.
    lengths: of the rollouts, in tokens.
    limited: whether the training step is in a limited phase.
    budget: of the problem, in tokens.
    solved: mean reward of the group from which the budget applies.
  """
  binds = limited and sum(rewards) / max(len(rewards), 1) >= solved
  return [0.0 if binds and n > budget else r for r, n in zip(rewards, lengths, strict=True)]


class LengthBudgets:
  """Length budgets of problems. Invariant: a budget never changes once it is set."""

  def __init__(self, state: Mapping[str, float] | None = None):
    self._budgets = dict(state or {})

  def of(self, task_id: str) -> float:
    """The budget of a problem; infinity before any group with a right rollout was noted."""
    return self._budgets.get(task_id, math.inf)

  def note(
    self,
    task_id: str,
    lengths: Sequence[float],
    rewards: Sequence[float],
    *,
    percentile: float,
  ) -> None:
    """Sets the budget of a problem from a group, if it has none and the group a right rollout."""
    found = length_budget(lengths, rewards, percentile)
    if task_id not in self._budgets and not math.isinf(found):
      self._budgets[task_id] = found

  def state(self) -> dict[str, float]:
    """Every budget that is set, for JSON."""
    return dict(self._budgets)


def gated(
  groups: Sequence[Group],
  budgets: LengthBudgets,
  *,
  part: str,
  limited: bool,
  solved: float,
  percentile: float,
) -> list[Group]:
  """The groups with the success part of their rewards gated; the measured value is kept as
  "ungated".

  Lengths are the tokens that the policy sampled, over finished rollouts; those of sub-agents do not
  count. Call it once a step, before auxiliary rewards are added (`parl.parl_total`), so that these
  are not gated.
  """
  return [_gated(group, budgets, part, limited, solved, percentile) for group in groups]


def _gated(
  group: Group,
  budgets: LengthBudgets,
  part: str,
  limited: bool,
  solved: float,
  percentile: float,
) -> Group:
  finished = [t for t in group.trajectories if not t.error]
  measured = [t.rewards[part] for t in finished]
  lengths = [float(sum(s.loss_mask.sum() for s in t.segments)) for t in finished]
  budget = budgets.of(group.task.id)
  budgets.note(group.task.id, lengths, measured, percentile=percentile)
  new = iter(toggled(measured, lengths, limited=limited, budget=budget, solved=solved))
  changed = []
  for trajectory in group.trajectories:
    if not trajectory.error:
      was = trajectory.rewards
      rewards = {**was, part: next(new), "ungated": was[part]}
      trajectory = dataclasses.replace(trajectory, rewards=rewards)
    changed.append(trajectory)
  return dataclasses.replace(group, trajectories=tuple(changed))
