"""Signal and noise of the gradients of equal parts of a batch."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import gradient_noise, losses, train_step
from jaxrl_agents.learner.gradient_noise import estimates
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.types import Group, Segment, Task, Trajectory
from tests.learner.test_loop import CFG

LEARNER = LearnerConfig(row_tokens=24, rows_per_microbatch=1, mtp_weight=0.0)


def products(gradients):
  return np.asarray(gradients) @ np.asarray(gradients).T


def test_equal_gradients_are_all_signal():
  found = estimates(products([[3.0, 4.0]] * 3))
  assert found == {"signal": 25.0, "signal_standard_error": 0.0, "noise": 0.0, "scale": 0.0}


def test_gradients_at_right_angles_are_all_noise():
  found = estimates(products(2.0 * np.eye(4)))
  assert (found["signal"], found["noise"], found["scale"]) == (0.0, 4.0, math.inf)


def test_the_estimates_are_those_that_the_gradients_were_drawn_with():
  draw = np.random.default_rng(0)
  mean = np.full(40, 0.5)  # |G|^2 = 10
  gradients = mean + 0.3 * draw.standard_normal((600, 40))  # trace 40 * 0.09
  found = estimates(products(gradients))
  assert found["signal"] == pytest.approx(10.0, abs=4 * found["signal_standard_error"])
  assert found["noise"] == pytest.approx(3.6, rel=0.02)
  assert found["scale"] == pytest.approx(0.36, rel=0.05)


def test_the_standard_error_is_the_jackknife_of_the_signal():
  gradients = np.random.default_rng(1).standard_normal((7, 5))
  signals = [estimates(products(np.delete(gradients, i, axis=0)))["signal"] for i in range(7)]
  expected = math.sqrt(6 * np.var(signals))
  assert estimates(products(gradients))["signal_standard_error"] == pytest.approx(expected)


def test_two_gradients_are_too_few():
  with pytest.raises(ValueError, match="take 3 or more"):
    estimates(np.eye(2))


def group(seed, rewards):
  """A group of rollouts of ten random tokens with these rewards."""
  tokens = np.random.default_rng(seed).integers(1, CFG.vocab_size, 10).astype(np.int32)
  mask = np.arange(10) > 0
  segment = Segment(tokens, mask, np.full(10, -2.0, np.float32) * mask, np.where(mask, 0, -1))
  play = lambda i, reward: Trajectory(
    "task",
    (dataclasses.replace(segment, tokens=np.roll(tokens, i)),),
    (),
    {},
    "end",
    {"reward": reward},
  )
  return Group(Task("task", "search", "", {}), tuple(map(play, range(len(rewards)), rewards)))


def measured(groups, parts, **objective):
  return gradient_noise.of_groups(
    params_lib.init(CFG, jax.random.key(0)),
    groups,
    cfg=CFG,
    learner=LEARNER,
    objective=train_step.Objective("rl", **objective),
    parts=parts,
  )


def test_parts_with_the_same_rollouts_have_no_noise_and_constant_groups_count_as_played():
  groups = [group(3, (0.0, 1.0))] * 3 + [group(4, (1.0, 1.0))]
  found = measured(groups, 3)
  assert found["noise"] == pytest.approx(0.0, abs=1e-6 * found["signal"])
  assert (found["rollouts"], found["groups_constant"], found["reward_mean"]) == (8, 0.25, 0.625)


def test_parts_with_other_rollouts_have_noise_in_units_of_rollouts():
  found = measured([group(seed, (0.0, 1.0, 1.0)) for seed in range(6)], 3)
  assert found["noise"] > 0
  expected = 6 * found["noise"] / found["signal"] if found["signal"] > 0 else math.inf
  assert found["rollouts_with_as_much_noise_as_signal"] == pytest.approx(expected)


@pytest.mark.parametrize(
  "objective",
  [{"loss": losses.named("decoupled_ppo")}, {"loss": losses.named("icepop")}, {"kl": 0.1}],
  ids=["decoupled_ppo", "icepop", "kl"],
)
def test_losses_that_read_other_log_probabilities_are_measured_too(objective):
  found = measured([group(seed, (0.0, 1.0, 1.0)) for seed in range(3)], 3, **objective)
  assert found["noise"] > 0


def test_groups_whose_rewards_are_equal_are_too_few_parts():
  groups = [group(0, (0.0, 1.0)), *[group(seed, (1.0, 1.0)) for seed in range(4)]]
  with pytest.raises(ValueError, match="1 of 5 groups have different rewards, too few for 3 parts"):
    measured(groups, 3)


def test_a_part_whose_rollouts_sampled_nothing_is_named():
  silent = [
    dataclasses.replace(
      each, trajectories=tuple(dataclasses.replace(t, segments=()) for t in each.trajectories)
    )
    for each in [group(seed, (0.0, 1.0)) for seed in range(3)]
  ]
  with pytest.raises(ValueError, match="the rollouts of one part sampled no token"):
    measured(silent, 3)
