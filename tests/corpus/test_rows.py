"""Rows of published data sets are read from JSON, JSON lines, CSV and TSV."""

import gzip
import json

import pytest

from jaxrl_agents.corpus import rows

ROW = {"id": "1", "question": "Where?"}
SWE = {"instance_id": "astropy__astropy-1", "repo": "astropy/astropy", "base_commit": "d16bfe0"}


def read(path):
  return [row for _, row in rows.read(path)]


@pytest.mark.parametrize(
  ("name", "text"),
  [
    ("a.json", json.dumps([ROW])),
    ("a.jsonl", json.dumps(ROW) + "\n"),
    ("a.csv", "id,question\n1,Where?\n"),
    ("a.tsv", "id\tquestion\n1\tWhere?\n"),
  ],
)
def test_a_row_is_the_same_in_each_format(tmp_path, name, text):
  (tmp_path / name).write_text(text)
  packed = tmp_path / f"{name}.gz"
  packed.write_bytes(gzip.compress(text.encode()))
  assert read(tmp_path / name) == read(packed) == [ROW]


def test_a_field_of_a_table_may_hold_line_breaks_and_commas(tmp_path):
  path = tmp_path / "a.csv"
  path.write_text('id,question\n1,"Where, and\nwhen?"\n')
  assert read(path) == [{"id": "1", "question": "Where, and\nwhen?"}]


@pytest.mark.parametrize(
  ("name", "split"),
  [
    ("hotpot_train_v1.1.json", "train"),
    ("hotpot_dev_distractor_v1.json", "dev"),
    ("musique_ans_v1.0_train.jsonl", "train"),
    ("validation.jsonl.gz", "dev"),
    ("test.tsv", "test"),
    ("latest.json", None),
    ("constraints.json", None),
  ],
)
def test_a_word_of_a_file_name_is_the_split(name, split):
  assert rows.split_named(name) == split


@pytest.mark.parametrize("name", ["swe.json", "swe.jsonl"])
def test_a_row_about_a_repository_is_refused_with_the_reason(tmp_path, name):
  row = SWE | {"patch": "diff --git a/x b/x", "test_patch": "diff --git a/t b/t"}
  path = tmp_path / name
  path.write_text(json.dumps([row]) if name == "swe.json" else json.dumps(row))
  message = "'astropy__astropy-1'.*'astropy/astropy'.*holds no image.*make_coding_tasks"
  with pytest.raises(ValueError, match=message):
    read(path)


def test_a_list_that_is_none_and_a_file_of_another_kind_are_refused(tmp_path):
  (tmp_path / "a.json").write_text('{"data": []}')
  with pytest.raises(ValueError, match="a JSON dict; write a list of rows"):
    read(tmp_path / "a.json")
  (tmp_path / "a.json").write_text("[1]")
  with pytest.raises(ValueError, match="row 1: a JSON int; write an object"):
    read(tmp_path / "a.json")
  (tmp_path / "a.parquet").write_bytes(b"PAR1")
  with pytest.raises(ValueError, match="no file of rows"):
    rows.files(tmp_path / "a.parquet")
