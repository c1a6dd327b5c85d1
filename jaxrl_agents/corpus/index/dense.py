"""Latent semantic analysis: a dense leg that needs no model file.

Rows of (1 + ln tf) idf, scaled to length 1, are projected on their first right singular vectors
(Deerwester et al. 1990, https://doi.org/10.1002/(SICI)1097-4571(199009)41:6<391::AID-ASI1>3.0.CO;2-9).
A query weighs its words by idf squared: in a few words, common ones would count for too much.
Alphabet: N texts, V terms, R rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from jaxrl_agents.corpus.index import bm25, words


@dataclasses.dataclass(frozen=True)
class Lsa:
  """The projection of queries.

  Attributes:
    vocabulary: stem -> row of basis.
    basis: idf squared times the right singular vectors, float32 [V, R].
  """

  vocabulary: Mapping[str, int]
  basis: np.ndarray


def fit(
  vocabulary: Mapping[str, int], counts: scipy.sparse.csr_array, *, rank: int
) -> tuple[Lsa, np.ndarray]:
  """Returns the projection and the unit vectors of the rows, float32 [N, R]; R may be below rank.

  The same counts give the same vectors: fixed start vector, fixed signs (the largest entry of a
  singular vector is positive). A row without a word has the zero vector.
  """
  idf = bm25.inverse_document_frequencies(counts)
  weights = counts.copy()
  weights.data = (1 + np.log(counts.data)) * idf[counts.indices]
  lengths = scipy.sparse.linalg.norm(weights, axis=1)
  weights.data /= np.repeat(np.maximum(lengths, 1e-9), np.diff(weights.indptr))
  right = _right_singular_vectors(weights.astype(np.float32), rank)
  vectors = _unit(weights.astype(np.float32) @ right)
  return Lsa(vocabulary, (idf[:, None] ** 2 * right).astype(np.float32)), vectors


def query_vector(lsa: Lsa, query: str) -> np.ndarray:
  """Returns the unit vector of a query, float32 [R]; zero if no word of it is known."""
  known = [lsa.vocabulary[stem] for stem in words.stems(query) if stem in lsa.vocabulary]
  terms, counts = np.unique(np.asarray(known, np.int64), return_counts=True)
  return _unit(((1 + np.log(counts)).astype(np.float32) @ lsa.basis[terms])[None])[0]


def _right_singular_vectors(matrix: scipy.sparse.csr_array, rank: int) -> np.ndarray:
  """float32 [V, R], by falling singular value."""
  smaller = min(matrix.shape)
  if smaller == 0:
    return np.zeros((matrix.shape[1], 0), np.float32)
  if smaller <= 2 * rank:  # ARPACK finds a small part of a spectrum only
    right = np.linalg.svd(matrix.toarray(), full_matrices=False)[2][: min(rank, smaller)]
  else:
    start = np.random.default_rng(0).standard_normal(smaller)
    right = scipy.sparse.linalg.svds(matrix, k=rank, v0=start.astype(np.float32))[2][::-1]
  largest = np.argmax(np.abs(right), axis=1)
  signs = np.sign(right[np.arange(len(right)), largest])
  return np.ascontiguousarray((right * signs[:, None]).T)


def _unit(vectors: np.ndarray) -> np.ndarray:
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
