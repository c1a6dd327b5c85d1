"""Boxes of arrays: which part of a stored shard lies in what a device holds."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[slice, ...]
"""A slice with start and stop along each axis."""


def of(offset: Sequence[int], shape: Sequence[int]) -> Box:
  """The box at an offset."""
  return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


def overlap(offset: Sequence[int], shape: Sequence[int], box: Box) -> Box | None:
  """What a shard and a box have in common, as slices of the whole array; None if nothing."""
  both = tuple(
    slice(max(first, s.start), min(first + extent, s.stop))
    for first, extent, s in zip(offset, shape, box, strict=True)
  )
  return None if any(s.start >= s.stop for s in both) else both


def within(box: Box, offset: Sequence[int]) -> Box:
  """A box of the whole array as slices of the part that begins at `offset`."""
  return tuple(slice(s.start - o, s.stop - o) for s, o in zip(box, offset, strict=True))
