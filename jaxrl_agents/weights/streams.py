"""Differences between two versions of a shard as byte streams that compress well. numpy only.

Most values of a bfloat16 policy do not change in a step of reinforcement learning, and most of
those that do move to a neighbouring number. So positions are coded as gaps, moves by one as a sign,
and all others as a sign and a magnitude:

    blocks   a bit for each block of 1,024 values: whether any of them changed
    gaps     unchanged values of such blocks before each changed one; 255 stands for 255 more
    signs    a bit for each change: whether it is negative
    far      moves by one before each move of more, as `gaps`
    byte0..3 magnitudes of those moves, less two, by bytes, the lowest first

Where more than RAW_ABOVE of the values changed, all differences stand in byte0 to byte3 as 2 d for
d >= 0 and -2 d - 1 for d < 0. A compressor behind this (weights.delta_files) gets within some per
cent of the entropy of the differences.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

NAMES = ("blocks", "gaps", "signs", "far", "byte0", "byte1", "byte2", "byte3")

BLOCK = 1_024
"""Values that a bit of `blocks` stands for: an expert that no token reached costs a bit a block."""

RAW_ABOVE = 0.4
"""Share of changed values above which gaps cost more than they save."""

_ESCAPE = 255


def encode(differences: np.ndarray) -> dict[str, np.ndarray]:
  """The streams of differences modulo 2^16 or 2^32; those that are empty are left out.

  Args:
    differences: uint16 or uint32 [N].

  Returns:
    {name: uint8 [n]}; {} if nothing changed.
  """
  changed = np.flatnonzero(differences)
  if not changed.size:
    return {}
  if changed.size > RAW_ABOVE * differences.size:
    return _planes(_folded(differences))
  values = differences[changed]
  negative = values.view(_signed(values)) < 0
  magnitudes = np.where(negative, np.zeros_like(values) - values, values)
  touched = np.zeros(-(-differences.size // BLOCK), bool)
  touched[changed // BLOCK] = True
  rank = np.cumsum(touched) - 1
  positions = rank[changed // BLOCK] * BLOCK + changed % BLOCK
  far = np.flatnonzero(magnitudes != 1)
  streams = {
    "blocks": np.packbits(touched),
    "gaps": _gaps(positions),
    "signs": np.packbits(negative),
    "far": _gaps(far),
    **_planes(magnitudes[far] - magnitudes.dtype.type(2)),
  }
  return {name: stream for name, stream in streams.items() if stream.size}


def add(streams: Mapping[str, np.ndarray], onto: np.ndarray) -> None:
  """Adds the differences of `encode` to those in `onto`, modulo 2^16 or 2^32, in place.

  So the differences of several versions, added to zeros, are those from the first to the last.

  Args:
    streams: of `encode`.
    onto: uint16 or uint32 [N].

  Raises:
    ValueError: the streams are not those of N such differences.
  """
  if not streams:
    return
  if "gaps" not in streams:
    onto += _unfolded(_joined(streams, onto.size, onto.dtype))
    return
  blocks = -(-onto.size // BLOCK)
  touched = np.flatnonzero(_bits(streams, "blocks", blocks))
  positions = _positions(streams["gaps"])
  if positions.size and positions[-1] >= touched.size * BLOCK:
    raise ValueError("its gaps lead beyond its blocks")
  changed = touched[positions // BLOCK] * BLOCK + positions % BLOCK
  if changed.size and changed[-1] >= onto.size:
    raise ValueError(f"its gaps lead beyond its {onto.size} values")
  magnitudes = np.ones(changed.size, onto.dtype)
  far = _positions(streams.get("far", np.zeros(0, np.uint8)))
  if far.size and far[-1] >= changed.size:
    raise ValueError(f"it has large moves beyond its {changed.size} changes")
  magnitudes[far] = _joined(streams, far.size, onto.dtype) + onto.dtype.type(2)
  negative = _bits(streams, "signs", changed.size)
  onto[changed] += np.where(negative, np.zeros_like(magnitudes) - magnitudes, magnitudes)


def _gaps(positions: np.ndarray) -> np.ndarray:
  """Distances between ascending positions, less one, as bytes; _ESCAPE goes on."""
  gaps = np.diff(positions, prepend=-1) - 1
  ends = np.cumsum(gaps // _ESCAPE + 1)
  stream = np.full(int(ends[-1]) if ends.size else 0, _ESCAPE, np.uint8)
  stream[ends - 1] = gaps % _ESCAPE
  return stream


def _positions(stream: np.ndarray) -> np.ndarray:
  """The positions of `_gaps`."""
  if stream.size and stream[-1] == _ESCAPE:
    raise ValueError("its last gap does not end")
  ends = np.flatnonzero(stream != _ESCAPE)
  return np.cumsum(stream, dtype=np.int64)[ends] + np.arange(ends.size)


def _bits(streams: Mapping[str, np.ndarray], name: str, count: int) -> np.ndarray:
  stream = streams.get(name, np.zeros(0, np.uint8))
  if stream.size != -(-count // 8):
    raise ValueError(f"{stream.size} bytes of {name!r} are not {count} bits")
  return np.unpackbits(stream, count=count).astype(bool)


def _planes(values: np.ndarray) -> dict[str, np.ndarray]:
  """Unsigned integers [N] by their bytes."""
  size = values.dtype.itemsize
  little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
  plane = little.view(np.uint8).reshape(-1, size)
  return {f"byte{i}": np.ascontiguousarray(plane[:, i]) for i in range(size)}


def _joined(streams: Mapping[str, np.ndarray], count: int, dtype: np.dtype) -> np.ndarray:
  """`count` integers of `_planes`."""
  found = np.zeros((count, dtype.itemsize), np.uint8)
  for i in range(dtype.itemsize):
    plane = streams.get(f"byte{i}", np.zeros(0, np.uint8))
    if plane.size != count:
      raise ValueError(f"{plane.size} bytes of 'byte{i}' are not those of {count} values")
    found[:, i] = plane
  return found.reshape(-1).view(dtype.newbyteorder("<")).astype(dtype)


def _folded(differences: np.ndarray) -> np.ndarray:
  """0, -1, 1, -2, ... as 0, 1, 2, 3, ...: small moves have high bytes of 0, whatever their sign."""
  signed = differences.view(_signed(differences))
  return ((signed << 1) ^ (signed >> (8 * signed.itemsize - 1))).view(differences.dtype)


def _unfolded(folded: np.ndarray) -> np.ndarray:
  one = folded.dtype.type(1)
  return (folded >> one) ^ (np.zeros_like(folded) - (folded & one))


def _signed(values: np.ndarray) -> np.dtype:
  return np.dtype(f"i{values.dtype.itemsize}")
