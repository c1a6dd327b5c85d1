"""Relations between the axes of a checkpoint's tensor and of our parameter: layouts and their
inverses.

Checkpoints hold linear maps as [out, in]; ours are [in, out] with heads or halves as axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Layout(NamedTuple):
  """Two functions (array, shape of the result) -> array, each the other's inverse.

  Attributes:
    to_ours: of a tensor of the checkpoint.
    to_theirs: of the part of a parameter that the tensor fills.
  """

  to_ours: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
  to_theirs: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


PLAIN = Layout(np.reshape, np.reshape)
"""A layout with the same numbers in the same order."""


def _turned(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """[out, in] as [in, out] split into `shape`: a view, for the one copy that is made of it."""
  inputs = next(n for n in range(len(shape) + 1) if math.prod(shape[:n]) == x.shape[1])
  split = x.reshape(*shape[inputs:], *shape[:inputs])
  return np.moveaxis(split, range(len(shape) - inputs, len(shape)), range(inputs))


LINEAR = Layout(
  _turned,
  lambda y, shape: y.reshape(shape[::-1]).T,
)
"""[out, in] as [in, out], where both sides may be split into further axes on ours."""


def interleaved(width: int) -> Layout:
  """LINEAR, and the last `width` numbers of our last axis are rotary pairs.

  Theirs are neighbours, (0, 1), (2, 3), ...; ours stand half of `width` apart. A pair turns by the
  same angle in either place, so that scores do not change.
  """
  theirs = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
  ours = np.argsort(theirs)

  def moved(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    fixed = x.shape[-1] - width
    return np.concatenate([x[..., :fixed], x[..., fixed:][..., order]], axis=-1)

  return Layout(
    lambda x, shape: moved(LINEAR.to_ours(x, shape), theirs),
    lambda y, shape: LINEAR.to_theirs(moved(y, ours), shape),
  )


def _halves_swapped(x: np.ndarray) -> np.ndarray:
  return np.roll(x, x.shape[0] // 2, axis=0)


HALVES_SWAPPED = Layout(
  lambda x, shape: _halves_swapped(LINEAR.to_ours(x, shape)),
  lambda y, shape: LINEAR.to_theirs(_halves_swapped(y), shape),
)
"""LINEAR of two inputs side by side, whose order is the other way round."""

GATE_UP_PAIRS = Layout(
  lambda x, shape: x.reshape(*shape[:-2], shape[-1], 2).swapaxes(-1, -2),
  lambda y, shape: y.swapaxes(-1, -2).reshape(shape),
)
"""[..., 2 F] of alternating gate and up (gpt-oss) as [..., 2, F]."""
