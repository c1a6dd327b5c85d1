"""The sequential test: its formula by hand, its alarms by simulation with numpy alone."""

import math

import numpy as np
import pytest

from jaxrl_agents.realtime.sequential_test import Comparison, Mean, half_width


def widths(n, deviation, alpha):
  """The formula, written again for arrays."""
  spread = -2 * np.log(alpha)
  rho2 = (spread + np.log(spread + 1)) / 300
  inside = (n * rho2 + 1) / (n**2 * rho2) * 2 * np.log(np.sqrt(n * rho2 + 1) / alpha)
  return deviation * np.sqrt(inside)


def test_the_half_width_is_that_of_the_paper():
  # alpha = e^-2: -2 ln alpha = 4, rho^2 = (4 + ln 5) / 300 = 0.018698. n = 100: n rho^2 + 1 =
  # 2.8698, ln(sqrt(2.8698) e^2) = 2.52714, 2 * 2.8698 / 186.98 = 0.030696; sqrt(0.077574) = 0.27852
  assert half_width(100, 1.0, math.exp(-2)) == pytest.approx(0.27852, abs=1e-5)
  assert half_width(100, 3.0, math.exp(-2)) == pytest.approx(3 * 0.27852, abs=3e-5)
  assert half_width(0, 1.0, 0.05) == math.inf


def test_running_means_and_deviations_are_those_of_numpy():
  values = np.random.default_rng(0).normal(5, 2, 100)
  found = Mean()
  for value in values:
    found.add(float(value))
  assert (found.n, found.mean) == (100, pytest.approx(values.mean()))
  assert found.deviation == pytest.approx(values.std())


def alarms(stable, canary, share, runs=150, sessions=4_000):
  """Canary sessions until the alarm in each of `runs`; nan where there is none."""
  rng = np.random.default_rng(1)
  in_canary = rng.random((runs, sessions)) < share
  rewards = rng.random((runs, sessions)) < np.where(in_canary, canary, stable)
  counts = [np.maximum(arm.cumsum(1), 1) for arm in (in_canary, ~in_canary)]
  means = [
    (rewards & arm).cumsum(1) / n for arm, n in zip((in_canary, ~in_canary), counts, strict=True)
  ]
  own, other = (np.sqrt(mean * (1 - mean)) for mean in means)
  bounds = [
    means[0] + widths(counts[0], np.maximum(own, other), 0.025),
    means[1] - widths(counts[1], other, 0.025),
  ]
  alarm = (bounds[0] < bounds[1]) & (in_canary.cumsum(1) >= 30)
  first = alarm.argmax(1)
  count = in_canary.cumsum(1)[np.arange(runs), first]
  return np.where(alarm.any(1), count, np.nan), in_canary, rewards, first


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("rate", [0.02, 0.6])
def test_equal_arms_are_seldom_told_apart_in_4000_looks(share, rate):
  found, *_ = alarms(rate, rate, share)
  assert np.isfinite(found).mean() <= 0.05


def test_a_fall_from_0_6_to_0_4_is_caught_within_190_canary_sessions():
  found, in_canary, rewards, first = alarms(0.6, 0.4, 0.1)
  assert np.isfinite(found).mean() >= 0.99
  assert np.nanmedian(found) == pytest.approx(109, abs=15)
  assert np.nanquantile(found, 0.9) <= 190
  for run in range(5):  # and ours says so at the same session
    comparison = Comparison()
    told = [
      comparison.add(float(reward), canary=bool(canary))
      for reward, canary in zip(rewards[run], in_canary[run], strict=True)
    ]
    assert told.index(True) == first[run] and all(told[first[run] :])


def test_nothing_is_said_before_30_canary_sessions():
  comparison = Comparison()
  for _ in range(1_000):
    comparison.add(1.0, canary=False)
  told = [comparison.add(0.0, canary=True) for _ in range(30)]
  assert told == [False] * 29 + [True]


def test_an_alpha_that_is_no_probability_is_refused():
  with pytest.raises(ValueError, match="choose one between 0 and 1"):
    Comparison(alpha=5)
