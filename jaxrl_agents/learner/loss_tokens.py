"""Runs the vocabulary head on loss tokens only.

In agentic rows most tokens are tool results, which have no loss, and the head is the widest product
of a small policy. Each row's loss tokens are moved to its front, and the head runs over the columns
that still hold one, a chunk at a time, recomputed in the backward pass. Shapes stay static, and
what is split over devices stays where it is, parts of rows counting as rows where time is split:
only the number of chunks that do any work depends on the mask.

Alphabet: B rows, T time, C columns of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.policy import sharding

CHUNK_TOKENS = 512
"""Tokens of one chunk (B * C) on each device: on CPU 512 rows of logits stay in cache."""


def map_loss_tokens(
  function: Callable[..., Any], loss_mask: jax.Array, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
  """`function` of the loss tokens, and 0 everywhere else.

  Args:
    function: takes chunks [B, C, ...] of `arrays`, returns a tuple of float32 [B, C].
    loss_mask: bool [B, T].
    *arrays: [B, T, ...].

  Returns:
    A tuple of float32 [B, T].
  """
  whole = loss_mask.shape
  loss_mask, *arrays = (_row_parts(a) for a in (loss_mask, *arrays))
  rows, length = loss_mask.shape
  columns = min(length, max(1, CHUNK_TOKENS * sharding.ambient_ways("row_parts") // rows))
  order = jnp.argsort(~loss_mask, axis=1, stable=True)
  inverse = jnp.argsort(order, axis=1)
  moved = [_chunks(_permute(a, order, inverse), columns) for a in (loss_mask, *arrays)]
  shapes = jax.eval_shape(function, *(m[0] for m in moved[1:]))

  @jax.checkpoint
  def one(mask, *chunk):
    run = lambda *xs: tuple(jnp.where(mask, y, 0.0) for y in function(*xs))
    skip = lambda *xs: tuple(jnp.zeros(s.shape, s.dtype) for s in shapes)
    return jax.lax.cond(mask.any(), run, skip, *chunk)

  _, outputs = jax.lax.scan(lambda _, xs: (None, one(*xs)), None, tuple(moved))
  flat = [jnp.moveaxis(y, 0, 1).reshape(rows, -1)[:, :length] for y in outputs]
  return tuple(_whole_rows(jnp.take_along_axis(y, inverse, axis=1), whole) for y in flat)


def _row_parts(x: jax.Array) -> jax.Array:
  """[B, T, ...] -> [P B, T / P, ...], all first parts first, where time is split in P parts."""
  rows, length, *rest = x.shape
  parts = sharding.ambient_ways("time")
  if parts == 1:
    return x
  x = jnp.moveaxis(x.reshape(rows, parts, length // parts, *rest), 1, 0)
  return sharding.constrain(
    x.reshape(parts * rows, -1, *rest), "row_parts", *(None,) * (len(rest) + 1)
  )


def _whole_rows(x: jax.Array, shape: tuple[int, int]) -> jax.Array:
  """The way back, of x [P B, T / P]."""
  if x.shape == shape:
    return x
  x = jnp.moveaxis(x.reshape(-1, shape[0], x.shape[1]), 0, 1)
  return sharding.constrain(x.reshape(shape), "batch", "time")


def _chunks(x, columns):
  """[B, T, ...] -> [ceil(T / C), B, C, ...], padded with zeros (False)."""
  padding = [(0, 0)] * x.ndim
  padding[1] = (0, -x.shape[1] % columns)
  x = jnp.pad(x, padding)
  return jnp.moveaxis(x.reshape(x.shape[0], -1, columns, *x.shape[2:]), 1, 0)


@jax.custom_vjp
def _permute(x, order, inverse):
  """x [B, T, ...] with columns in `order`; transposed, a gather by `inverse`: no slow scatter."""
  return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=1)


def _permute_forward(x, order, inverse):
  return _permute(x, order, inverse), (order, inverse)


def _permute_backward(residuals, cotangent):
  order, inverse = residuals
  if not jnp.issubdtype(cotangent.dtype, jnp.floating):
    return cotangent, None, None
  return _permute(cotangent, inverse, order), None, None


_permute.defvjp(_permute_forward, _permute_backward)
