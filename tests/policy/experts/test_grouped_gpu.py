"""Grouped products of GPUs, interpreted, against products of one group after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.experts import grouped_gpu
from tests.policy import triton_kernels


def plain(rows, matrices, sizes):
  """Products of one group after the other; zeros for rows of none."""
  parts = jnp.split(rows, np.cumsum(sizes))
  products = [part @ matrix for part, matrix in zip(parts, matrices, strict=False)]
  return jnp.concatenate([*products, jnp.zeros((len(parts[-1]), matrices.shape[2]))])


@pytest.mark.parametrize(
  ("sizes", "width"),
  [
    ([0, 100, 37, 0, 60], 6),  # groups meet within tiles, some are empty, rows are left over
    ([1, 2, 0, 3], 32),  # as in decoding
    ([128, 128, 0], 48),  # no row is left over, groups end with tiles
    ([0, 0], 16),
  ],
)
def test_grouped_products_and_their_gradients_are_those_of_each_group(sizes, width):
  rng = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  rows, matrices, cotangent = make(256, width), make(len(sizes), width, 24), make(256, 24)
  real = (jnp.arange(256) < sum(sizes))[:, None]

  def both(function):
    masked = lambda rows, matrices: jnp.where(real, function(rows, matrices), 0.0)
    out, pull = jax.vjp(masked, rows, matrices)
    d_rows, d_matrices = pull(cotangent)
    return out, jnp.where(real, d_rows, 0.0), d_matrices

  counts = jnp.asarray(sizes, jnp.int32)
  found = both(lambda rows, matrices: grouped_gpu.product(rows, matrices, counts, True))
  expected = both(lambda rows, matrices: plain(rows, matrices, sizes))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), found, expected)


@pytest.mark.parametrize("rows", [256, 16_384])
def test_both_passes_lower_to_kernels_that_triton_accepts_and_to_nothing_ragged(rows):
  like = jax.ShapeDtypeStruct

  def loss(rows, matrices, sizes):
    return jnp.sum(grouped_gpu.product(rows, matrices, sizes).astype(jnp.float32) ** 2)

  arguments = (
    like((rows, 768), jnp.bfloat16),
    like((64, 768, 2048), jnp.bfloat16),
    like((64,), jnp.int32),
  )
  gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
  lowered = gradient.trace(*arguments).lower(lowering_platforms=("cuda",))
  names = ["grouped_product", "grouped_product", "grouped_product_of_matrices"]
  assert triton_kernels.verified(lowered) == names
  assert "ragged_dot" not in lowered.as_text()
