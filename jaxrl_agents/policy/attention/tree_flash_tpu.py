"""Attention to trees on TPU: Pallas kernels for Mosaic. The innermost axis of the grid is the loop.

What a step of the grid reads is fetched during the step before it. The axis is as long as the
longest list of the plan; steps after the end of a list fetch and compute nothing.

Alphabet: B rows, T time of the queries, S time of the keys, G kv heads, R query heads of a kv head,
N = G R, H head dim, Q and K queries and keys of a tile, I and J tiles of queries and of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jaxrl_agents.policy.attention import tree_tiles as tiles_lib
from jaxrl_agents.policy.attention.tree_tiles import Given, Places, Plan
from jaxrl_agents.policy.kernel_choice import tile_side

SIDE, LONG_SIDE = 512, 1024
"""Sides of a tile, and of a tile of keys where there are many. Nothing was tuned: wider ones skip
less, narrower ones take more steps."""

MOST_LISTED = 1 << 17
"""Tiles in a plan: half of the memory that a TPU has for numbers that decide what is fetched."""


def head_width(width: int) -> int:
  """What a head's width is filled up to: nothing, the compiler fills up lanes."""
  return width


def sides(q: jax.Array, k: jax.Array) -> tuple[int, int]:
  """Queries and keys of a tile."""
  rows, _, queries, _ = q.shape
  keys = k.shape[2]
  query_tile = tile_side(queries, SIDE)
  for most in (SIDE, LONG_SIDE):
    key_tile = tile_side(keys, most)
    listed = rows * (queries // query_tile) * (keys // key_tile)
    if listed <= MOST_LISTED:
      return query_tile, key_tile
  raise ValueError(
    f"{rows} rows of {keys} tokens a device make a plan of {listed} tiles of attention, and a TPU "
    f"holds {MOST_LISTED}; lower learner.rows_per_microbatch, or make learner.row_tokens a "
    f"multiple of {LONG_SIDE}"
  )


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
  """As tree_flash_gpu.forward."""
  rows, heads, length, _ = q.shape
  query_tile, key_tile = shape = sides(q, k)
  of_queries, value_width = length // query_tile, v.shape[-1]

  def kernel(tiles, counts, limits, sinks, q, k, v, *refs):
    (*positions, out, log_total, top, total, mixed) = refs
    row, head, i, n = (pl.program_id(axis) for axis in range(4))
    mine, last = row * of_queries + i, pl.num_programs(3) - 1

    @pl.when(n == 0)
    def _():
      top[...], total[...] = tiles_lib.start_of_softmax(sinks[head], query_tile)
      mixed[...] = jnp.zeros_like(mixed)

    @pl.when(n < counts[mine])
    def _():
      seen = _seen(limits, i, tiles[mine * plan.most + n], shape, positions)
      carry = top[...], total[...], mixed[...]
      carry = tiles_lib.add_keys(carry, tiles_lib.inner(q[...], k[...]), seen, v[...])
      top[...], total[...], mixed[...] = carry

    @pl.when(n == last)
    def _():
      out[...] = (mixed[...] / total[...]).astype(out.dtype)
      log_total[...] = (top[...] + jnp.log(total[...])).T

  own, streamed = _blocks_over_keys(plan, shape, of_queries, heads // k.shape[1])
  positions, position_specs = _positions(places, own, streamed)
  out, log_total = _call(
    kernel,
    "tree_attention_forward",
    (rows, heads, of_queries, _longest(plan)),
    lists=(plan.tiles, plan.counts, places.limits, sinks),
    in_specs=[own.of(q), streamed.of(k), streamed.of(v), *position_specs],
    out_specs=[own.of(v), own.statistics],
    out_shape=[
      jax.ShapeDtypeStruct((*q.shape[:3], value_width), v.dtype),
      jax.ShapeDtypeStruct((rows, heads, 1, length), jnp.float32),
    ],
    scratch=[(query_tile, 1), (query_tile, 1), (query_tile, value_width)],
    interpret=interpret,
  )(q, k, v, *positions)
  return out, log_total[:, :, 0]


def backward_of_queries(given: Given, plan: Plan, *, interpret: bool) -> jax.Array:
  """As tree_flash_gpu.backward_of_queries."""
  q, k, v, d_out, log_total, mean, places = given
  rows, heads, length, width = q.shape
  query_tile, key_tile = shape = sides(q, k)
  of_queries = length // query_tile

  def kernel(tiles, counts, limits, q, k, v, d_out, log_total, mean, *refs):
    (*positions, d_q, log_totals, means, gradient) = refs
    row, i, n = (pl.program_id(axis) for axis in (0, 2, 3))
    mine, last = row * of_queries + i, pl.num_programs(3) - 1

    @pl.when(n == 0)
    def _():
      log_totals[...], means[...] = log_total[...].T, mean[...].T
      gradient[...] = jnp.zeros_like(gradient)

    @pl.when(n < counts[mine])
    def _():
      seen = _seen(limits, i, tiles[mine * plan.most + n], shape, positions)
      scores, d_weights = tiles_lib.inner(q[...], k[...]), tiles_lib.inner(d_out[...], v[...])
      _, d_scores = tiles_lib.backward(scores, seen, log_totals[...], d_weights, means[...])
      gradient[...] += tiles_lib.product(d_scores.astype(k.dtype), k[...])

    @pl.when(n == last)
    def _():
      d_q[...] = gradient[...].astype(d_q.dtype)

  own, streamed = _blocks_over_keys(plan, shape, of_queries, heads // k.shape[1])
  positions, position_specs = _positions(places, own, streamed)
  return _call(
    kernel,
    "tree_attention_backward_of_queries",
    (rows, heads, of_queries, _longest(plan)),
    lists=(plan.tiles, plan.counts, places.limits),
    in_specs=[own.of(q), streamed.of(k), streamed.of(v), own.of(d_out)]
    + [own.statistics, own.statistics, *position_specs],
    out_specs=own.of(q),
    out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
    scratch=[(query_tile, 1), (query_tile, 1), (query_tile, width)],
    interpret=interpret,
  )(q, k, v, d_out, log_total[:, :, None], mean[:, :, None], *positions)


def backward_of_keys(given: Given, plan: Plan, *, interpret: bool) -> tuple[jax.Array, jax.Array]:
  """As tree_flash_gpu.backward_of_keys."""
  q, k, v, d_out, log_total, mean, places = given
  rows, groups, length, width = k.shape
  query_tile, key_tile = shape = sides(q, k)
  of_keys, repeats = length // key_tile, q.shape[1] // groups

  def kernel(tiles, counts, limits, q, k, v, d_out, log_total, mean, *refs):
    (*positions, d_k, d_v, gradient_k, gradient_v) = refs
    row, j, head, n = (pl.program_id(axis) for axis in (0, 2, 3, 4))
    mine = row * of_keys + j
    last = (head == repeats - 1) & (n == pl.num_programs(4) - 1)

    @pl.when((head == 0) & (n == 0))
    def _():
      gradient_k[...] = jnp.zeros_like(gradient_k)
      gradient_v[...] = jnp.zeros_like(gradient_v)

    @pl.when(n < counts[mine])
    def _():
      seen = _seen(limits, tiles[mine * plan.most + n], j, shape, positions, keys_first=True)
      scores, d_weights = tiles_lib.inner(k[...], q[...]), tiles_lib.inner(v[...], d_out[...])
      weights, d_scores = tiles_lib.backward(scores, seen, log_total[...], d_weights, mean[...])
      gradient_k[...] += tiles_lib.product(d_scores.astype(q.dtype), q[...])
      gradient_v[...] += tiles_lib.product(weights.astype(d_out.dtype), d_out[...])

    @pl.when(last)
    def _():
      d_k[...] = gradient_k[...].astype(d_k.dtype)
      d_v[...] = gradient_v[...].astype(d_v.dtype)

  listed = _listed(plan, of_keys)
  own = _Blocks(key_tile, lambda row, group, j, *_: (row, group, j))
  streamed = _Blocks(
    query_tile,
    lambda row, group, j, r, n, *lists: (row, group * repeats + r, listed(row, j, n, *lists)),
  )
  positions, position_specs = _positions(places, streamed, own)
  return _call(
    kernel,
    "tree_attention_backward_of_keys",
    (rows, groups, of_keys, repeats, _longest(plan)),
    lists=(plan.tiles, plan.counts, places.limits),
    in_specs=[streamed.of(q), own.of(k), own.of(v), streamed.of(d_out)]
    + [streamed.statistics, streamed.statistics, *position_specs],
    out_specs=[own.of(k), own.of(v)],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
    scratch=[(key_tile, width), (key_tile, v.shape[-1])],
    interpret=interpret,
  )(q, k, v, d_out, log_total[:, :, None], mean[:, :, None], *positions)


def _seen(limits, i, j, shape, positions, *, keys_first: bool = False) -> jax.Array:
  """Which queries of tile i see which keys of tile j: bool [Q, K], or [K, Q] with keys first."""
  ends, key_depths, query_depths = positions
  query_axis, key_axis = (1, 0) if keys_first else (0, 1)

  def places(first, size, axis):
    line = (1, size) if axis else (size, 1)
    return first + jax.lax.broadcasted_iota(jnp.int32, line, axis)

  along = lambda ref, axis: ref[...] if axis else ref[...].T
  window, back = None, 0
  if key_depths is not None:
    window, back = limits[1], along(query_depths, query_axis) - along(key_depths, key_axis)
  return tiles_lib.visible(
    places(limits[0] + i * shape[0], shape[0], query_axis),
    places(j * shape[1], shape[1], key_axis),
    along(ends, key_axis),
    window,
    back,
  )


class _Blocks(NamedTuple):
  """Specs of blocks of time.

  Attributes:
    size: how many queries or keys a block has.
    place: (row, head, block) of a step of the grid.
  """

  size: int
  place: Callable

  def of(self, array: jax.Array) -> pl.BlockSpec:
    """The blocks of queries, keys, values or their gradients [B, N, T, H]."""
    shape = None, None, self.size, array.shape[-1]
    return pl.BlockSpec(shape, lambda *at: (*self.place(*at), 0))

  @property
  def statistics(self) -> pl.BlockSpec:
    """The blocks of numbers of each head [B, N, 1, T]."""

    def index(*at):
      row, head, block = self.place(*at)
      return row, head, 0, block

    return pl.BlockSpec((None, None, 1, self.size), index)

  @property
  def positions(self) -> pl.BlockSpec:
    """The blocks of numbers of all heads [B, 1, T]."""

    def index(*at):
      row, _, block = self.place(*at)
      return row, 0, block

    return pl.BlockSpec((None, 1, self.size), index)


def _blocks_over_keys(plan: Plan, shape: tuple[int, int], of_queries: int, repeats: int):
  """Blocks of queries, that a tile has, and of keys, over which it loops."""
  listed = _listed(plan, of_queries)
  return _Blocks(shape[0], lambda row, head, i, *_: (row, head, i)), _Blocks(
    shape[1],
    lambda row, head, i, n, *lists: (row, jax.lax.div(head, repeats), listed(row, i, n, *lists)),
  )


def _listed(plan: Plan, count: int) -> Callable:
  """The tile that step n of a tile's loop reads: after the end of its list, the last one again."""

  def tile(row, own, n, tiles, counts, *_):
    own = row * count + own
    return tiles[own * plan.most + jnp.minimum(n, jnp.maximum(counts[own] - 1, 0))]

  return tile


def _longest(plan: Plan) -> jax.Array:
  return jnp.maximum(jnp.max(plan.counts), 1)


def _positions(places: Places, of_queries: _Blocks, of_keys: _Blocks):
  """ends, depths of the keys and of the queries, and their specs; depths only if they are read."""
  arrays = (places.ends, places.key_depths, places.query_depths)
  specs = of_keys.positions, of_keys.positions, of_queries.positions
  if places.window is None:
    return (places.ends[:, None], None, None), [specs[0], None, None]
  return [x[:, None] for x in arrays], list(specs)


def _call(kernel, name, grid, *, lists, in_specs, out_specs, out_shape, scratch, interpret):
  """The call of a kernel; it takes all but the lists, of which steps read single numbers.

  Args:
    scratch: shapes of float32 arrays that stay from step to step.
  """
  from jax.experimental.pallas import tpu

  call = pl.pallas_call(
    kernel,
    grid_spec=tpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(lists),
      grid=grid,
      in_specs=in_specs,
      out_specs=out_specs,
      scratch_shapes=[tpu.VMEM(shape, jnp.float32) for shape in scratch],
    ),
    out_shape=out_shape,
    interpret=interpret,
    name=name,
  )
  return lambda *arrays: call(*lists, *arrays)
