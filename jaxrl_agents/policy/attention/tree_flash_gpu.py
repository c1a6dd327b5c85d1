"""Attention to trees on GPU: Pallas kernels for Triton. One program has one tile and loops.

Sides of tiles and widths of heads are powers of two. No size was tuned on a device: tiles are small
enough for Triton to keep them in the registers and the shared memory of an A100 or H100, and wide
enough for the matrix units of the latter. Of heads of 256 on an H100, 176 bytes a thread
of the gradient of keys do not fit into registers.

Alphabet: B rows, T time of the queries, S time of the keys, G kv heads, R query heads of a kv head,
N = G R, H head dim, Q and K queries and keys of a tile.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jaxrl_agents.policy.attention import tree_tiles as tiles_lib
from jaxrl_agents.policy.attention.tree_tiles import Given, Places, Plan
from jaxrl_agents.policy.kernel_choice import tile_side

SIDE, SMALL_SIDE = 64, 32
"""Sides of a tile: of numbers of 16 bits in heads up to WIDEST, and of all others."""

WIDEST = 256


def head_width(width: int) -> int:
  """What a head's width is filled up to."""
  return max(16, pl.next_power_of_2(width))


def sides(q: jax.Array, k: jax.Array) -> tuple[int, int]:
  """Queries and keys of a tile."""
  small = q.dtype.itemsize > 2 or q.shape[-1] > WIDEST
  most = SMALL_SIDE if small else SIDE
  return tile_side(q.shape[2], most), tile_side(k.shape[2], most)


def forward(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  sinks: jax.Array,
  places: Places,
  plan: Plan,
  *,
  interpret: bool,
) -> tuple[jax.Array, jax.Array]:
  """(out [B, N, T, H'], log-sum-exp of scores float32 [B, N, T]).

  Args:
    q: [B, N, T, H], scaled.
    k: [B, G, S, H].
    v: [B, G, S, H'].
    sinks: float32 [N].
    places: see there.
    plan: tiles of keys for each tile of queries.
    interpret: run it step by step, on any machine.
  """
  rows, heads, length, width = q.shape
  query_tile, key_tile = shape = sides(q, k)
  groups, of_queries, value_width = k.shape[1], length // query_tile, v.shape[-1]
  repeats = heads // groups

  def kernel(tiles, counts, limits, sinks, q, k, v, *refs):
    (*positions, out, log_total) = refs
    i, head, row = (pl.program_id(axis) for axis in range(3))
    mine = row * of_queries + i
    queries = q[...]

    def with_keys(n, carry):
      j = tiles[mine * plan.most + n]
      at = pl.ds(j * key_tile, key_tile)
      seen = _seen(limits, i, j, shape, positions)
      return tiles_lib.add_keys(carry, tiles_lib.inner(queries, k[at, :]), seen, v[at, :])

    softmax = tiles_lib.start_of_softmax(sinks[head], query_tile)
    carry = *softmax, jnp.zeros((query_tile, value_width), jnp.float32)
    top, total, mixed = jax.lax.fori_loop(0, counts[mine], with_keys, carry)
    out[...] = (mixed / total).astype(out.dtype)
    log_total[...] = jnp.sum(top + jnp.log(total), axis=1)

  tile = lambda x: _tile(x, query_tile)
  of_kv_head = lambda x: pl.BlockSpec(
    (None, None, *x.shape[2:]), lambda i, head, row: (row, jax.lax.div(head, repeats), 0, 0)
  )
  out_shape = (
    jax.ShapeDtypeStruct((*q.shape[:3], value_width), v.dtype),
    jax.ShapeDtypeStruct(q.shape[:3], jnp.float32),
  )
  lists, list_specs = _lists(plan, places, sinks)
  positions, position_specs = _positions(places)
  return pl.pallas_call(
    kernel,
    grid=(of_queries, heads, rows),
    in_specs=[*list_specs, tile(q), of_kv_head(k), of_kv_head(v), *position_specs],
    out_specs=[tile(x) for x in out_shape],
    out_shape=out_shape,
    compiler_params=_params(width),
    interpret=interpret,
    name="tree_attention_forward",
  )(*lists, q, k, v, *positions)


def backward_of_queries(given: Given, plan: Plan, *, interpret: bool) -> jax.Array:
  """Gradient of `given.q`, as wide. plan, interpret: as `forward`."""
  q, k, v, d_out, log_total, mean, places = given
  rows, heads, length, width = q.shape
  query_tile, key_tile = shape = sides(q, k)
  of_queries, repeats = length // query_tile, heads // k.shape[1]

  def kernel(tiles, counts, limits, q, k, v, d_out, log_total, mean, *refs):
    (*positions, d_q) = refs
    i, row = pl.program_id(0), pl.program_id(2)
    mine = row * of_queries + i
    queries, cotangent = q[...], d_out[...]
    log_totals, means = log_total[...][:, None], mean[...][:, None]

    def with_keys(n, gradient):
      j = tiles[mine * plan.most + n]
      at = pl.ds(j * key_tile, key_tile)
      keys = k[at, :]
      seen = _seen(limits, i, j, shape, positions)
      d_weights = tiles_lib.inner(cotangent, v[at, :])
      scores = tiles_lib.inner(queries, keys)
      _, d_scores = tiles_lib.backward(scores, seen, log_totals, d_weights, means)
      return gradient + tiles_lib.product(d_scores.astype(keys.dtype), keys)

    none = jnp.zeros((query_tile, width), jnp.float32)
    gradient = jax.lax.fori_loop(0, counts[mine], with_keys, none)
    d_q[...] = gradient.astype(d_q.dtype)

  tile = lambda x: _tile(x, query_tile)
  of_kv_head = lambda x: pl.BlockSpec(
    (None, None, *x.shape[2:]), lambda i, head, row: (row, jax.lax.div(head, repeats), 0, 0)
  )
  lists, list_specs = _lists(plan, places)
  positions, position_specs = _positions(places)
  return pl.pallas_call(
    kernel,
    grid=(of_queries, heads, rows),
    in_specs=[*list_specs, tile(q), of_kv_head(k), of_kv_head(v)]
    + [tile(d_out), tile(log_total), tile(mean), *position_specs],
    out_specs=tile(q),
    out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
    compiler_params=_params(width),
    interpret=interpret,
    name="tree_attention_backward_of_queries",
  )(*lists, q, k, v, d_out, log_total, mean, *positions)


