"""What of a batch is not trained: tokens that are too old, and rollouts that a limit cut off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from jaxrl_agents.learner.advantage import LEFT_OUT
from jaxrl_agents.types import Group, Segment, Trajectory

LIMITS = ("turn_limit", "step_limit", "context_overflow")
"""Reasons to stop (`Trajectory.stop`) that are limits of the environment."""


def is_truncated(trajectory: Trajectory) -> bool:
  """Whether a limit cut a finished rollout off: the limit of tokens one of its replies (its metric
  "truncated_turns"), whatever came after it, or one of LIMITS its episode.
  """
  cut = bool(trajectory.metrics.get("truncated_turns")) or trajectory.stop in LIMITS
  return cut and not trajectory.error


def without_truncated(
  groups: Sequence[Group], how: Literal["train", "mask", "drop"]
) -> list[Group]:
  """The groups with truncated rollouts as `learner.truncated` says.

    train  as they are
    mask   without loss; their rewards stay in the baseline of their group
    drop   marked as LEFT_OUT, so that they are in no loss and in no baseline

  Source: the overlong filtering of DAPO, https://arxiv.org/abs/2503.14476 section 3.4, is "mask".
  """

  def of(trajectory: Trajectory) -> Trajectory:
    if how == "train" or not is_truncated(trajectory):
      return trajectory
    if how == "mask":
      return _masked(trajectory, lambda segment: np.zeros_like(segment.loss_mask))
    return dataclasses.replace(trajectory, metrics={**trajectory.metrics, LEFT_OUT: 1.0})

  return [_changed(group, of) for group in groups]


def without_old_tokens(group: Group, oldest: int) -> Group:
  """The group without the loss of tokens of versions below `oldest`."""
  young = lambda segment: segment.loss_mask & (segment.versions >= oldest)
  return _changed(group, lambda trajectory: _masked(trajectory, young))


def _changed(group: Group, change: Callable[[Trajectory], Trajectory]) -> Group:
  return dataclasses.replace(group, trajectories=tuple(map(change, group.trajectories)))


def _masked(trajectory: Trajectory, trained: Callable[[Segment], np.ndarray]) -> Trajectory:
  """The rollout with loss only where `trained`, bool [T], is True in a segment."""

  def of(segment: Segment) -> Segment:
    mask = trained(segment)
    return dataclasses.replace(
      segment,
      loss_mask=mask,
      versions=np.where(mask, segment.versions, -1).astype(np.int32),
      logprobs=np.where(mask, segment.logprobs, 0).astype(np.float32),
    )

  return dataclasses.replace(trajectory, segments=tuple(map(of, trajectory.segments)))
