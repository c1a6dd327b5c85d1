"""A model that got worse is blocked, an equal one passes, and no failure helps a model."""

import math

import numpy as np
import pytest

from jaxrl_agents.realtime.regression_gate import Guard, Suite, decide

TASKS, TRIALS = 400, 120


def models(seed, shift):
  """Scores of a baseline and of a model `shift` better, whose tasks differ by 3 points of noise."""
  rng = np.random.default_rng(seed)
  old = rng.uniform(0.2, 0.9, TASKS)
  new = old + shift + rng.normal(0, 0.03, TASKS)
  as_scores = lambda values: {f"t{i}": float(value) for i, value in enumerate(values)}
  return as_scores(new), as_scores(old)


def share_that_passes(shift):
  verdicts = [
    decide([Suite("search", *models(seed, shift), margin=0.01)], resamples=500)
    for seed in range(TRIALS)
  ]
  return sum(verdict.passed for verdict in verdicts) / TRIALS


def test_a_model_three_points_worse_is_blocked_and_an_equal_one_passes():
  assert share_that_passes(-0.03) <= 0.05
  assert share_that_passes(0.0) >= 0.90


def test_an_equal_model_is_blocked_when_the_suite_is_too_small_to_tell():
  new = {"a": 0.9, "b": 0.1}
  old = {"a": 0.1, "b": 0.9}
  verdict = decide([Suite("tiny", new, old)])
  assert not verdict.passed
  assert "lower 95 % bound -0.8000 is below -0.01" in verdict.reasons[0]
  assert verdict.gains["tiny"].mean == 0


def test_a_candidate_cannot_pass_by_failing_its_hard_tasks():
  verdict = decide([Suite("search", {"easy": 1.0}, {"easy": 0.9, "hard": 0.1})])
  assert not verdict.passed
  assert "1 of 2 tasks, 'hard' for one" in verdict.reasons[0]


def test_every_suite_must_pass():
  fine, worse = {"a": 0.5, "b": 0.5}, {"a": 0.4, "b": 0.4}
  verdict = decide([Suite("fine", fine, fine), Suite("worse", worse, fine)])
  assert [reason.partition(":")[0] for reason in verdict.reasons] == ["worse"]


def test_a_guard_blocks_a_move_of_more_than_three_deviations_either_way():
  history = [0.10, 0.11, 0.09, 0.10, 0.10]  # mean 0.1, deviation 0.00707
  suite = Suite("search", {"a": 1.0}, {"a": 1.0})
  passes = lambda value: decide([suite], [Guard("tool errors", history, value)]).passed
  assert passes(0.121) and passes(0.079)
  assert not passes(0.122) and not passes(0.078)
  assert not passes(math.nan)


def test_a_move_beyond_the_limit_of_a_guard_is_blocked_however_much_its_history_varies():
  wide = (0.1, 0.5, 0.1, 0.5, 0.3, 0.3)  # mean 0.3, three deviations are 0.54
  scores = {"t": 1.0, "u": 1.0}
  suite = Suite("search", scores, scores)
  said = lambda **changes: decide([suite], [Guard("entropy", wide, **changes)]).reasons
  assert not said(value=0.01)
  (reason,) = said(value=0.01, limit=0.225)
  assert reason == "entropy: 0.01 is more than 0.225 from the mean of its history, 0.3"
  assert said(value=0.59, limit=0.225)
  assert not said(value=0.08, limit=0.225)
  assert not said(value=0.01, limit=0.225, standard_error=0.03)  # 0.29 may be 0.225 by chance


def test_a_guard_with_little_history_is_listed_as_unchecked():
  verdict = decide([Suite("s", {"a": 1.0}, {"a": 1.0})], [Guard("length", [1.0] * 4, 99.0)])
  assert verdict.passed and verdict.unchecked == ("length",)


def test_a_history_of_equal_values_lets_the_same_value_pass_and_no_other():
  suite = Suite("s", {"a": 1.0}, {"a": 1.0})
  assert decide([suite], [Guard("length", [0.1] * 6, 0.1)]).passed
  assert not decide([suite], [Guard("length", [0.1] * 6, 0.11)]).passed


def test_a_gate_without_suites_is_an_error():
  with pytest.raises(ValueError, match="give at least one"):
    decide([])
