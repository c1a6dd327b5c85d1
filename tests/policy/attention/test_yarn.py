import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.attention import layer, yarn
from tests.policy import tiny

CFG = dataclasses.replace(
  tiny.GQA,  # heads of 8: pairs of frequency 1, 0.1, 0.01, 0.001
  rope_theta=10_000.0,
  rope_factor=40.0,
  rope_original_tokens=256,
  rope_gain=1.25,
)


def test_fast_pairs_keep_their_frequency_and_slow_ones_are_slowed_by_the_factor():
  # 32 turns in 256 tokens: pair 8 ln(256 / 64 pi) / 2 ln 10000 = 0.105, down to 0;
  # one turn: pair 8 ln(256 / 2 pi) / 2 ln 10000 = 1.610, up to 2. Pair 1 is half way.
  by_hand = [1.0, 0.1 * (0.5 + 0.5 / 40), 0.01 / 40, 0.001 / 40]
  np.testing.assert_allclose(yarn.frequencies(CFG), by_hand, rtol=1e-6)


def test_ends_between_whole_pairs_stay_there_if_they_are_not_truncated():
  cfg = dataclasses.replace(CFG, rope_truncate=False)
  slowed = (1 - 0.10491) / (1.60998 - 0.10491)
  np.testing.assert_allclose(
    yarn.frequencies(cfg), [1.0, 0.1 * (1 - slowed + slowed / 40), 0.00025, 0.000025], rtol=1e-4
  )


def test_equal_ends_are_a_step():
  cfg = dataclasses.replace(
    CFG, rope_original_tokens=2, rope_beta_fast=1.0, rope_beta_slow=1.0, rope_truncate=True
  )
  np.testing.assert_allclose(  # both ends at pair 0, which is not slowed
    yarn.frequencies(cfg), [1.0, 0.1 / 40, 0.01 / 40, 0.001 / 40], rtol=1e-6
  )


def test_rotated_vectors_grow_by_the_gain():
  rope = layer.rope_of(jnp.asarray([[0, 7]]), CFG)
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, 8)), jnp.float32)
  turned = layer.rotate(x, rope)
  np.testing.assert_allclose(turned[0, 0], 1.25 * x[0, 0], rtol=1e-6)
  norm = lambda y: np.linalg.norm(y, axis=-1)
  np.testing.assert_allclose(norm(turned), 1.25 * norm(x), rtol=1e-6)


@pytest.mark.parametrize(
  ("change", "says"),
  [
    ({"rope_factor": 0.5}, "rope_factor is 0.5"),
    ({"rope_original_tokens": 0}, "rope_original_tokens is 0"),
    ({"rope_beta_slow": 64.0}, "in that order"),
    ({"rope_factor": 1.0}, "effect without stretching"),
  ],
)
def test_numbers_of_stretching_that_contradict_each_other_are_refused(change, says):
  with pytest.raises(ValueError, match=says):
    dataclasses.replace(CFG, **change)
