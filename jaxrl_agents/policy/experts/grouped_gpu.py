"""Grouped products on GPU: Pallas kernels for Triton.

Rows come sorted by group, and each is multiplied by its group's matrix. Rows are cut into tiles
without regard to groups; a tile in which groups meet is computed once for each of them, and each
time only the rows of that group are written. How many pairs of tile and group there are is known
only when it runs, but they are fewer than tiles and groups together, so that a grid of that size
holds them: programs that are left over do nothing.

Alphabet: S rows, E groups, A and B inputs and outputs of a matrix, W pairs of tile and group.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jaxrl_agents.policy.kernel_choice import tile_side

TILE_ROWS, FEWEST_ROWS = 128, 16
"""Rows of a tile: at most, and where groups have few rows (decoding) the fewest of a product."""

TILE_OUTPUTS, TILE_INPUTS = 128, 64
"""What a tile has of a matrix. Nothing was tuned on a device."""

FEWEST_WIDTH = 16
"""Widths that are no multiple of it are filled up."""


class _Work(NamedTuple):
  """Pairs of tile and group, int32 [W] each.

  group, tile: indices. first, last: rows of the group, the last one not included; none in pairs
  that are left over.
  """

  group: jax.Array
  tile: jax.Array
  first: jax.Array
  last: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def product(
  rows: jax.Array, matrices: jax.Array, sizes: jax.Array, interpret: bool = False
) -> jax.Array:
  """Each row times the matrix of its group; rows after those of all groups hold anything.

  Args:
    rows: [S, A], sorted by group, S a multiple of 128.
    matrices: [E, A, B].
    sizes: int32 [E], rows of each group.
    interpret: run it step by step, on any machine.

  Returns:
    [S, B].
  """
  return _of_rows(rows, matrices, sizes, transposed=False, interpret=interpret)


def _forward(rows, matrices, sizes, interpret):
  return product(rows, matrices, sizes, interpret), (rows, matrices, sizes)


def _backward(interpret, saved, d_out):
  rows, matrices, sizes = saved
  d_rows = _of_rows(d_out, matrices, sizes, transposed=True, interpret=interpret)
  return d_rows, _of_matrices(rows, d_out, sizes, interpret=interpret), None


product.defvjp(_forward, _backward)


def _of_rows(rows, matrices, sizes, *, transposed: bool, interpret: bool) -> jax.Array:
  """[S, B] = rows [S, A] times the matrices [E, A, B], or transposed ones [E, B, A]."""
  width = matrices.shape[1 if transposed else 2]
  rows, matrices = _filled_up(rows), _filled_up(matrices)
  inputs, outputs = matrices.shape[1:][:: -1 if transposed else 1]
  tile, side, step = _tile_rows(rows, sizes), tile_side(outputs, TILE_OUTPUTS), _step(inputs, rows)
  work = _work(sizes, len(rows), tile)
  contract = ((1,), (1,)) if transposed else ((1,), (0,))

  def kernel(groups, tiles, firsts, lasts, rows, matrices, out):
    column, pair = pl.program_id(0), pl.program_id(1)
    group, first, last = groups[pair], firsts[pair], lasts[pair]
    start = tiles[pair] * tile
    own, columns = pl.ds(start, tile), pl.ds(column * side, side)

    def add(n, total):
      part = pl.ds(n * step, step)
      matrix = matrices[group, columns, part] if transposed else matrices[group, part, columns]
      return total + _dot(rows[own, part], matrix, contract)

    steps = jnp.minimum(last - first, 1) * (inputs // step)  # none without rows
    total = jax.lax.fori_loop(0, steps, add, jnp.zeros((tile, side), jnp.float32))
    place = start + jnp.arange(tile)
    mine = (place >= first) & (place < last)
    _store(out.at[own, columns], total.astype(out.dtype), mine[:, None])

  out = _call(
    kernel,
    (outputs // side, len(work.group)),
    jax.ShapeDtypeStruct((len(rows), outputs), rows.dtype),
    interpret=interpret,
    name="grouped_product",
  )(*work, rows, matrices)
  return out[:, :width]


def _of_matrices(rows, d_out, sizes, *, interpret: bool) -> jax.Array:
  """[E, A, B] = of each group, its rows [S, A] transposed times theirs of `d_out` [S, B]."""
  shape = len(sizes), rows.shape[1], d_out.shape[1]
  rows, d_out = _filled_up(rows), _filled_up(d_out)
  inputs, outputs = rows.shape[1], d_out.shape[1]
  high, wide = tile_side(inputs, TILE_OUTPUTS), tile_side(outputs, TILE_OUTPUTS)
  step = _step(len(rows), rows)
  lasts = jnp.cumsum(sizes)

  def kernel(firsts, lasts, rows, d_out, out):
    i, j, group = (pl.program_id(axis) for axis in range(3))
    first, last = firsts[group], lasts[group]
    across, down = pl.ds(j * wide, wide), pl.ds(i * high, high)

    def add(n, total):
      place = n * step + jnp.arange(step)
      mine = (place >= first) & (place < last)
      part = pl.ds(n * step, step)
      # Rows of other groups are finite, so that it is enough to leave them out on one side.
      given = jnp.where(mine[:, None], d_out[part, across], 0)
      return total + _dot(rows[part, down], given, ((0,), (0,)))

    begin, end = jax.lax.div(first, step), jax.lax.div(last + step - 1, step)
    total = jax.lax.fori_loop(begin, end, add, jnp.zeros((high, wide), jnp.float32))
    out[group, down, across] = total.astype(out.dtype)

  out = _call(
    kernel,
    (inputs // high, outputs // wide, len(sizes)),
    jax.ShapeDtypeStruct((len(sizes), inputs, outputs), rows.dtype),
    interpret=interpret,
    name="grouped_product_of_matrices",
  )(lasts - sizes, lasts, rows, d_out)
  return out[:, : shape[1], : shape[2]]


def _work(sizes: jax.Array, rows: int, tile: int) -> _Work:
  """The pairs of tile and group, in the order of rows."""
  last = jnp.cumsum(sizes)
  first = last - sizes
  tiles = jnp.where(sizes > 0, -(-last // tile) - first // tile, 0)
  so_far = jnp.cumsum(tiles)
  pair = jnp.arange(rows // tile + len(sizes) - 1, dtype=jnp.int32)
  group = jnp.sum(so_far <= pair[:, None], axis=1, dtype=jnp.int32)
  real = group < len(sizes)
  group = jnp.where(real, group, 0)
  place = jnp.where(real, first[group] // tile + pair - (so_far - tiles)[group], 0)
  nothing = lambda x: jnp.where(real, x[group], 0).astype(jnp.int32)
  return _Work(group, place.astype(jnp.int32), nothing(first), nothing(last))


def _tile_rows(rows: jax.Array, sizes: jax.Array) -> int:
  """A power of two about as large as a group is on average."""
  average = pl.next_power_of_2(max(1, len(rows) // len(sizes)))
  return min(max(average, FEWEST_ROWS), TILE_ROWS)


def _step(length: int, rows: jax.Array) -> int:
  """How much of a sum is added at a time: as many bytes of any type."""
  return tile_side(length, TILE_INPUTS * 2 // rows.dtype.itemsize)


def _filled_up(array: jax.Array) -> jax.Array:
  """With widths, of matrices both, that are multiples of FEWEST_WIDTH."""
  more = [(0, 0), *((0, -n % FEWEST_WIDTH) for n in array.shape[1:])]
  return jnp.pad(array, more) if any(n for _, n in more) else array


def _dot(a: jax.Array, b: jax.Array, contract: tuple) -> jax.Array:
  return jax.lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


def _store(ref, value: jax.Array, mask: jax.Array) -> None:
  from jax.experimental.pallas import triton

  triton.store(ref, value, mask=mask)


def _call(kernel, grid: tuple[int, ...], out_shape, *, interpret: bool, name: str):
  """The call of a kernel whose programs find their own parts of whole arrays."""
  from jax.experimental.pallas import triton

  return pl.pallas_call(
    kernel,
    grid=grid,
    out_shape=out_shape,
    compiler_params=triton.CompilerParams(num_warps=8, num_stages=3),
    interpret=interpret,
    name=name,
  )
