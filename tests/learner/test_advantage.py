"""Advantages: the baseline is over finished rollouts, whatever else is in the group."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.own_loss.advantage import ranks
from jaxrl_agents.learner import advantage
from jaxrl_agents.types import Group, Segment, Task, Trajectory


def make_segment(tokens=5, sampled=2):
  mask = np.arange(tokens) >= tokens - sampled
  return Segment(
    tokens=np.arange(tokens, dtype=np.int32),
    loss_mask=mask,
    logprobs=np.where(mask, -0.5, 0).astype(np.float32),
    versions=np.where(mask, 3, -1).astype(np.int32),
  )


def make_trajectory(reward, segments=1, error=""):
  return Trajectory(
    task_id="t",
    segments=tuple(make_segment() for _ in range(segments)),
    log=(),
    rewards={} if error else {"f_beta": reward, "found": 1.0},
    stop="" if error else "answer",
    metrics={} if error else {"reward": reward},
    error=error,
  )


def make_group(rewards, **changes):
  task = Task(id="t", env="search", prompt="", facts={})
  return Group(task, tuple(make_trajectory(r, **changes) for r in rewards))


def advantages_of(group, **options):
  return [r.advantage for r in advantage.score([group], **options)[0]]


def test_mean_baseline_keeps_a_tiny_difference_tiny_and_std_blows_it_up():
  # Dr.GRPO: R = [1, 1, 1, .99]: mean .9975; population std .00433013, and 1e-6 more -> .57722 and
  # -1.73165.
  group = make_group([1, 1, 1, 0.99])
  np.testing.assert_allclose(advantages_of(group), [0.0025] * 3 + [-0.0075], atol=1e-12)
  with_std = advantages_of(group, normalise_std=True)
  np.testing.assert_allclose(with_std, [0.57722] * 3 + [-1.73165], atol=1e-5)


def test_a_function_of_the_rewards_takes_the_place_of_the_baseline():
  # 0.2 and 0.2 have one above and one below each: 0; the others are the first and the last of four.
  assert advantages_of(make_group([0.2, 9.0, 0.2, -1.0]), own=ranks) == [0, 1, 0, -1]
  assert advantages_of(make_group([1, 1]), own=ranks) == []  # not asked for constant groups


def test_a_function_must_make_a_finite_advantage_of_each_reward():
  group = make_group([1.0, 2.0, 5.0])
  with pytest.raises(ValueError, match=r"of the rewards \[1.0, 2.0, 5.0\] are \[0.5, 1.5\]"):
    advantages_of(group, own=lambda rewards: rewards[:2] - 0.5)
  with pytest.raises(ValueError, match="as many numbers, finite in float32"):
    advantages_of(group, own=lambda rewards: rewards * 1e39)


def test_advantages_are_divided_by_their_deviation_as_chosen_or_as_the_loss_was_published():
  for published in (True, False):
    assert advantage.divides_by_std("published", published) is published
    assert advantage.divides_by_std("on", published)
    assert not advantage.divides_by_std("off", published)
  with pytest.raises(ValueError, match="advantage_std=True must be one of published, on, off"):
    advantage.divides_by_std(True, False)


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf", "1e+16", "-1e+300"])
def test_a_reward_that_no_gradient_can_be_computed_with_is_an_error_of_its_task_and_part(reward):
  with pytest.raises(ValueError, match=r"of task 't' is .* from the parts \{'\w+': ") as found:
    advantage.score([make_group([1.0, float(reward)])])
  assert f"is {reward} from" in str(found.value)


def test_the_largest_reward_has_a_finite_advantage_in_float32():
  found = advantages_of(make_group([1e15, -1e15]))
  assert np.isfinite(np.square(np.float32(found))).all()


def test_constant_groups_are_dropped_and_nothing_is_left_when_all_are():
  groups = [make_group([1, 1, 1]), make_group([0, 1])]
  rollouts, metrics = advantage.score(groups)
  assert [r.group for r in rollouts] == [1, 1]
  assert metrics["groups_constant"] == 1
  assert metrics["reward_mean"] == pytest.approx(0.8)
  rollouts, metrics = advantage.score(groups[:1])
  assert rollouts == []
  assert metrics["groups_constant"] == 1


def test_a_group_with_one_finished_rollout_teaches_nothing():
  failed = make_trajectory(0, error="SamplerError: deadline")
  group = make_group([1.0])
  group = dataclasses.replace(group, trajectories=(*group.trajectories, failed, failed))
  rollouts, metrics = advantage.score([group])
  assert rollouts == []
  assert metrics["rollouts_failed"] == 2


rewards_lists = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=8)


@settings(max_examples=60, deadline=None)
@given(rewards_lists, st.lists(st.integers(0, 8), max_size=4), st.booleans())
def test_failed_siblings_do_not_change_the_advantages_of_others(rewards, places, std):
  group = make_group(rewards)
  mixed = list(group.trajectories)
  for place in places:
    mixed.insert(min(place, len(mixed)), make_trajectory(0, error="dead worker"))
  expected = advantages_of(group, normalise_std=std)
  with_failures = dataclasses.replace(group, trajectories=tuple(mixed))
  assert advantages_of(with_failures, normalise_std=std) == expected


@settings(max_examples=60, deadline=None)
@given(rewards_lists, st.integers(2, 5), st.integers(0, 7))
def test_extra_segments_of_a_sibling_change_no_advantage(rewards, segments, which):
  group = make_group(rewards)
  which %= len(rewards)
  longer = list(group.trajectories)
  longer[which] = make_trajectory(rewards[which], segments=segments)
  rollouts, _ = advantage.score([dataclasses.replace(group, trajectories=tuple(longer))])
  assert [r.advantage for r in rollouts] == advantages_of(group)
  if rollouts:
    assert len(rollouts[which].segments) == segments


@settings(max_examples=60, deadline=None)
@given(rewards_lists)
def test_advantages_of_a_group_sum_to_zero(rewards):
  assert sum(advantages_of(make_group(rewards))) == pytest.approx(0, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 5))
def test_substeps_are_disjoint_whole_groups_and_never_empty(lengths, substeps):
  rollouts = [
    advantage.Rollout((make_segment(n + 1, 1),), 1.0, group)
    for group, n in enumerate(lengths)
    for _ in range(2)
  ]
  parts = advantage.split_substeps(rollouts, substeps)
  assert len(parts) == min(substeps, len(lengths))
  assert all(parts)
  groups = [{r.group for r in part} for part in parts]
  assert sum(len(g) for g in groups) == len(lengths)
  assert sorted(id(r) for part in parts for r in part) == sorted(map(id, rollouts))


def test_substeps_are_balanced_by_tokens():
  # Groups of 10, 6, 5, 4, 3 tokens: longest first gives {10, 4} and {6, 5, 3}, 14 each.
  rollouts = [
    advantage.Rollout((make_segment(n, 1),), 1.0, g) for g, n in enumerate((4, 10, 3, 6, 5))
  ]
  parts = advantage.split_substeps(rollouts, 2)
  assert [[r.tokens for r in part] for part in parts] == [[4, 10], [3, 6, 5]]


def test_episodes_of_sub_agents_are_never_trained():
  group = make_group([0.0, 1.0])
  child = make_trajectory(5.0, segments=3)
  with_children = dataclasses.replace(
    group,
    trajectories=tuple(dataclasses.replace(t, children=(child,)) for t in group.trajectories),
  )
  plain, metrics = advantage.score([group])
  same, same_metrics = advantage.score([with_children])
  assert [(len(r.segments), r.advantage) for r in same] == [(1, -0.5), (1, 0.5)]
  assert same_metrics == metrics and len(plain) == len(same)
