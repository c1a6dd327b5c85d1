"""Tiles of attention to trees, for kernels: which are needed, and what happens within one.

A tile of scores is needed if one of its queries may see one of its keys. A plan lists the tiles of
keys that each tile of queries needs, or the other way round, so that a kernel does nothing for the
others. `causal` says what trees are and who sees whom.

Alphabet: B rows, T time of the queries, S time of the keys, Q and K queries and keys of a tile, I
tiles of queries, J tiles of keys, G kv heads, N query heads, H head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_agents.policy.attention.causal import MASKED


class Places(NamedTuple):
  """Where queries and keys stand, and how far queries see.

  Attributes:
    ends: int32 [B, S], the place after the last token below each key; 0 for padding.
    start: int32 [], place of the first query among the keys.
    window: int32 [], or None: no layer has one, and nobody reads depths.
    key_depths: int32 [B, S].
    query_depths: int32 [B, T].
  """

  ends: jax.Array
  start: jax.Array
  window: jax.Array | None
  key_depths: jax.Array
  query_depths: jax.Array

  @property
  def limits(self) -> jax.Array:
    """start and window, int32 [2]."""
    window = jnp.int32(0) if self.window is None else self.window
    return jnp.stack([jnp.asarray(self.start, jnp.int32), window.astype(jnp.int32)])


class Given(NamedTuple):
  """What gradients are computed from.

  Attributes:
    q: [B, N, T, H], scaled.
    k: [B, G, S, H].
    v: [B, G, S, H'].
    d_out: gradient of the output, [B, N, T, H'].
    log_total: log-sum-exp of scores, float32 [B, N, T].
    mean: see `backward`, float32 [B, N, T].
    places: see there.
  """

  q: jax.Array
  k: jax.Array
  v: jax.Array
  d_out: jax.Array
  log_total: jax.Array
  mean: jax.Array
  places: Places


class Plan(NamedTuple):
  """The tiles that each tile needs, in order.

  Attributes:
    tiles: int32 [B * tiles * most], for each row and tile first those that it needs.
    counts: int32 [B * tiles], how many they are.
    most: how many there may be; static.
  """

  tiles: jax.Array
  counts: jax.Array
  most: int


def plans(places: Places, query_tile: int, key_tile: int) -> tuple[Plan, Plan]:
  """(tiles of keys for each tile of queries, tiles of queries for each tile of keys)."""
  needed = _needed(places, query_tile, key_tile)
  return _plan(needed), _plan(needed.swapaxes(1, 2))


def _needed(places: Places, query_tile: int, key_tile: int) -> jax.Array:
  """Whether a query may see a key: bool [B, I, J]."""
  ends, query_depths = places.ends, places.query_depths
  by_keys = lambda x: x.reshape(x.shape[0], 1, -1, key_tile)
  first_query = places.start + jnp.arange(0, query_depths.shape[1], query_tile)[:, None]
  first_key = jnp.arange(0, ends.shape[1], key_tile)
  needed = by_keys(ends).max(axis=-1) > first_query
  needed &= first_key < first_query + query_tile
  if places.window is not None:
    nearest = query_depths.reshape(query_depths.shape[0], -1, 1, query_tile).min(axis=-1)
    needed &= nearest - by_keys(places.key_depths).max(axis=-1) < places.window
  return needed


def _plan(needed: jax.Array) -> Plan:
  """Counts where a sort would do: for so few tiles it is cheaper, and one fused loop."""
  so_far = jnp.cumsum(needed, axis=-1, dtype=jnp.int32)
  most = needed.shape[-1]
  tiles = jnp.sum(so_far[..., None, :] <= jnp.arange(most)[:, None], axis=-1, dtype=jnp.int32)
  return Plan(tiles.reshape(-1), so_far[..., -1].reshape(-1), most)


def visible(
  query: jax.Array,
  key: jax.Array,
  ends: jax.Array,
  window: jax.Array | None = None,
  back: jax.Array | int = 0,
) -> jax.Array:
  """Which queries of a tile see which of its keys.

  Args:
    query, key: places.
    ends: of the keys.
    window: see Places.
    back: with a window, how much less deep the keys are than the queries.
  """
  seen = (key <= query) & (query < ends)
  return seen if window is None else seen & (back < window)


def start_of_softmax(sink: jax.Array, queries: int) -> tuple[jax.Array, jax.Array]:
  """Largest score and sum of exponentials before any key, float32 [Q, 1].

  A head without a sink has one of MASKED: its first key takes all weight from it.
  """
  return jnp.full((queries, 1), sink, jnp.float32), jnp.ones((queries, 1), jnp.float32)


def add_keys(
  carry: tuple[jax.Array, jax.Array, jax.Array],
  scores: jax.Array,
  seen: jax.Array,
  values: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The running softmax with one more tile of keys (FlashAttention-2, algorithm 1).

  Args:
    carry: largest score and sum of exponentials so far, float32 [Q, 1], and the sum of values by
      those exponentials, float32 [Q, H'].
    scores: float32 [Q, K].
    seen: bool [Q, K].
    values: [K, H'].
  """
  top, total, mixed = carry
  scores = jnp.where(seen, scores, MASKED)
  new_top = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
  weights, kept = jnp.exp(scores - new_top), jnp.exp(top - new_top)
  total = total * kept + jnp.sum(weights, axis=1, keepdims=True)
  return new_top, total, mixed * kept + product(weights.astype(values.dtype), values)


def backward(
  scores: jax.Array, seen: jax.Array, log_total: jax.Array, d_weights: jax.Array, mean: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """(weights, gradient of scores) of a tile, either way round (FlashAttention-2, algorithm 2).

  Args:
    scores, seen: float32 and bool [Q, K] or [K, Q].
    log_total: log-sum-exp of all scores of a query.
    d_weights: gradient of the weights.
    mean: of that gradient over all keys of a query, by weight.
  """
  weights = jnp.where(seen, jnp.exp(scores - log_total), 0.0)
  return weights, weights * (d_weights - mean)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
  """a b, float32."""
  return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def inner(a: jax.Array, b: jax.Array) -> jax.Array:
  """a b^T, float32."""
  return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
