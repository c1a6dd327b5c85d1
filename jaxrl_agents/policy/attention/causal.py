"""Causal attention of whole rows for training: tile by tile, scores computed again backward.

A row holds trees of tokens in depth-first order: sequences that begin alike share the tokens of
their beginning, and a plain sequence is a tree without forks. `ends[k]` is the place after the last
token below token k, and query q sees key k exactly if k <= q < ends[k]. A tile of scores in which
no query sees a key is never computed: short sequences cost little, and so do the siblings of a
sequence. Padding ends at 0: nobody sees it, and what it sees means nothing. The forward pass
keeps the output and each query's log-sum-exp; the backward pass rebuilds the weights from them
(FlashAttention-2, https://arxiv.org/abs/2307.08691, algorithms 1 and 2).

A head with a sink shares its weights with a learned score that has no key, and so no value: the
running softmax begins with it. A layer with a window sees so many tokens back on the path from the
root; tiles before it are never computed either.

Where time is split over devices, queries are a part of the row and keys the whole of it.

Alphabet: B rows, T time of the queries, S time of the keys, G kv heads, R query heads of a kv head,
H head dim, N blocks of a row, Q and K queries and keys of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxrl_agents.policy import kernel_choice

BLOCK = 256
SHORT_BLOCK, CPU_SHORT_BLOCK = 128, 64
"""Tiles of rows up to twice `BLOCK`, and of trees: narrow tiles skip more, wide ones cost less a
tile. On a CPU a row with 8 episodes of the search recipe took 6 % less time in tiles of 64 than of
128.
"""

MASKED = -1e30

KEPT = "attention"
"""Name of output and log-sum-exp, which the backward pass needs, for policies of jax.checkpoint."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(8,))
def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  ends: jax.Array,
  depths: jax.Array,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
  start: jax.Array | None = None,
  narrow: bool = False,
) -> jax.Array:
  """softmax(q k^T / sqrt(H)) v over the keys on the path from the root to the query.

  Args:
    q: [B, G, R, T, H].
    k: [B, G, S, H].
    v: [B, G, S, H'].
    ends: int32 [B, S], see above; 0 for padding.
    depths: int32 [B, S], tokens on the path before each; only a window reads them.
    sinks: [G, R], scores beside the keys', not scaled; None: there are none.
    window: int32 [], how many places a query sees, its own included; None: all.
    start: int32 [], place of the first query among the keys, at most S - T; None: 0.
    narrow: whether tiles are narrow in long rows, too.

  Returns:
    [B, G, R, T, H'].
  """
  return _forward(q, k, v, ends, depths, sinks, window, start, narrow)[0]


def _forward(q, k, v, ends, depths, sinks, window, start, narrow):
  times = q.shape[3], k.shape[2]
  start, block = 0 if start is None else start, _block(q.shape[3], narrow)
  padded = _padded(q, k, v, ends, depths, start, block)
  rows = functools.partial(_forward_rows, sinks=sinks, window=window, start=start, block=block)
  out, log_total = checkpoint_name(_by_row(rows, *padded), KEPT)
  saved = *padded, out, log_total, sinks, window, start, times
  return out[..., : times[0], :], saved


def _backward(narrow, saved, d_out):
  *rows, sinks, window, start, (queries, keys) = saved
  d_out = _pad_time(d_out, rows[0].shape[3] - queries)
  block = _block(queries, narrow)
  function = functools.partial(_backward_rows, window=window, start=start, block=block)
  d_q, d_k, d_v = _by_row(function, *rows, d_out)
  out, log_total = rows[-2:]
  d_sinks = None if sinks is None else backward_of_sinks(sinks, out, log_total, d_out)
  gradients = d_q[..., :queries, :], d_k[..., :keys, :], d_v[..., :keys, :]
  return (*gradients, None, None, d_sinks, None, None)


