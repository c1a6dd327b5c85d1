"""Advantages of rollouts, computed from the rewards of their group. numpy only: no jax.

The baseline is the mean over the finished rollouts of a group, but for those that are left out: not
over segments, and not over failures. A failed rollout does not count as a reward of 0: it is not
trained, and it does not change the advantages of the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_agents.config import import_path
from jaxrl_agents.types import LARGEST_REWARD, Group, Segment, Trajectory

DELTA = 1e-6
"""Added to a standard deviation that rewards are divided by."""

LEFT_OUT = "left_out"
"""Metric of a finished rollout that is neither trained nor in the baseline of its group."""

SKIPPED = "skipped"
"""Metric of a finished rollout whose optimizer step was left out: its gradient was not finite."""

OwnAdvantages = Callable[[np.ndarray], np.ndarray]
"""Rewards of the compared rollouts of a group, float64 [G] -> their advantages, [G]."""


@dataclasses.dataclass(frozen=True)
class Rollout:
  """What the learner trains on: the segments of one rollout, which all share its advantage.

  Attributes:
    segments: the training sequences, in the order in which they were sampled.
    advantage: the advantage of every sampled token; 1 for supervised examples.
    group: index of its group, in the order given: rollouts of a group are never split.
    reward: the scalar reward.
  """

  segments: tuple[Segment, ...]
  advantage: float = 1.0
  group: int = 0
  reward: float = 0.0

  @property
  def loss_tokens(self) -> int:
    """Sampled tokens in all segments."""
    return sum(int(s.loss_mask.sum()) for s in self.segments)

  @property
  def tokens(self) -> int:
    """All tokens in all segments."""
    return sum(len(s.tokens) for s in self.segments)


def group_advantages(totals: np.ndarray, *, normalise_std: bool = False) -> np.ndarray | None:
  """`A = R - mean(R)`, divided by `std(R) + DELTA` (population) if asked; None for a constant
  group.

  Sources: GRPO https://arxiv.org/abs/2402.03300 (with std), Dr.GRPO
  https://arxiv.org/abs/2503.20783 (without: dividing by a small std amplifies tiny differences).

  Args:
    totals: rewards of the rollouts that finished, float64 [G].
    normalise_std: whether to divide by the standard deviation.

  Returns:
    float64 [G], or None if all rewards are equal, because then nothing can be learnt from the
    group.
  """
  if totals.size == 0 or totals.max() == totals.min():
    return None
  centred = totals - totals.mean()
  return centred / (totals.std() + DELTA) if normalise_std else centred


def divides_by_std(choice: str, published: bool) -> bool:
  """Whether advantages are divided by the standard deviation of their group.

  Args:
    choice: `learner.advantage_std`.
    published: whether those that the loss was published with are.

  Raises:
    ValueError: no such choice.
  """
  choices = {"published": published, "on": True, "off": False}
  if choice not in choices:
    raise ValueError(f"learner.advantage_std={choice!r} must be one of {', '.join(choices)}")
  return choices[choice]


def load(path: str) -> OwnAdvantages:
  """The function at "package.module:name", which `learner.advantage` is.

  Raises:
    ValueError: there is no such function, or it does not make two finite numbers of the rewards
      [0, 1].
  """
  function = import_path.load(path, "learner.advantage")
  if not callable(function):
    raise ValueError(
      f"learner.advantage={path!r} is a {type(function).__name__}; name a function that makes "
      "advantages [G] of the rewards [G] of a group"
    )
  try:
    _own(function, np.array([0.0, 1.0]))
  except Exception as error:  # whatever a function of a user raises
    raise ValueError(f"learner.advantage={path!r}: {type(error).__name__}: {error}") from error
  return function


def _own(function: OwnAdvantages, totals: np.ndarray) -> np.ndarray:
  with np.errstate(over="ignore"):
    found = np.asarray(function(totals.copy()), np.float32)
  if found.shape != totals.shape or not np.isfinite(found).all():
    raise ValueError(
      f"the advantages of the rewards {totals.tolist()} are {found.tolist()}; return as many "
      "numbers, finite in float32"
    )
  return found


def is_constant(group: Group) -> bool:
  """Whether nothing can be learnt from a group: all of the rollouts that its baseline is made of
  have the same reward or no loss, or there are none.

  Raises:
    ValueError: a reward is not finite, or beyond LARGEST_REWARD.
  """
  rollouts = compared(group)
  return group_advantages(_totals(rollouts)) is None or not any(map(has_loss, rollouts))


def has_loss(rollout: Trajectory) -> bool:
  """Whether a token of the rollout is trained."""
  return any(segment.loss_mask.any() for segment in rollout.segments)


def score(
  groups: Sequence[Group],
  *,
  normalise_std: bool = False,
  own: OwnAdvantages | None = None,
) -> tuple[list[Rollout], dict[str, float]]:
  """The rollouts to train on, with their advantages, and metrics of all rollouts given.

  Failed rollouts (`error`) are dropped, those that are LEFT_OUT, and groups whose other rollouts
  all have the same reward.

  Args:
    groups: complete groups, with rewards.
    normalise_std: see `group_advantages`.
    own: makes the advantages of groups whose rewards differ, in the place of `group_advantages`.

  Returns:
    (rollouts, metrics). There are no rollouts if every group is constant; the optimizer step is
    then skipped.

  Raises:
    ValueError: a reward is not finite, or beyond LARGEST_REWARD; `own` does not return a finite
      number for each reward.
  """
  rollouts: list[Rollout] = []
  rewards: list[float] = []
  failed = constant = 0
  for index, group in enumerate(groups):
    finished = [t for t in group.trajectories if not t.error]
    failed += len(group.trajectories) - len(finished)
    rewards.extend(_totals(finished).tolist())
    trained = compared(group)
    totals = _totals(trained)
    advantages = group_advantages(totals, normalise_std=normalise_std)
    if advantages is None:
      constant += 1
      continue
    if own:
      advantages = _own(own, totals)
    rollouts.extend(
      Rollout(t.segments, float(a), index, float(r))
      for t, a, r in zip(trained, advantages, totals, strict=True)
    )
  metrics = {
    "groups": float(len(groups)),
    "groups_constant": float(constant),
    "rollouts_failed": float(failed),
    "reward_mean": float(np.mean(rewards)) if rewards else math.nan,
    "reward_std": float(np.std(rewards)) if rewards else math.nan,
  }
  return rollouts, metrics


def compared(group: Group) -> list[Trajectory]:
  """The rollouts that the baseline of a group is made of, and that have advantages."""
  return [t for t in group.trajectories if not t.error and not t.metrics.get(LEFT_OUT)]


def _totals(rollouts: Sequence[Trajectory]) -> np.ndarray:
  """The rewards of rollouts, float64 [G]."""
  return np.array([_reward(t) for t in rollouts], np.float64)


def _reward(trajectory: Trajectory) -> float:
  """The reward; ValueError if it is not finite or beyond LARGEST_REWARD, because such an episode
  must not be trained on.
  """
  if not abs(trajectory.reward) <= LARGEST_REWARD:  # NaN is not, either
    raise ValueError(
      f"the reward of a rollout of task {trajectory.task_id!r} is {trajectory.reward} from the "
      f"parts {dict(trajectory.rewards)}; rewards are finite and at most {LARGEST_REWARD:g}, and "
      "an episode that cannot be judged carries an error, not a reward"
    )
  return trajectory.reward


def split_substeps(rollouts: Sequence[Rollout], substeps: int) -> list[list[Rollout]]:
  """Disjoint mini-batches of whole groups of about equal size, one per optimizer step.

  The group with the most tokens goes first, to the mini-batch with the fewest (ties: the first), so
  the split is a pure function of its input. Fewer groups than `substeps` give fewer mini-batches,
  never an empty one.

  Args:
    rollouts: scored rollouts.
    substeps: optimizer steps per batch (4 in Context-1, trychroma.com/research/context-1).

  Returns:
    Mini-batches; within each, rollouts keep their order.
  """
  if substeps < 1:
    raise ValueError(f"substeps is {substeps}; it counts optimizer steps per batch, at least 1")
  size: dict[int, int] = {}
  for r in rollouts:
    size[r.group] = size.get(r.group, 0) + r.tokens
  bins = min(substeps, len(size))
  load, home = [0] * bins, {}
  for group in sorted(size, key=lambda g: (-size[g], g)):
    home[group] = min(range(bins), key=lambda b: (load[b], b))
    load[home[group]] += size[group]
  return [[r for r in rollouts if home[r.group] == b] for b in range(bins)]
