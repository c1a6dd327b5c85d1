import math

import numpy as np
import pytest

from jaxrl_agents.corpus.index import fusion


def test_reciprocal_ranks_start_at_one_and_add_up():
  fused = fusion.reciprocal_rank([["a", "b", "c"], ["c", "a"]])
  expected = {"a": 1 / 61 + 1 / 62, "c": 1 / 63 + 1 / 61, "b": 1 / 62}
  assert [name for name, _ in fused] == ["a", "c", "b"]
  assert dict(fused) == pytest.approx(expected, abs=1e-15)


def test_equal_scores_are_ordered_by_id():
  fused = fusion.reciprocal_rank([["z", "b"], ["b", "z"], ["a"]], k=1)
  assert fused == [
    ("b", pytest.approx(1 / 3 + 1 / 2)), ("z", pytest.approx(1 / 2 + 1 / 3)), ("a", 1 / 2)
  ]  # fmt: skip


def test_a_ranking_that_lacks_an_id_adds_nothing():
  assert dict(fusion.reciprocal_rank([["a", "b"], ["b"]]))["a"] == 1 / 61


def test_weights_scale_a_ranking():
  fused = fusion.reciprocal_rank([["a"], ["b"]], weights=(1.0, 3.0))
  assert fused == [("b", 3 / 61), ("a", 1 / 61)]


def test_scores_are_divided_by_their_standard_deviation_weighted_and_added():
  lexical = np.array([0.0, 0.0, 6.0, 6.0], np.float32)  # standard deviation 3
  cosines = np.array([0.5, 0.1, 0.1, 0.5], np.float32)  # standard deviation 0.2
  fused = fusion.weighted_sum([lexical, cosines], (1.0, 0.5))
  np.testing.assert_allclose(fused, [1.25, 0.25, 2.25, 3.25], rtol=1e-6)


def test_a_ranking_that_scores_all_rows_alike_adds_nothing():
  scores = np.array([0.0, 4.0], np.float32)  # standard deviation 2
  fused = fusion.weighted_sum([scores, np.full(2, 0.5, np.float32)], (1.0, 9.0))
  np.testing.assert_allclose(fused, [0.0, 2.0])
  scores = np.linspace(-1, 1, 300, dtype=np.float32)
  for equal in (0.1, 0.000875, 3.3):  # their mean in float32 is another number
    alike = np.full(300, equal, np.float32)
    fused = fusion.weighted_sum([alike, scores], (1.0, 1.0))
    np.testing.assert_allclose(fused, scores / scores.std(), rtol=1e-5)


def test_the_best_rows_are_those_of_a_full_stable_sort():
  generator = np.random.default_rng(0)
  for limit in (0, 1, 3, 10, 11, 99):
    scores = generator.integers(0, 4, 11).astype(np.float32)
    expected = [i for i in sorted(range(11), key=lambda i: (-scores[i], i)) if scores[i] > 0]
    assert fusion.best_rows(scores, limit, above=0.0).tolist() == expected[:limit]


@pytest.mark.parametrize("values", [3, 40, 10_000])
def test_the_best_of_many_rows_are_those_of_a_full_stable_sort(values):
  scores = np.random.default_rng(values).integers(0, values, 5_003).astype(np.float32)
  scores[-3:] = values  # in no whole block
  expected = [i for i in sorted(range(5_003), key=lambda i: (-scores[i], i)) if scores[i] > 0]
  for limit in (1, 10, 300, 2_000, 6_000):
    assert fusion.best_rows(scores, limit, above=0.0).tolist() == expected[:limit]


def test_rows_at_minus_infinity_are_never_best():
  scores = np.array([-math.inf, 1.0, -math.inf], np.float32)
  assert fusion.best_rows(scores, 3).tolist() == [1]