def backward_of_sinks(sinks, out, log_total, d_out):
  """Gradient of sinks: their value is 0, so that all they do is take weight from the keys.

  Args:
    sinks: [G, R].
    out, d_out: [B, G, R, T, H'].
    log_total: log-sum-exp of scores and sink, float32 [B, G, R, T, 1].
  """
  weights = jnp.exp(sinks.astype(jnp.float32)[:, :, None, None] - log_total)
  taken = weights * (out * d_out).astype(jnp.float32)
  return -jnp.sum(taken, axis=(0, 3, 4)).astype(sinks.dtype)


attend.defvjp(_forward, _backward)


def _padded(q, k, v, ends, depths, start, block):
  """(q, k, v, depths of the queries, ends and depths of the keys), time a multiple of the block."""
  query_depths = jax.lax.dynamic_slice_in_dim(depths, start, q.shape[3], axis=1)
  more_q, more_k = -q.shape[3] % block, -k.shape[2] % block
  pad = lambda x, more: jnp.pad(x, ((0, 0), (0, more)))
  k, v = _pad_time(k, more_k), _pad_time(v, more_k)
  places = pad(query_depths, more_q), pad(ends, more_k), pad(depths, more_k)
  return _pad_time(q, more_q), k, v, *places


def _block(length: int, narrow: bool) -> int:
  if length > 2 * BLOCK and not narrow:
    return BLOCK
  return min(length, CPU_SHORT_BLOCK if kernel_choice.platform() == "cpu" else SHORT_BLOCK)


def _pad_time(x: jax.Array, more: int) -> jax.Array:
  return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, more), (0, 0)]) if more else x


def _by_row(function: Callable, *arrays: jax.Array):
  """One row at a time on CPU, where a tile of one row stays in the cache of a core."""
  if kernel_choice.platform() != "cpu":
    return function(*arrays)

  def one(row):
    return jax.tree.map(lambda y: y[0], function(*(x[None] for x in row)))

  return jax.lax.map(one, arrays)


