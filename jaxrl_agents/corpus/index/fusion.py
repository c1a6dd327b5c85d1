"""Fusion of rankings by score and by rank, and the choice of the best rows of a score vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np


def weighted_sum(scores: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
  """Returns the sum of weight * score / standard deviation over the rankings, float32 [N].

  The standard deviation is that of a ranking's scores over all N rows. Standard scores: Montague
  and Aslam 2001, https://doi.org/10.1145/502585.502657; without their means, which move every row
  alike. Why sums of scores and not of ranks: Bruch et al. 2022, https://arxiv.org/abs/2210.11934.

  Args:
    scores: of each ranking, float32 [N]; one that scores all rows alike adds nothing.
    weights: of the rankings.
  """
  total = np.zeros_like(scores[0])
  for each, weight in zip(scores, weights, strict=True):
    spread = float(each.std(dtype=np.float64))  # in float32 equal scores need not have 0
    if spread > 0:
      total += np.float32(weight / spread) * each
  return total


def reciprocal_rank(
  rankings: Sequence[Iterable[str]],
  *,
  weights: Sequence[float] = (),
  k: float = 60.0,
) -> list[tuple[str, float]]:
  """Returns (id, score) of every id ranked anywhere, best first, ties by id.

  score(d) = sum over the rankings that hold d of weight / (k + rank of d), ranks from 1 (Cormack et
  al. 2009, https://doi.org/10.1145/1571941.1572114).

  Args:
    rankings: ids, best first; an id at most once in each.
    weights: of the rankings; all 1 if none are given.
    k: how little the first ranks stand out.
  """
  places = [{name: rank for rank, name in enumerate(ranking, 1)} for ranking in rankings]
  names = {name for ranks in places for name in ranks}
  scale = weights or [1.0] * len(places)
  points = {
    name: sum(
      weight / (k + ranks[name])
      for weight, ranks in zip(scale, places, strict=True)
      if name in ranks
    )
    for name in names
  }
  return sorted(points.items(), key=lambda item: (-item[1], item[0]))


def best_rows(scores: np.ndarray, limit: int, *, above: float = -math.inf) -> np.ndarray:
  """Returns the rows of the `limit` greatest scores above a bound, ties by row; int64.

  Each of the `limit` greatest maxima of disjoint blocks is a score, so that no score below the
  least of them is among the `limit` greatest: few rows are left to sort.
  """
  if limit < 1:
    return np.empty(0, np.int64)
  kept = scores > above
  size = min(64, len(scores) // (4 * limit))
  if size > 1:
    blocks = len(scores) // size
    maxima = scores[: size * blocks].reshape(size, blocks).max(axis=0)
    kept &= scores >= np.partition(maxima, blocks - limit)[blocks - limit]
  candidates = np.flatnonzero(kept)
  found = scores[candidates]
  if limit < len(found):
    best = found >= np.partition(found, len(found) - limit)[len(found) - limit]
    candidates, found = candidates[best], found[best]
  return candidates[np.argsort(-found, kind="stable")][:limit]
