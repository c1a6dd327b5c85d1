"""Differences of floating-point numbers as integers in the order of the numbers, and digests.

The bits of a number, those of negative ones complemented and the top bit of the others set, are an
unsigned integer `ord(x)` that grows with x, by 1 from each number to the next. So

    d = ord(new) - ord(old)  mod 2^b,     new = ord^-1(ord(old) + d)

is exact for every pattern of bits (-0.0 and NaN too), invertible, and differences of consecutive
versions add up. Elementwise, so that XLA splits it as the arrays are split.

Adding is not idempotent, as overwriting would be; therefore a digest of the array before and after
is computed in the same program. It is a pair of sums of the bits times odd hashes of their index,
mod 2^32: the same for every split of the array over devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any

_ODD = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)


def bits_of(dtype: Any) -> np.dtype:
  """The unsigned integers of a floating-point type of 16 or 32 bits.

  Raises:
    ValueError: it is of another kind.
  """
  dtype = jnp.dtype(dtype)
  if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize not in (2, 4):
    raise ValueError(
      f"differences are of bfloat16, float16 and float32, not of {dtype.name}; set "
      "publish.kind=full"
    )
  return np.dtype(f"u{dtype.itemsize}")


def difference(new: jax.Array, old: jax.Array) -> jax.Array:
  """`ord(new) - ord(old)`, unsigned integers of the same shape and width."""
  return _ordered(new) - _ordered(old)


def moved(old: jax.Array, differences: jax.Array) -> jax.Array:
  """The array `differences` after `old`: the inverse of `difference`."""
  order = _ordered(old) + differences
  top = _top(order.dtype)
  bits = jnp.where(order >= top, order ^ top, ~order)
  return jax.lax.bitcast_convert_type(bits, old.dtype)


def digest(values: jax.Array, *, layer: int | None = None) -> jax.Array:
  """uint32 [2]: sums of the bits times each of two odd hashes of the index, mod 2^32.

  Args:
    values: floating-point [...].
    layer: None, or the index of `values` along a leading axis of the array that it is a slice of;
      the digests of all slices add up to that of the array.
  """
  bits = jax.lax.bitcast_convert_type(values, bits_of(values.dtype)).astype(jnp.uint32)
  first, second = _index_hashes(values.shape, layer)
  return jnp.stack([jnp.sum(bits * h, dtype=jnp.uint32) for h in (first, second)])


def digests(tree: Tree, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.Array]:
  """{dotted name: digest} of the arrays that a tree holds, however it is laid out for sampling.

  Args:
    tree: nested dicts of arrays, or of tuples of the layers of stacked arrays; an array may have
      merged axes, or be padded at the end of axes.
    shapes: {name: shape of the array}, layers stacked.
  """
  found: dict[str, jax.Array] = {}
  for path, leaf in jax.tree.leaves_with_path(tree):
    name = ".".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))
    layer = next((key.idx for key in path if isinstance(key, jax.tree_util.SequenceKey)), None)
    shape = shapes[name] if layer is None else shapes[name][1:]
    whole = leaf.reshape(shape) if leaf.size == math.prod(shape) else leaf[_box(shape)]
    one = digest(whole, layer=layer)
    found[name] = found[name] + one if name in found else one
  return found


def _index_hashes(shape: tuple[int, ...], layer: int | None) -> tuple[jax.Array, jax.Array]:
  """Two arrays of odd uint32, from the index along each axis, each below 2^32.

  Each axis is mixed as in the finaliser of MurmurHash3 (https://github.com/aappleby/smhasher).
  """
  total = jnp.zeros(shape, jnp.uint32)
  if layer is not None:
    total = total + _of_axis(jnp.uint32(layer), 0)
  for axis, size in enumerate(shape):
    along = _of_axis(jnp.arange(size, dtype=jnp.uint32), axis + (layer is not None))
    total = total + along.reshape([-1 if i == axis else 1 for i in range(len(shape))])
  first = (total ^ (total >> 15)) * np.uint32(_ODD[2])
  second = (first ^ (first >> 13)) * np.uint32(_ODD[3])
  return first | 1, second | 1


def _of_axis(index: jax.Array, axis: int) -> jax.Array:
  x = index * np.uint32(_ODD[0]) + np.uint32(_ODD[1] * (axis + 1) % 2**32)
  x = (x ^ (x >> 16)) * np.uint32(_ODD[1])
  x = (x ^ (x >> 13)) * np.uint32(_ODD[2])
  return x ^ (x >> 16)


def _box(shape: tuple[int, ...]) -> tuple[slice, ...]:
  return tuple(slice(0, size) for size in shape)


def _ordered(values: jax.Array) -> jax.Array:
  bits = jax.lax.bitcast_convert_type(values, bits_of(values.dtype))
  top = _top(bits.dtype)
  return jnp.where(bits >= top, ~bits, bits | top)


def _top(dtype: Any) -> jax.Array:
  return jnp.array(1 << (8 * jnp.dtype(dtype).itemsize - 1), dtype)
