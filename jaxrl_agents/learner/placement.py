"""Which tree of sequences stands in which row of which microbatch. numpy only: no jax."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from jaxrl_agents.learner import prefix_trees
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.learner.prefix_trees import Tree
from jaxrl_agents.types import Segment

Segments = Sequence[tuple[int, Segment]]
"""Sequences with the index of their rollout."""

Row = list[Tree]

LIMITS = 8
"""Limits of a row's load that are tried beside `row_tokens`, in equal steps down to the load that
rows of as few microbatches as possible would have if all had the same.
"""

PADDING_COST = 0.26
"""Cost of an empty place, where a token's is 1: no routed expert computes it, nor the head, and
hardly attention. Measured on a CPU with the policy and rollouts of the search recipe.
"""


@dataclasses.dataclass(frozen=True)
class Placement:
  """The place of a tree: microbatch, row, first token, and first prediction."""

  microbatch: int
  row: int
  start: int
  tree: Tree


def place(
  rollouts: Sequence[Rollout],
  *,
  row_tokens: int,
  rows_per_microbatch: int,
  shorter_row_tokens: Sequence[int] = (),
  keep_rollouts_together: bool = False,
  share_prefixes: bool = False,
) -> list[Placement]:
  """The places of all trees, a pure function of the segments and their order.

  Trees go to rows by best fit, the largest first, and rows of about the same load share a
  microbatch, so that devices that have a row each wait little for one another, and so that a
  microbatch of rows with little in them can be short. With `keep_rollouts_together` the segments of
  a rollout go to the first microbatch with room for all.
  See `packing.pack` for arguments and errors.
  """
  if keep_rollouts_together and share_prefixes:
    raise ValueError(
      "a loss of whole rollouts needs all segments of a rollout in one microbatch, which trees of "
      "several rollouts do not allow; set learner.share_prefixes=False"
    )
  segments = [(i, s) for i, r in enumerate(rollouts) for s in r.segments if s.loss_mask.any()]
  for _, segment in segments:
    _check(segment, row_tokens)
  if not segments:
    return []
  if keep_rollouts_together:
    return _together(segments, row_tokens, rows_per_microbatch)
  lengths = (*shorter_row_tokens, row_tokens)
  rows = _balanced_rows(segments, lengths, rows_per_microbatch, share_prefixes)
  placements = []
  for number, row in enumerate(rows):
    starts = itertools.accumulate((tree.size for tree in row), initial=0)
    where = divmod(number, rows_per_microbatch)
    placements += [Placement(*where, start, tree) for start, tree in zip(starts, row, strict=False)]
  return placements


def row_length(load: int, lengths: Sequence[int]) -> int:
  """The shortest of `lengths` that holds a row of so many tokens."""
  return min(length for length in lengths if length >= load)


def _balanced_rows(
  segments: Segments, lengths: Sequence[int], rows_per_microbatch: int, share_prefixes: bool
) -> list[Row]:
  """Rows of trees, the fullest first: of several limits of their load, which also cut the trees,
  the one with the fewest microbatches, and of these with the least cost of their fullest rows.

  A lower limit shares less, but evens out what two devices with a row each have to do.
  """

  def grow(limit: int) -> list[Tree]:
    if share_prefixes:
      return prefix_trees.grow(segments, limit)
    return [prefix_trees.alone(*item) for item in segments]

  row_tokens, longest = max(lengths), max(len(segment.tokens) for _, segment in segments)
  tokens = _load(grow(row_tokens))
  fewest_rows = -(-tokens // (row_tokens * rows_per_microbatch)) * rows_per_microbatch
  even = max(longest, -(-tokens // fewest_rows))
  limits = [row_tokens - (row_tokens - even) * step // LIMITS for step in range(LIMITS + 1)]
  found = []
  for limit in dict.fromkeys([*limits, *(max(length, longest) for length in lengths)]):
    trees = grow(limit)
    rows = sorted(_best_fit(trees, limit), key=_load, reverse=True)
    loads = [_load(row) for row in rows[::rows_per_microbatch]]
    cost = sum(_cost(load, row_length(load, lengths)) for load in loads)
    found.append(((len(loads), cost), rows))
  return min(found, key=lambda item: item[0])[1]


def _cost(load: int, length: int) -> float:
  """The cost of a row, in tokens."""
  return load + PADDING_COST * (length - load)


def _best_fit(trees: Sequence[Tree], limit: int) -> list[Row]:
  """Rows of trees by best fit decreasing: each to the fullest row with room for it."""
  rows: list[Row] = []
  loads: list[int] = []
  for tree in sorted(trees, key=lambda tree: -tree.size):
    roomy = [i for i, load in enumerate(loads) if load + tree.size <= limit]
    if roomy:
      row = max(roomy, key=lambda i: loads[i])
      rows[row].append(tree)
      loads[row] += tree.size
    else:
      rows.append([tree])
      loads.append(tree.size)
  return rows


def _load(row: Sequence[Tree]) -> int:
  return sum(tree.size for tree in row)


def _together(segments: Segments, row_tokens: int, rows_per_microbatch: int) -> list[Placement]:
  """All segments of a rollout in one microbatch, by first fit decreasing of rollouts."""
  by_rollout = itertools.groupby(segments, key=lambda item: item[0])
  units = [[prefix_trees.alone(*item) for item in items] for _, items in by_rollout]
  used: list[list[int]] = []  # tokens used in each row of each microbatch
  placements: list[Placement] = []
  for unit in sorted(units, key=lambda unit: -_load(unit)):
    unit = sorted(unit, key=lambda tree: -tree.size)
    for m in range(len(used) + 1):
      rows = used[m] if m < len(used) else [0] * rows_per_microbatch
      fitted = _fit([tree.size for tree in unit], rows, row_tokens)
      if fitted is not None:
        break
    else:
      raise ValueError(
        f"rollout of {_load(unit)} tokens in {len(unit)} segments does not "
        f"fit a microbatch of {rows_per_microbatch} rows of {row_tokens}; "
        "raise learner.rows_per_microbatch"
      )
    if m == len(used):
      used.append([0] * rows_per_microbatch)
    for tree, row in zip(unit, fitted, strict=True):
      placements.append(Placement(m, row, used[m][row], tree))
      used[m][row] += tree.size
  return placements


def _fit(lengths, used_tokens, row_tokens):
  """Rows for `lengths` by first fit beside what is used, or None."""
  used, chosen = list(used_tokens), []
  for n in lengths:
    row = next((i for i, u in enumerate(used) if u + n <= row_tokens), None)
    if row is None:
      return None
    used[row] += n
    chosen.append(row)
  return chosen


def _check(segment, row_tokens):
  n = len(segment.tokens)
  if n > row_tokens:
    raise ValueError(
      f"segment of {n} tokens does not fit rows of {row_tokens}; "
      "raise learner.row_tokens (or the largest learner.rollout_row_tokens), or lower the agent's "
      "token_budget"
    )
  if segment.loss_mask[0]:
    raise ValueError(
      "the first token of a segment is a loss token, and nothing predicts it; "
      "begin the prompt with a token that is not sampled"
    )
