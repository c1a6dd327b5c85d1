import math

import bm25s
import numpy as np
import pytest

from jaxrl_agents.corpus.index import bm25 as lexical
from jaxrl_agents.corpus.index import dense, words

TEXTS = [
  "The parser reads a file and parses every line of the file",
  "Closing files: the file is closed",
  "An ocean of stones",
  "",
  "reads lines, lines, lines",
]


def test_stems_drop_stop_words_keep_repeats_and_split_identifiers():
  assert words.stems("The files of a file") == ["file", "file"]
  assert words.stems("parse_headers _private") == ["parse_head", "pars", "header", "_privat"]


def test_counts_are_those_of_the_stems_of_each_text():
  vocabulary, counts = words.count(TEXTS)
  for row, text in enumerate(TEXTS):
    stems = words.stems(text)
    for stem, column in vocabulary.items():
      assert counts[row, column] == stems.count(stem)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4)])
def test_bm25_scores_equal_those_of_bm25s(k1, b):
  vocabulary, counts = words.count(TEXTS)
  ours = lexical.fit(vocabulary, counts, k1=k1, b=b)
  reference = bm25s.BM25(method="lucene", k1=k1, b=b)
  reference.index([words.stems(text) for text in TEXTS], show_progress=False)
  for query in ("read file", "lines lines file", "ocean"):
    expected = reference.get_scores(words.stems(query))
    np.testing.assert_allclose(lexical.scores(ours, query), expected, rtol=1e-5, atol=1e-6)


def test_a_bm25_score_by_hand():
  vocabulary, counts = words.count(["red red blue", "blue"])
  bm25 = lexical.fit(vocabulary, counts, k1=1.2, b=0.75)
  idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
  expected = idf * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / 2))
  np.testing.assert_allclose(lexical.scores(bm25, "red"), [expected, 0], rtol=1e-6)
  np.testing.assert_allclose(lexical.scores(bm25, "red red"), [2 * expected, 0], rtol=1e-6)


def test_at_full_rank_lsa_gives_the_cosines_of_tf_idf_with_idf_twice_in_queries():
  vocabulary, counts = words.count(TEXTS)
  lsa, vectors = dense.fit(vocabulary, counts, rank=4)  # one text is empty
  n, dense_counts = len(TEXTS), counts.toarray()
  found_in = (dense_counts > 0).sum(0)
  idf = np.log(1 + (n - found_in + 0.5) / (found_in + 0.5))
  rows = np.where(dense_counts > 0, 1 + np.log(np.maximum(dense_counts, 1)), 0) * idf
  asked = rows[0] * idf
  rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
  np.testing.assert_allclose(vectors @ vectors.T, rows @ rows.T, atol=1e-5)
  query = dense.query_vector(lsa, TEXTS[0])
  kept = np.linalg.qr(rows[rows.any(axis=1)].T)[0]  # the span of the rows
  asked = kept @ (kept.T @ asked)
  np.testing.assert_allclose(vectors @ query, rows @ asked / np.linalg.norm(asked), atol=1e-5)


def test_lsa_is_the_same_each_time_and_both_solvers_agree():
  generator = np.random.default_rng(3)
  texts = [" ".join(f"w{i}" for i in generator.integers(0, 60, 12)) for _ in range(50)]
  vocabulary, counts = words.count(texts)
  first, vectors = dense.fit(vocabulary, counts, rank=4)  # the sparse solver
  second, again = dense.fit(vocabulary, counts, rank=4)
  np.testing.assert_array_equal(vectors, again)
  np.testing.assert_array_equal(first.basis, second.basis)
  whole, _ = dense.fit(vocabulary, counts, rank=50)  # the dense solver
  np.testing.assert_allclose(np.abs(first.basis), np.abs(whole.basis[:, :4]), atol=2e-4)
  np.testing.assert_allclose(first.basis, whole.basis[:, :4], atol=2e-4)


def test_a_query_of_unknown_words_has_the_zero_vector():
  vocabulary, counts = words.count(TEXTS)
  lsa, _ = dense.fit(vocabulary, counts, rank=3)
  assert not dense.query_vector(lsa, "zzz").any()