def backward_of_keys(given: Given, plan: Plan, *, interpret: bool) -> tuple[jax.Array, jax.Array]:
  """Gradients of `given.k` and `given.v`, over all query heads of a kv head.

  Arguments as `backward_of_queries`, but plan: tiles of queries for each tile of keys.
  """
  q, k, v, d_out, log_total, mean, places = given
  rows, groups, length, width = k.shape
  query_tile, key_tile = shape = sides(q, k)
  of_keys, repeats = length // key_tile, q.shape[1] // groups

  def kernel(tiles, counts, limits, q, k, v, d_out, log_total, mean, *refs):
    (*positions, d_k, d_v) = refs
    j, row = pl.program_id(0), pl.program_id(2)
    mine = row * of_keys + j
    count, keys, values = counts[mine], k[...], v[...]

    def with_queries(n, carry):
      gradient_k, gradient_v = carry
      head, i = jax.lax.div(n, count), tiles[mine * plan.most + jax.lax.rem(n, count)]
      at = pl.ds(i * query_tile, query_tile)
      queries, cotangent = q[head, at, :], d_out[head, at, :]
      seen = _seen(limits, i, j, shape, positions, keys_first=True)
      d_weights = tiles_lib.inner(values, cotangent)
      log_totals, means = log_total[head, at][None], mean[head, at][None]
      scores = tiles_lib.inner(keys, queries)
      weights, d_scores = tiles_lib.backward(scores, seen, log_totals, d_weights, means)
      gradient_k += tiles_lib.product(d_scores.astype(queries.dtype), queries)
      gradient_v += tiles_lib.product(weights.astype(cotangent.dtype), cotangent)
      return gradient_k, gradient_v

    zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
    carry = zeros(keys), zeros(values)
    gradients = jax.lax.fori_loop(0, count * repeats, with_queries, carry)
    d_k[...], d_v[...] = (x.astype(d_k.dtype) for x in gradients)

  tile = lambda x: _tile(x, key_tile)
  of_group = lambda x: pl.BlockSpec(
    (None, repeats, *x.shape[2:]), lambda j, group, row: (row, group, *[0] * (x.ndim - 2))
  )
  lists, list_specs = _lists(plan, places)
  positions, position_specs = _positions(places)
  return pl.pallas_call(
    kernel,
    grid=(of_keys, groups, rows),
    in_specs=[*list_specs, of_group(q), tile(k), tile(v)]
    + [of_group(d_out), of_group(log_total), of_group(mean), *position_specs],
    out_specs=[tile(k), tile(v)],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
    compiler_params=_params(width),
    interpret=interpret,
    name="tree_attention_backward_of_keys",
  )(*lists, q, k, v, d_out, log_total, mean, *positions)


def _seen(limits, i, j, shape, positions, *, keys_first: bool = False) -> jax.Array:
  """Which queries of tile i see which keys of tile j: bool [Q, K], or [K, Q] with keys first."""
  ends, key_depths, query_depths = positions
  query_tile, key_tile = shape
  of_queries = lambda x: x[None] if keys_first else x[:, None]
  of_keys = lambda x: x[:, None] if keys_first else x[None]
  queries, keys = pl.ds(i * query_tile, query_tile), pl.ds(j * key_tile, key_tile)
  window, back = None, 0
  if key_depths is not None:
    window, back = limits[1], of_queries(query_depths[queries]) - of_keys(key_depths[keys])
  return tiles_lib.visible(
    of_queries(limits[0] + i * query_tile + jnp.arange(query_tile)),
    of_keys(j * key_tile + jnp.arange(key_tile)),
    of_keys(ends[keys]),
    window,
    back,
  )


def _tile(x, side: int) -> pl.BlockSpec:
  """A tile of [B, N, T, ...], in a grid of (tile, head, row)."""
  shape = None, None, side, *x.shape[3:]
  return pl.BlockSpec(shape, lambda i, head, row: (row, head, i, *[0] * (len(x.shape) - 3)))


def _lists(plan: Plan, places: Places, *more: jax.Array):
  """Arrays of which a program reads single numbers, and their specs."""
  arrays = plan.tiles, plan.counts, places.limits, *more
  return arrays, [pl.BlockSpec(x.shape, lambda *_: (0,)) for x in arrays]


def _positions(places: Places):
  """ends, depths of the keys and of the queries of a row, and their specs; depths only if read."""
  windows = places.window is not None
  depths = (places.key_depths, places.query_depths) if windows else (None, None)
  arrays = places.ends, *depths
  whole = lambda x: pl.BlockSpec((None, x.shape[1]), lambda i, head, row: (row, 0))
  return arrays, [None if x is None else whole(x) for x in arrays]


def _params(width: int):
  from jax.experimental.pallas import triton

  return triton.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=2)
