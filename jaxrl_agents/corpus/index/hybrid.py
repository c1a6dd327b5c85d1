"""The search index of a corpus: BM25, a dense leg, their fusion, grep and reading, over a folder.

`build` writes a folder named by the content of the chunks and the settings, `load` maps it:
processes that load the same folder share its memory. Searching needs numpy only, never jax.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from jaxrl_agents.corpus import grep
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import bm25, dense, fusion, minilm
from jaxrl_agents.corpus.index.store import Store, open_store, write_store

Mode = Literal["hybrid", "bm25", "dense"]
Dense = Literal["lsa", "minilm"]
By = Literal["scores", "ranks"]

_LEG_WEIGHTS = {"lsa": 1.0, "minilm": 2.0}
"""Weights of the dense rankings in a sum of scores; docs/own-corpus.md says how they were found."""


@dataclasses.dataclass(frozen=True)
class Hit:
  """A chunk that a search found. `score` compares only with others of the same search."""

  chunk: Chunk
  score: float


@dataclasses.dataclass(frozen=True)
class Fusion:
  """How the two rankings are combined.

  Attributes:
    by: "scores" adds the scores of every chunk over their standard deviations; "ranks" is
      reciprocal rank fusion with k 60, as Context-1 publishes it.
    dense_weight: weight of the dense ranking; that of BM25 is 1. By scores, MiniLM counts double.
    fan_out: number of chunks that each ranking returns; only for "ranks".
    fused: number of fused chunks that are kept.
  """

  by: By = "scores"
  dense_weight: float = 1.0
  fan_out: int = 25
  fused: int = 50


def build(
  chunks: Sequence[Chunk],
  cache_dir: str | os.PathLike[str],
  *,
  dense_leg: Dense = "lsa",
  rank: int = 128,
  k1: float = 0.9,
  b: float = 0.4,
) -> Index:
  """Builds the index of chunks in a folder below cache_dir, unless it exists there, and loads it.

  Args:
    chunks: those of a document together and in order; ids are distinct.
    cache_dir: holds one folder for each content and setting.
    dense_leg: "lsa", or "minilm" (slow to build without an accelerator).
    rank: of latent semantic analysis.
    k1, b: of BM25: how slowly a repeated word saturates, and how much length counts. The defaults
      are those of Anserini; alone, BM25 does better on prose with 1.2 and 0.75.

  Raises:
    ValueError: no chunks, ids that repeat, an unknown dense leg, MiniLM's files missing.
  """
  return load(write_store(chunks, cache_dir, dense_leg=dense_leg, rank=rank, k1=k1, b=b))


def load(folder: str | os.PathLike[str]) -> Index:
  """Maps an index that `build` wrote; ValueError if the folder holds none."""
  return Index(open_store(folder))


class Index:
  """A loaded index, read only. Invariant: row i of every array is chunk i of the corpus."""

  def __init__(self, store: Store) -> None:
    self._store = store
    self._encoder: minilm.Encoder | None = None
    self.folder = store.folder

  def __len__(self) -> int:
    return len(self._store.ids)

  def search(
    self,
    query: str,
    exclude: Collection[str] = frozenset(),
    limit: int = 10,
    *,
    mode: Mode = "hybrid",
    settings: Fusion = Fusion(),
  ) -> list[Hit]:
    """Returns the best chunks for a query, best first; equal ones in a fixed order.

    Args:
      query: words.
      exclude: chunk ids that are treated as absent: they take no place in any ranking.
      limit: most chunks returned.
      mode: both rankings fused, or one of them alone.
      settings: of the fusion; only for "hybrid".
    """
    excluded = self._store.rows_of(exclude)
    if mode == "hybrid" and settings.by == "ranks":
      ranked = fusion.reciprocal_rank(
        [self._leg(leg, query, excluded, settings.fan_out) for leg in ("bm25", "dense")],
        weights=(1.0, settings.dense_weight),
      )[: settings.fused]
    elif mode == "hybrid":
      ranked = list(self._summed(query, excluded, settings).items())
    else:
      ranked = list(self._leg(mode, query, excluded, limit).items())
    return [Hit(self.chunk(chunk_id), score) for chunk_id, score in ranked[:limit]]

  def grep(self, pattern: str, limit: int = 5, timeout_s: float = 2.0) -> list[Hit]:
    """Returns the first chunks, in corpus order, that a regular expression matches; score 1.

    Raises:
      grep.GrepError: the pattern is invalid or took too long; its message is for the policy.
    """
    rows = grep.matching(self._store.texts(), pattern, limit=limit, timeout_s=timeout_s)
    return [Hit(self._store.chunk(row), 1.0) for row in rows]

  def chunk(self, chunk_id: str) -> Chunk:
    """Returns a chunk; KeyError if there is none of this id."""
    return self._store.chunk(self._store.row_of_id[chunk_id])

  def document(self, doc_id: str) -> list[Chunk]:
    """Returns the chunks of a document in order; empty if there is none of this id."""
    return [self._store.chunk(row) for row in self._store.rows_of_document.get(doc_id, ())]

  def _leg(self, leg: str, query: str, excluded: np.ndarray, limit: int) -> dict[str, float]:
    """One ranking: chunk id -> score, best first."""
    return self._best(*self._scores(leg, query), excluded, limit)

  def _summed(self, query: str, excluded: np.ndarray, settings: Fusion) -> dict[str, float]:
    """Both rankings by the sum of their scores: chunk id -> score, best first.

    What is excluded counts for the standard deviations, so that all others keep their order.
    """
    legs = [self._scores(leg, query) for leg in ("bm25", "dense")]
    weights = (1.0, settings.dense_weight * _LEG_WEIGHTS[self._store.dense_leg])
    scores = fusion.weighted_sum([scores for scores, _ in legs], weights)
    found = [above for (_, above), weight in zip(legs, weights, strict=True) if weight]
    return self._best(scores, min(found), excluded, settings.fused)

  def _scores(self, leg: str, query: str) -> tuple[np.ndarray, float]:
    """The score of every row, float32 [N], and the bound above which a row is found."""
    if leg == "bm25":
      return bm25.scores(self._store.bm25, query), 0.0
    if leg == "dense":
      vector = self._query_vector(query)
      return self._store.vectors @ vector, -math.inf if vector.any() else 0.0
    raise ValueError(f"search mode {leg!r} is unknown; use hybrid, bm25 or dense")

  def _best(
    self, scores: np.ndarray, above: float, excluded: np.ndarray, limit: int
  ) -> dict[str, float]:
    """Chunk id -> score of the best rows, best first; writes over the scores of excluded rows."""
    scores[excluded] = -math.inf
    rows = fusion.best_rows(scores, limit, above=above)
    return {self._store.ids[row]: float(scores[row]) for row in rows}

  def _query_vector(self, query: str) -> np.ndarray:
    """float32 [R], of length 1; 0 if no word of the query is known."""
    if self._store.dense_leg == "lsa":
      return dense.query_vector(self._store.lsa, query)
    if self._encoder is None:
      self._encoder = minilm.load()
    return minilm.encode(self._encoder, [query])[0]
