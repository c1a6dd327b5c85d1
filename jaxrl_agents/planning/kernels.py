"""FLOPs of the kernels in a compiled program, of which XLA knows no cycles.

A call is known by its name and the shapes of its operands. Products are counted as the matrix unit
computes them: widths of heads are filled up to its side. Rows of a grouped product that hold no
pair, and tiles that attention's mask rules out, are not computed and not counted.

Alphabet: N heads, T time of the queries, S time of the keys, H head dim, M rows, E experts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

SPLASH = {"splash_mha_fwd": (1, 1), "splash_mha_dkv": (2, 2), "splash_mha_dq": (2, 1)}
"""Products of all queries with all keys: as wide as keys, and as wide as values."""

TREES = {
  "tree_attention_forward": (1, 1),
  "tree_attention_backward_of_keys": (2, 2),
  "tree_attention_backward_of_queries": (2, 1),
}
"""The same numbers for the kernels of `attention.tree_flash_tpu`."""


@dataclasses.dataclass(frozen=True)
class Kernel:
  """One call of a kernel in a program.

  Attributes:
    name: of the kernel.
    operands: shapes, those of integers first, as the kernels have them.
    first_float: how many of them are integers.
    times: how often it runs.
  """

  name: str
  operands: tuple[tuple[int, ...], ...]
  first_float: int
  times: float


@dataclasses.dataclass(frozen=True)
class Expected:
  """What the data decides, and the program does not tell.

  Attributes:
    filled: share of a grouped product's rows that hold a pair.
    seen: share of its keys that a query sees where no window hides any, on average on the device
      that sees the most.
    windows: share of the layers that have a window. Where there are any, a program has both masks
      in every layer, and uses one.
  """

  filled: float = 1.0
  seen: float = 0.5
  windows: float = 0.0


def flops(kernel: Kernel, expected: Expected, side: int) -> float:
  """Floating-point operations of all runs, on matrix units of that side; 0 for an unknown kernel.

  Of attention to trees, layers with a window count like others, and a place sees as many keys as in
  a row of one sequence: both are bounds from above.
  """
  floats = kernel.operands[kernel.first_float :]
  for name, products in SPLASH.items():
    if kernel.name.startswith(name):
      return _attention(kernel, floats, products, _seen(kernel.operands[0], expected), side)
  for name, products in TREES.items():
    if name in kernel.name:  # jax puts the transformations that made the call around it
      arrays = [shape for shape in floats if len(shape) == 4]  # the sinks [N] come before
      return _attention(kernel, arrays, products, expected.seen, side)
  rows = floats[0][0] if floats else 0
  if kernel.name.startswith("gmm"):
    return kernel.times * 2.0 * rows * expected.filled * math.prod(floats[1][1:])
  if kernel.name.startswith("tgmm"):
    return kernel.times * 2.0 * rows * expected.filled * floats[0][1] * floats[1][1]
  return 0.0


def _attention(
  kernel: Kernel,
  arrays: Sequence[tuple[int, ...]],
  products: tuple[int, int],
  seen: float,
  side: int,
) -> float:
  """FLOPs of `products` of arrays that begin with q [..., T, H], k [..., S, H], v [..., S, H']."""
  q, k, v = arrays[:3]
  wide = [-(-x[-1] // side) * side for x in (k, v)]
  of_pair = 2.0 * sum(n * width for n, width in zip(products, wide, strict=True))
  return kernel.times * math.prod(q[:-1]) * k[-2] * seen * of_pair


def _seen(plan: tuple[int, ...], expected: Expected) -> float:
  """Share of all keys; `plan` [heads, tiles, tiles] is narrow where it is that of a window."""
  narrow, wide = sorted(plan[-2:])
  if not expected.windows:
    return expected.seen
  if narrow * 4 > wide:
    return (1 - expected.windows) * expected.seen
  return expected.windows * narrow / wide
