"""The vocabulary head runs on loss tokens only, and nobody can tell from the result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner.loss_tokens import map_loss_tokens


def head(hidden, targets, matrix):
  logprobs = jax.nn.log_softmax(hidden @ matrix)
  picked = jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0]
  return picked, -(jnp.exp(logprobs) * logprobs).sum(-1)


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_values_and_gradients_equal_a_masked_full_head(density):
  rng = np.random.default_rng(0)
  rows, length = 200, 7  # 512 // 200 = 2 columns a chunk, the last one padded
  hidden = jnp.asarray(rng.normal(size=(rows, length, 4)), jnp.float32)
  matrix = jnp.asarray(rng.normal(size=(4, 11)), jnp.float32)
  targets = jnp.asarray(rng.integers(0, 11, (rows, length)))
  mask = jnp.asarray(rng.random((rows, length)) < density)
  weight = jnp.asarray(rng.normal(size=(2, rows, length)), jnp.float32)

  def sparse(hidden, matrix):
    outputs = map_loss_tokens(lambda h, t: head(h, t, matrix), mask, hidden, targets)
    return sum((w * y).sum() for w, y in zip(weight, outputs, strict=True)), outputs

  def full(hidden, matrix):
    outputs = tuple(jnp.where(mask, y, 0) for y in head(hidden, targets, matrix))
    return sum((w * y).sum() for w, y in zip(weight, outputs, strict=True)), outputs

  got = jax.jit(jax.grad(sparse, argnums=(0, 1), has_aux=True))(hidden, matrix)
  expected = jax.jit(jax.grad(full, argnums=(0, 1), has_aux=True))(hidden, matrix)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-4)
