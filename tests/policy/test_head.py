"""The vocabulary head runs on loss tokens only, and nobody can tell from the result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import head as head_lib


def plain(matrix, hidden, targets):
  logprobs = jax.nn.log_softmax(hidden @ matrix)
  picked = jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0]
  return picked, -(jnp.exp(logprobs) * logprobs).sum(-1)


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_values_and_gradients_equal_a_masked_full_head(density):
  rng = np.random.default_rng(0)
  rows, length = 200, 7  # 3 chunks of 512 tokens, the last one filled up
  hidden = jnp.asarray(rng.normal(size=(rows, length, 4)), jnp.float32)
  matrix = jnp.asarray(rng.normal(size=(4, 11)), jnp.float32)
  targets = jnp.asarray(rng.integers(0, 11, (rows, length)))
  mask = jnp.asarray(rng.random((rows, length)) < density)
  weight = jnp.asarray(rng.normal(size=(2, rows, length)), jnp.float32)

  def sparse(hidden, matrix):
    outputs = head_lib.of_tokens(plain, matrix, mask, hidden, targets)
    return sum((w * y).sum() for w, y in zip(weight, outputs, strict=True)), outputs

  def full(hidden, matrix):
    outputs = tuple(jnp.where(mask, y, 0) for y in plain(matrix, hidden, targets))
    return sum((w * y).sum() for w, y in zip(weight, outputs, strict=True)), outputs

  got = jax.jit(jax.grad(sparse, argnums=(0, 1), has_aux=True))(hidden, matrix)
  expected = jax.jit(jax.grad(full, argnums=(0, 1), has_aux=True))(hidden, matrix)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-4)


def test_a_head_that_is_not_trained_costs_no_product_for_its_gradient():
  matrix, hidden = jnp.ones((64, 128)), jnp.ones((2, 32, 64))
  targets = jnp.zeros((2, 32), jnp.int32)

  def flops(of):
    loss = lambda matrix, hidden: sum(
      y.sum() for y in head_lib.of_tokens(plain, matrix, None, hidden, targets)
    )
    return jax.jit(jax.grad(loss, argnums=of)).lower(matrix, hidden).cost_analysis()["flops"]

  product = 2 * 64 * 64 * 128
  assert flops((0, 1)) - flops((1,)) > 0.9 * product
