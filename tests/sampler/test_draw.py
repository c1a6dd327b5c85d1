"""Draws against numpy and scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxrl_agents.sampler import draw as sample

DRAWS = 200_000


def chi_square_is_plausible(counts, probabilities):
  """Pearson's statistic below the 0.999 quantile, classes of expectation < 5 pooled."""
  expected = probabilities * counts.sum()
  small = expected < 5
  if small.any():
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    assert not counts[~keep].any()
    counts, expected = counts[keep], expected[keep]
  statistic = ((counts - expected) ** 2 / expected).sum()
  return statistic < scipy.stats.chi2.ppf(0.999, len(expected) - 1)


def test_inverting_matches_a_numpy_search_in_the_cumulative_sum():
  rng = np.random.default_rng(0)
  weights = rng.random((64, 200)).astype(np.float32) * (rng.random((64, 200)) < 0.5)
  uniform = rng.random(64).astype(np.float32)
  cumulative = np.cumsum(weights.astype(np.float64), axis=1)
  expected = [
    np.searchsorted(c, u * c[-1], side="right") for c, u in zip(cumulative, uniform, strict=True)
  ]
  assert np.array_equal(sample.invert(jnp.asarray(weights), jnp.asarray(uniform)), expected)


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
def test_a_token_of_weight_zero_is_never_drawn(uniform):
  weights = np.zeros((3, 130), np.float32)
  weights[0, 129], weights[1, 0], weights[2, [3, 100]] = 1e-30, 1.0, 0.7
  tokens = np.asarray(sample.invert(jnp.asarray(weights), jnp.full(3, uniform, jnp.float32)))
  assert (weights[np.arange(3), tokens] > 0).all()


def test_sampled_frequencies_and_logprobs_follow_the_softmax_at_the_temperature():
  logits = np.random.default_rng(1).normal(size=80).astype(np.float32) * 2
  seeds = jnp.arange(DRAWS, dtype=jnp.uint32)
  uniform = sample.uniforms(seeds, jnp.full(DRAWS, 7))
  draw = jax.jit(
    jax.vmap(lambda u: sample.sample(logits[None], u[None], jnp.full(1, 0.7), jnp.ones(1)))
  )
  tokens, logprobs = (np.asarray(x)[:, 0] for x in draw(uniform))
  expected = scipy.special.log_softmax(logits.astype(np.float64) / 0.7)
  np.testing.assert_allclose(logprobs, expected[tokens], atol=2e-6)
  assert chi_square_is_plausible(np.bincount(tokens, minlength=80), np.exp(expected))


def test_top_p_keeps_the_smallest_likely_set_and_records_the_renormalised_logprob():
  p = np.array([[0.4, 0.3, 0.2, 0.1], [0.05, 0.9, 0.03, 0.02], [0.25, 0.25, 0.3, 0.2]])
  weights, _ = sample.weigh(
    jnp.log(p).astype(jnp.float32), jnp.ones(3), jnp.array([0.65, 0.9, 1.0])
  )
  kept = np.asarray(weights) > 0
  # 0.4 < 0.65 <= 0.4 + 0.3; 0.9 <= 0.9 up to rounding; everything.
  assert kept.tolist()[0] == [True, True, False, False]
  assert kept.tolist()[2] == [True] * 4 and kept[1, 1]
  logprob = sample.logprobs(weights[:1], jnp.array([1]))
  np.testing.assert_allclose(logprob, np.log(0.3 / 0.7), atol=1e-6)


def test_top_p_agrees_with_sorting_on_random_rows():
  rng = np.random.default_rng(2)
  logits = rng.normal(size=(50, 90)) * 3
  top_p = rng.uniform(0.05, 0.99, 50)
  weights, _ = sample.weigh(
    jnp.asarray(logits, jnp.float32), jnp.ones(50), jnp.asarray(top_p, jnp.float32)
  )
  for row in range(50):
    p = scipy.special.softmax(logits[row])
    order = np.argsort(-p)
    count = np.searchsorted(np.cumsum(p[order]), top_p[row]) + 1
    assert set(np.nonzero(np.asarray(weights[row]))[0]) == set(order[:count])


def test_temperature_zero_takes_the_most_likely_token_and_its_logprob_at_temperature_one():
  logits = jnp.array([[0.0, 2.0, 1.0]])
  token, logprob = sample.sample(logits, jnp.array([0.999]), jnp.zeros(1), jnp.full(1, 0.1))
  assert token[0] == 1
  np.testing.assert_allclose(logprob[0], 2 - np.log(1 + np.e**2 + np.e), atol=1e-6)


def test_a_uniform_depends_on_seed_and_position_and_not_on_the_batch():
  seeds = jnp.array([3, 3, 4, 3], jnp.uint32)
  positions = jnp.array([10, 11, 10, 10])
  u = np.asarray(sample.uniforms(seeds, positions))
  assert u[0] == u[3] and len({u[0], u[1], u[2]}) == 3
  assert u[0] == sample.uniforms(seeds[:1], positions[:1])[0]
