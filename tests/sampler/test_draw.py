"""Draws against numpy and scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxrl_agents.sampler import draw as sample
from jaxrl_agents.sampler import speculate

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
  uniform = sample.uniforms(seeds, jnp.full(DRAWS, 7), sample.FINAL)
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


def test_a_uniform_depends_on_seed_position_and_purpose_and_not_on_the_batch():
  seeds = jnp.array([3, 3, 4, 3], jnp.uint32)
  positions = jnp.array([10, 11, 10, 10])
  u = np.asarray(sample.uniforms(seeds, positions, sample.FINAL))
  assert u[0] == u[3] and len({u[0], u[1], u[2]}) == 3
  assert u[0] == sample.uniforms(seeds[:1], positions[:1], sample.FINAL)[0]
  assert u[0] != sample.uniforms(seeds[:1], positions[:1], sample.DRAFT)[0]


def speculate_many(p, q, draws):
  """`draws` independent rounds: drafts from q, then accept. p [d + 1, V], q [d, V]."""
  d, vocab = q.shape

  def one(seed):
    seeds = jnp.full((d + 1,), seed, jnp.uint32)
    places = jnp.arange(d + 1)
    drafts = sample.invert(q, sample.uniforms(seeds[:d], places[:d], sample.DRAFT))
    tokens, accepted = speculate.accept(
      drafts[None],
      q[None],
      p[None],
      accept_uniforms=sample.uniforms(seeds[:d], places[:d], sample.ACCEPT)[None],
      final_uniforms=sample.uniforms(seeds, places, sample.FINAL)[None],
    )
    return tokens[0], accepted[0]

  run = jax.jit(lambda seeds: jax.lax.map(one, seeds, batch_size=10_000))
  tokens, accepted = run(jnp.arange(draws, dtype=jnp.uint32))
  return np.asarray(tokens), np.asarray(accepted)


def distributions(seed, shape, sharpness):
  logits = np.random.default_rng(seed).normal(size=shape) * sharpness
  return jnp.asarray(scipy.special.softmax(logits, axis=-1), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [0.5, 2.0])
def test_speculative_sampling_leaves_the_distribution_of_every_place_unchanged(sharpness):
  p = distributions(3, (3, 12), sharpness)
  q = 0.5 * p[:2] + 0.5 * distributions(4, (2, 12), sharpness)
  tokens, accepted = speculate_many(p, q, DRAWS)
  for place in range(3):
    reached = accepted >= place
    counts = np.bincount(tokens[reached, place], minlength=12)
    assert reached.sum() > 5_000
    assert chi_square_is_plausible(counts, np.asarray(p[place], np.float64))


@pytest.mark.slow
def test_the_share_of_accepted_drafts_is_one_minus_the_total_variation():
  p, q = distributions(5, (2, 12), 1.0), distributions(6, (1, 12), 1.0)
  _, accepted = speculate_many(p, q, DRAWS)
  expected = np.minimum(p[0], q[0]).sum()
  assert abs(accepted.mean() - expected) < 5 * np.sqrt(0.25 / DRAWS)


def test_drafts_from_the_main_distribution_itself_all_stand():
  p = distributions(7, (4, 12), 1.0)
  _, accepted = speculate_many(p, p[:3], 2_000)
  assert (accepted == 3).all()


def test_greedy_accepts_exactly_the_drafts_that_equal_the_most_likely_tokens():
  one_hot = lambda *tokens: jnp.eye(5)[jnp.array(tokens)]
  p = jnp.stack([one_hot(1, 2, 3), one_hot(1, 2, 3), one_hot(1, 2, 3)])
  drafts = jnp.array([[1, 2], [1, 4], [0, 2]])
  tokens, accepted = speculate.accept(
    drafts,
    jax.nn.one_hot(drafts, 5),
    p,
    accept_uniforms=jnp.full((3, 2), 0.999),
    final_uniforms=jnp.full((3, 3), 0.5),
  )
  assert accepted.tolist() == [2, 1, 0]
  assert tokens[0].tolist() == [1, 2, 3] and tokens[1, :2].tolist() == [1, 2] and tokens[2, 0] == 1
