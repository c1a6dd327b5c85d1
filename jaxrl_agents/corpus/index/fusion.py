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
  """Returns the rows of the `limit` greatest scores above a bound, ties by row; int64."""
  if limit < 1:
    return np.empty(0, np.int64)
  if limit < len(scores):
    least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
    candidates = np.flatnonzero(scores >= least)
  else:
    candidates = np.arange(len(scores))
  candidates = candidates[scores[candidates] > above]
  return candidates[np.argsort(-scores[candidates], kind="stable")][:limit]