class _Tiles:
  """Tiles of one call: slices of time, masks, and which tiles each block of queries needs.

  Attributes:
    needed: int32 [N, M], blocks of keys for each block of queries, those in which a query may see a
      key first; `counts` int32 [N] says how many they are, at least one.
    of_queries, of_keys: how many blocks there are, N and M.
  """

  def __init__(
    self,
    query_depths: jax.Array,
    key_ends: jax.Array,
    key_depths: jax.Array,
    window: jax.Array | None,
    start: jax.Array | int,
    block: int,
  ):
    self.block = block
    self.of_queries, self.of_keys = (x.shape[1] // self.block for x in (query_depths, key_ends))
    self._query_depths, self._ends, self._key_depths = query_depths, key_ends, key_depths
    self._window, self._start = window, start
    blocks = lambda x: x.reshape(x.shape[0], -1, self.block)
    begin = start + jnp.arange(self.of_queries) * self.block
    seen = blocks(key_ends).max(axis=-1)[:, None] > begin[:, None]
    if window is not None:
      nearest = blocks(query_depths).min(axis=-1)[:, :, None]
      seen = seen & (nearest - blocks(key_depths).max(axis=-1)[:, None] < window)
    last = jnp.minimum((begin + self.block - 1) // self.block, self.of_keys - 1)
    place = jnp.arange(self.of_keys)
    seen = seen.any(axis=0) & (place <= last[:, None]) | (place == last[:, None])
    self.needed = jnp.argsort(~seen, axis=1, stable=True).astype(jnp.int32)
    self.counts = seen.sum(axis=1)

  def over_keys(self, i: jax.Array, body: Callable, carry: Any) -> Any:
    """`body(j, carry)` for every block of keys j that block i of queries needs."""
    needed = self.needed[i]
    return jax.lax.fori_loop(0, self.counts[i], lambda n, carry: body(needed[n], carry), carry)

  def time(self, x: jax.Array, i: jax.Array) -> jax.Array:
    """Block i of the next to last axis."""
    return jax.lax.dynamic_slice_in_dim(x, i * self.block, self.block, axis=x.ndim - 2)

  def put(self, x: jax.Array, part: jax.Array, i: jax.Array) -> jax.Array:
    """`x` with block i of the next to last axis replaced."""
    return jax.lax.dynamic_update_slice_in_dim(x, part, i * self.block, axis=x.ndim - 2)

  def scores(self, queries: jax.Array, keys: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """Masked scores of queries i (scaled) and keys j, float32 [B, G, R, Q, K]."""
    scores = jnp.einsum("bgrqh,bgkh->bgrqk", queries, keys, preferred_element_type=jnp.float32)
    of = lambda x, n: self.time(x[..., None], n)[..., 0]
    place = jnp.arange(self.block)
    query, key = self._start + i * self.block + place[:, None], j * self.block + place
    mask = (key <= query) & (query < of(self._ends, j)[:, None])
    if self._window is not None:
      back = of(self._query_depths, i)[:, :, None] - of(self._key_depths, j)[:, None]
      mask = mask & (back < self._window)
    return jnp.where(mask[:, None, None], scores, MASKED)


def _forward_rows(q, k, v, query_depths, ends, depths, *, sinks, window, start, block):
  """(out [B, G, R, T, H'], log-sum-exp of scores float32 [B, G, R, T, 1])."""
  tiles = _Tiles(query_depths, ends, depths, window, start, block)

  def of_queries(i, outputs):
    queries = tiles.time(q, i) * q.shape[-1] ** -0.5

    def with_keys(j, carry):
      top, total, mixed = carry
      scores = tiles.scores(queries, tiles.time(k, j), i, j)
      new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
      weights, kept = jnp.exp(scores - new_top), jnp.exp(top - new_top)
      values = jnp.einsum(
        "bgrqk,bgkh->bgrqh",
        weights.astype(v.dtype),
        tiles.time(v, j),
        preferred_element_type=jnp.float32,
      )
      total = total * kept + jnp.sum(weights, axis=-1, keepdims=True)
      return new_top, total, mixed * kept + values

    shape = (*queries.shape[:-1], 1)
    carry = (
      *start_of_softmax(None if sinks is None else sinks[:, :, None, None], shape),
      jnp.zeros((*queries.shape[:-1], v.shape[-1]), jnp.float32),
    )
    top, total, mixed = tiles.over_keys(i, with_keys, carry)
    out, log_total = outputs
    return (
      tiles.put(out, (mixed / total).astype(v.dtype), i),
      tiles.put(log_total, top + jnp.log(total), i),
    )

  empty = (
    jnp.zeros((*q.shape[:-1], v.shape[-1]), v.dtype),
    jnp.zeros((*q.shape[:-1], 1), jnp.float32),
  )
  return jax.lax.fori_loop(0, tiles.of_queries, of_queries, empty)


def largest_scores(
  q: jax.Array,
  k: jax.Array,
  ends: jax.Array,
  depths: jax.Array,
  window: jax.Array | None = None,
  start: jax.Array | None = None,
  narrow: bool = False,
) -> jax.Array:
  """The largest score of each head over all rows, queries and keys that they see: float32 [G, R].

  The scores of `attend`, computed again and without sinks, padding left out; not differentiated.
  Arguments as `attend`.
  """
  first: Any = 0 if start is None else start
  q, k = jax.lax.stop_gradient((q, k))
  block = _block(q.shape[3], narrow)
  q, k, _, *places = _padded(q, k, k, ends, depths, first, block)
  rows = functools.partial(_largest_of_rows, window=window, start=first, block=block)
  return jnp.max(_by_row(rows, q, k, *places), axis=0)


def _largest_of_rows(q, k, query_depths, ends, depths, *, window, start, block):
  """Largest scores float32 [B, G, R]."""
  tiles = _Tiles(query_depths, ends, depths, window, start, block)

  def of_queries(i, top):
    queries = tiles.time(q, i) * q.shape[-1] ** -0.5

    def with_keys(j, top):
      scores = tiles.scores(queries, tiles.time(k, j), i, j)
      return jnp.maximum(top, jnp.max(scores, axis=(-2, -1)))

    return tiles.over_keys(i, with_keys, top)

  none = jnp.full(q.shape[:3], MASKED, jnp.float32)
  return jax.lax.fori_loop(0, tiles.of_queries, of_queries, none)


def start_of_softmax(
  sinks: jax.Array | None, shape: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
  """Largest score so far and the sum of exponentials over it, before any key: float32 `shape`.

  Args:
    sinks: their scores, of a shape that broadcasts to `shape`, or None.
    shape: of the scores of one key.
  """
  if sinks is None:
    return jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32)
  top = jnp.broadcast_to(sinks.astype(jnp.float32), shape)
  return top, jnp.ones(shape, jnp.float32)


def _backward_rows(
  q, k, v, query_depths, ends, depths, out, log_total, d_out, *, window, start, block
):
  """Gradients of q, k, v."""
  tiles = _Tiles(query_depths, ends, depths, window, start, block)
  scale = q.shape[-1] ** -0.5
  wide = {"preferred_element_type": jnp.float32}  # sums over tiles, whatever q, k and v are in
  # As a product: XLA:CPU takes 16 times as long for a sum over a narrow last axis.
  mean = jnp.einsum("bgrth,bgrth->bgrt", out, d_out, **wide)[..., None]

  def of_queries(i, gradients):
    queries, d_block = tiles.time(q, i) * scale, tiles.time(d_out, i)
    total_block, mean_block = tiles.time(log_total, i), tiles.time(mean, i)

    def with_keys(j, carry):
      d_queries, d_k, d_v = carry
      keys = tiles.time(k, j)
      weights = jnp.exp(tiles.scores(queries, keys, i, j) - total_block)
      d_weights = jnp.einsum("bgrqh,bgkh->bgrqk", d_block, tiles.time(v, j), **wide)
      d_scores = (weights * (d_weights - mean_block)).astype(q.dtype)
      weights = weights.astype(q.dtype)
      d_queries += jnp.einsum("bgrqk,bgkh->bgrqh", d_scores, keys, **wide)
      d_k = d_k.at[j].add(jnp.einsum("bgrqk,bgrqh->bghk", d_scores, queries, **wide))
      d_v = d_v.at[j].add(jnp.einsum("bgrqk,bgrqh->bghk", weights, d_block, **wide))
      return d_queries, d_k, d_v

    d_q, d_k, d_v = gradients
    carry = jnp.zeros(queries.shape, jnp.float32), d_k, d_v
    d_queries, d_k, d_v = tiles.over_keys(i, with_keys, carry)
    return tiles.put(d_q, (d_queries * scale).astype(q.dtype), i), d_k, d_v

  # Keys last: XLA:CPU computes products over queries twice as fast that way round.
  shape = lambda x: (tiles.of_keys, *x.shape[:2], x.shape[3], tiles.block)
  by_block = lambda x: jnp.zeros(shape(x), jnp.float32)
  zeros = jnp.zeros_like(q), by_block(k), by_block(v)
  d_q, d_k, d_v = jax.lax.fori_loop(0, tiles.of_queries, of_queries, zeros)
  return d_q, _joined(d_k).astype(k.dtype), _joined(d_v).astype(v.dtype)


def _joined(blocks: jax.Array) -> jax.Array:
  """[N, B, G, H, K] as [B, G, T, H]."""
  number, batch, groups, width, block = blocks.shape
  return jnp.transpose(blocks, (1, 2, 0, 4, 3)).reshape(batch, groups, number * block, width)
