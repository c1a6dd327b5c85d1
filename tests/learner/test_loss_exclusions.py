"""What is not trained: tokens that are too old, and rollouts that a limit cut off."""

import dataclasses

import numpy as np
import pytest

from jaxrl_agents.learner import advantage, loop, loss_exclusions
from jaxrl_agents.types import Group, Segment, Task, Trajectory


def test_masking_takes_the_loss_of_old_tokens_alone():
  mask = np.array([False, True, True, False, True])
  versions = np.where(mask, [0, 4, 8, 0, 12], -1).astype(np.int32)
  logprobs = np.where(mask, -1.5, 0).astype(np.float32)
  segment = Segment(np.arange(5, dtype=np.int32), mask, logprobs, versions, began=4)
  trajectory = Trajectory("t", (segment,), (), {}, "end", {"reward": 1.0})
  group = Group(Task("t", "toy", "", {}), (trajectory,), "g")
  (young,) = loss_exclusions.without_old_tokens(group, 8).trajectories
  (found,) = young.segments
  assert found.loss_mask.tolist() == [False, False, True, False, True]
  assert found.versions.tolist() == [-1, -1, 8, -1, 12]
  assert found.logprobs.tolist() == [0, 0, -1.5, 0, -1.5]
  assert found.tokens.tolist() == segment.tokens.tolist() and young.reward == 1.0


def rollout(reward, *, stop="answer", truncated=0.0, error=""):
  mask = np.array([False, True, True])
  logprobs, versions = np.where(mask, -1.5, 0).astype(np.float32), np.where(mask, 4, -1)
  segment = Segment(np.arange(3, dtype=np.int32), mask, logprobs, versions.astype(np.int32))
  metrics = {"truncated_turns": truncated, "reward": reward}
  return Trajectory("t", (segment,), (), {}, stop, metrics, error=error)


def of_rewards(*trajectories):
  return Group(Task("t", "toy", "", {}), trajectories, "g")


CUT_OFF = of_rewards(rollout(1.0), rollout(0.0, truncated=2.0), rollout(4.0))
"""Rewards 1, 0 and 4, of which that of 0 is truncated: their mean is 5 / 3, without it 5 / 2."""


@pytest.mark.parametrize(
  ("played", "expected"),
  [
    ({}, False),
    ({"truncated": 1.0}, True),
    ({"stop": "turn_limit"}, True),
    ({"stop": "step_limit"}, True),
    ({"stop": "context_overflow"}, True),
    ({"stop": "malformed"}, False),
    ({"stop": "turn_limit", "error": "SandboxError: lost"}, False),
  ],
)
def test_a_finished_rollout_is_truncated_if_a_limit_cut_off_a_reply_or_the_episode(
  played, expected
):
  assert loss_exclusions.is_truncated(rollout(0.0, **played)) is expected


@pytest.mark.parametrize(
  ("how", "trained", "advantages"),
  [
    ("train", [2, 2, 2], [-2 / 3, -5 / 3, 7 / 3]),
    ("mask", [2, 0, 2], [-2 / 3, -5 / 3, 7 / 3]),
    ("drop", [2, 2], [-1.5, 1.5]),
  ],
)
def test_a_truncated_rollout_is_trained_or_in_the_baseline_alone_or_left_out(
  how, trained, advantages
):
  groups = loss_exclusions.without_truncated([CUT_OFF], how)
  rollouts, metrics = advantage.score(groups)
  assert [each.loss_tokens for each in rollouts] == trained
  assert [each.advantage for each in rollouts] == pytest.approx(advantages)
  assert metrics["reward_mean"] == pytest.approx(5 / 3) and metrics["rollouts_failed"] == 0
  (marked,) = loop.annotated(groups, rollouts)
  expected = advantages if how != "drop" else [-1.5, 0.0, 1.5]
  assert [t.metrics["advantage"] for t in marked.trajectories] == pytest.approx(expected)


def test_a_group_is_constant_if_what_is_left_of_it_is():
  group = of_rewards(rollout(1.0), rollout(0.0, stop="turn_limit"), rollout(1.0))
  for how, constant in (("train", False), ("mask", False), ("drop", True)):
    (found,) = loss_exclusions.without_truncated([group], how)
    assert advantage.is_constant(found) is constant
  whole = dataclasses.replace(group, trajectories=group.trajectories[1:2])
  assert advantage.is_constant(loss_exclusions.without_truncated([whole], "drop")[0])
