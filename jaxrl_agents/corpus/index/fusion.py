"""Reciprocal rank fusion, and the choice of the best rows of a score vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np


def reciprocal_rank(
  rankings: Sequence[Iterable[str]],
  *,
  weights: Sequence[float] = (),
  k: float = 60.0,
  missing_rank: float = math.inf,
) -> list[tuple[str, float]]:
  """Returns (id, score) of every id ranked anywhere, best first, ties by id.

  score(d) = sum over rankings of weight / (k + rank of d), ranks from 1 (Cormack et al. 2009,
  https://doi.org/10.1145/1571941.1572114).

  Args:
    rankings: ids, best first; an id at most once in each.
    weights: of the rankings; all 1 if none are given.
    k: how little the first ranks stand out.
    missing_rank: the rank of an id in a ranking that lacks it; with infinity it adds nothing.
  """
  places = [{name: rank for rank, name in enumerate(ranking, 1)} for ranking in rankings]
  names = {name for ranks in places for name in ranks}
  scale = weights or [1.0] * len(places)
  points = {
    name: sum(
      weight / (k + ranks.get(name, missing_rank))
      for weight, ranks in zip(scale, places, strict=True)
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
