"""Differences of floating-point numbers as integers in the order of the numbers, and digests.

The bits of a number, those of negative ones complemented and the top bit of the others set, are an
unsigned integer `ord(x)` that grows with x, by 1 from each number to the next. So

    d = ord(new) - ord(old)  mod 2^b,     new = ord^-1(ord(old) + d)

is exact for every pattern of bits (-0.0 and NaN too), invertible, and differences of consecutive
versions add up. Elementwise, so that XLA splits it as the arrays are split.

Adding is not idempotent, as overwriting would be; therefore digests of the array before and after
tell whether it was right. They are pairs of sums of the bits times odd hashes of their index, mod
2^32: the same for every split of the array over devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any

_ODD = np.array([0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35], np.uint32)
_SLICES = 8
"""A power of two: slices that a digest adds up before it reduces."""


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


def digest(
  values: jax.Array, *, layer: int | None = None, free: Sequence[int] | None = None
) -> jax.Array:
  """uint32 [2]: sums of the bits times each of two odd hashes of the index, mod 2^32.

  The hash of an index is the product of one for each axis. So a single wrong number is always
  found, and others are missed once in 2^32 or so.

  Args:
    values: floating-point [...].
    layer: None, or the index of `values` along a leading axis of the array that it is a slice of;
      the digests of all slices add up to that of the array.
    free: axes that are not split over devices; None for all.
  """
  bits = jax.lax.bitcast_convert_type(values, bits_of(values.dtype)).astype(jnp.uint32)
  first = 0 if layer is None else 1
  return jnp.stack([_lane(bits, lane, first, layer or 0, free) for lane in range(2)])


def digests(
  tree: Tree, shapes: Mapping[str, tuple[int, ...]], places: Tree
) -> dict[str, jax.Array]:
  """{dotted name: digest} of the arrays that a tree holds, however it is laid out for sampling.

  Args:
    tree: nested dicts of arrays, or of tuples of the layers of stacked arrays; an array may have
      merged axes at its end, or be padded at the end of axes.
    shapes: {name: shape of the array}, layers stacked.
    places: tree of shardings like `tree`; merged and padded axes are not split.
  """
  found: dict[str, jax.Array] = {}
  for (path, leaf), place in zip(
    jax.tree.leaves_with_path(tree), jax.tree.leaves(places), strict=True
  ):
    name = ".".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))
    layer = next((key.idx for key in path if isinstance(key, jax.tree_util.SequenceKey)), None)
    shape = shapes[name] if layer is None else shapes[name][1:]
    whole = leaf.reshape(shape) if leaf.size == math.prod(shape) else leaf[_box(shape)]
    free = [i for i in range(len(shape)) if _is_free(place, min(i, leaf.ndim - 1))]
    one = digest(whole, layer=layer, free=free)
    found[name] = found[name] + one if name in found else one
  return found


def digests_program(tree: Tree, shapes: Mapping[str, tuple[int, ...]]) -> Any:
  """`digests` as a compiled function of trees like this one; every process can read the results.

  A program of its own: in one with what makes the arrays, XLA makes them again for each sum, and
  takes six times as long on a CPU.
  """
  places = jax.tree.map(lambda x: x.sharding, tree)
  out = jax.tree.leaves(places)[0]
  if isinstance(out, jax.sharding.NamedSharding):
    out = jax.sharding.NamedSharding(out.mesh, jax.sharding.PartitionSpec())
  jitted = jax.jit(lambda tree: digests(tree, shapes, places), out_shardings=out)
  return jitted.lower(tree).compile()


def _lane(
  bits: jax.Array, lane: int, first: int, layer: int, free: Sequence[int] | None
) -> jax.Array:
  """The sum of bits times hashes. XLA reduces integers slowly on a CPU, so slices along an axis are
  added up before the rest is reduced: elementwise, which is fast, and local where it is not split.
  """
  shape = bits.shape
  hashes = [_hashes(size, axis + first, lane) for axis, size in enumerate(shape)]
  along = lambda h, axis: h.reshape([-1 if i == axis else 1 for i in range(len(shape))])
  ways = {axis: math.gcd(shape[axis], _SLICES) for axis in range(len(shape))}
  axis = max(ways if free is None else free, key=lambda a: ways[a], default=None)
  if axis is not None and ways[axis] > 1:
    step = shape[axis] // ways[axis]
    total: Any = 0
    for start in range(0, shape[axis], step):
      part = jax.lax.slice_in_dim(bits, start, start + step, axis=axis)
      total = total + part * along(hashes[axis][start : start + step], axis)
    bits = total
    hashes[axis] = np.ones(step, np.uint32)
  for h in reversed(hashes):  # by axes: XLA would fold products of hashes to an array of this size
    bits = jnp.sum(bits * h, axis=-1, dtype=jnp.uint32)
  return bits * (_hashes(layer + 1, 0, lane)[layer] if first else np.uint32(1))


@functools.lru_cache(maxsize=1_024)
def _hashes(size: int, axis: int, lane: int) -> np.ndarray:
  """Odd uint32 [size]: the finaliser of MurmurHash3 (https://github.com/aappleby/smhasher) of
  indices along an axis.
  """
  x = np.arange(size, dtype=np.uint32) * _ODD[0] + np.uint32(
    int(_ODD[1]) * (2 * axis + lane + 1) % 2**32
  )
  x = (x ^ (x >> 16)) * _ODD[1]
  x = (x ^ (x >> 13)) * _ODD[2]
  return (x ^ (x >> 16)) | np.uint32(1)


def _is_free(place: Any, axis: int) -> bool:
  """Whether no device has a part of an axis alone."""
  if isinstance(place, jax.sharding.SingleDeviceSharding):
    return True
  spec = getattr(place, "spec", None)
  return spec is not None and (axis >= len(spec) or not spec[axis])


def _box(shape: tuple[int, ...]) -> tuple[slice, ...]:
  return tuple(slice(0, size) for size in shape)


def _ordered(values: jax.Array) -> jax.Array:
  bits = jax.lax.bitcast_convert_type(values, bits_of(values.dtype))
  top = _top(bits.dtype)
  return jnp.where(bits >= top, ~bits, bits | top)


def _top(dtype: Any) -> jax.Array:
  return jnp.array(1 << (8 * jnp.dtype(dtype).itemsize - 1), dtype)
