"""BM25 over the rows of a term count matrix.

Okapi BM25 as Lucene computes it (Robertson et al. 1994; the variants: Kamphuis et al. 2020,
https://doi.org/10.1007/978-3-030-45442-5_4). The weights are computed here, from the counts that
the dense leg needs too: the `bm25s` package, which the tests compare with, starts a jax backend
when it is imported, and a worker that only searches must not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import scipy.sparse

from jaxrl_agents.corpus.index import words


@dataclasses.dataclass(frozen=True)
class Bm25:
  """BM25 weights by term: term t's rows are `rows[ends[t]:ends[t + 1]]`, each row once.

  Attributes:
    vocabulary: stem -> t.
    weights: float32 [number of (row, term) pairs].
    rows: int32, beside weights.
    ends: int64 [V + 1].
    num_rows: number of texts.
  """

  vocabulary: Mapping[str, int]
  weights: np.ndarray
  rows: np.ndarray
  ends: np.ndarray
  num_rows: int


def fit(
  vocabulary: Mapping[str, int],
  counts: scipy.sparse.csr_array,
  *,
  k1: float = 0.9,
  b: float = 0.4,
) -> Bm25:
  """Returns the weights idf(t) tf / (tf + k1 (1 - b + b length / mean length)).

  Counts are [N, V].
  """
  num_rows, num_terms = counts.shape
  lengths = np.asarray(counts.sum(axis=1), np.float64).ravel()
  mean_length = max(lengths.mean(), 1e-9) if num_rows else 1.0
  idf = inverse_document_frequencies(counts)
  by_term = counts.tocsc()
  saturation = k1 * (1 - b + b * lengths / mean_length)
  term_of_pair = np.repeat(np.arange(num_terms), np.diff(by_term.indptr))
  weights = idf[term_of_pair] * by_term.data / (by_term.data + saturation[by_term.indices])
  rows, ends = by_term.indices.astype(np.int32), by_term.indptr.astype(np.int64)
  return Bm25(vocabulary, weights.astype(np.float32), rows, ends, num_rows)


def inverse_document_frequencies(counts: scipy.sparse.csr_array) -> np.ndarray:
  """Returns ln(1 + (N - df + 1/2) / (df + 1/2)) of every term, above 0; float64 [V]."""
  num_rows, num_terms = counts.shape
  document_counts = np.bincount(counts.indices, minlength=num_terms)
  return np.log1p((num_rows - document_counts + 0.5) / (document_counts + 0.5))


def scores(bm25: Bm25, query: str) -> np.ndarray:
  """Returns the BM25 score of every row, float32 [N]; a word asked twice counts twice."""
  total = np.zeros(bm25.num_rows, np.float32)
  for term in _known(bm25.vocabulary, words.stems(query)):
    span = slice(bm25.ends[term], bm25.ends[term + 1])
    total[bm25.rows[span]] += bm25.weights[span]
  return total


def _known(vocabulary: Mapping[str, int], stems: Iterable[str]) -> list[int]:
  return [vocabulary[stem] for stem in stems if stem in vocabulary]
