import math

import pytest

from jaxrl_agents.corpus import beir

GRADES = {"a": 2, "b": 1, "c": 0, "d": 1}


def test_ndcg_by_hand():
  # gains 0, 2 at rank 2, 1 at rank 3; the best ranking has 2, 1, 1
  got = 2 / math.log2(3) + 1 / math.log2(4)
  best = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
  assert beir.ndcg(["c", "a", "b"], GRADES, 10) == pytest.approx(got / best)
  assert beir.ndcg(["a", "b", "d"], GRADES, 10) == pytest.approx(1.0)
  # to depth 2 the best is 2, 1
  assert beir.ndcg(["x", "a", "b"], GRADES, 2) == pytest.approx(
    (2 / math.log2(3)) / (2 + 1 / math.log2(3))
  )


def test_recall_counts_relevant_documents_only():
  assert beir.recall(["c", "a", "x"], GRADES, 10) == pytest.approx(1 / 3)
  assert beir.recall(["c", "a", "b"], GRADES, 2) == pytest.approx(1 / 3)
  assert beir.recall([], GRADES, 10) == 0.0


def test_without_a_relevant_document_the_measures_are_zero():
  assert beir.ndcg(["c"], {"c": 0}, 10) == 0.0
  assert beir.recall(["c"], {"c": 0}, 10) == 0.0


def test_queries_and_judgments_are_read(tmp_path):
  (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "what"}\n{"_id": 2, "text": "why"}')
  (tmp_path / "qrels").mkdir()
  (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t2\n1\tb\t0\n")
  assert beir.load_queries(tmp_path) == {"1": "what", "2": "why"}
  assert beir.load_qrels(tmp_path, "test") == {"1": {"a": 2, "b": 0}}


def test_bad_judgments_name_the_line_and_a_missing_split_names_those_there(tmp_path):
  (tmp_path / "qrels").mkdir()
  (tmp_path / "qrels" / "test.tsv").write_text("1\ta\t1\n1 b 2\n")
  with pytest.raises(ValueError, match=r"test\.tsv, line 2: '1 b 2'; write query id"):
    beir.load_qrels(tmp_path, "test")
  with pytest.raises(ValueError, match=r"no such judgments; splits there: test"):
    beir.load_qrels(tmp_path, "dev")
  with pytest.raises(ValueError, match="no queries"):
    beir.load_queries(tmp_path)
