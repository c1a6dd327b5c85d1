"""Questions and judgments of a BEIR collection, and the measures of a ranking against them.

Layout: https://github.com/beir-cellar/beir. Measures as trec_eval computes them
(https://github.com/usnistgov/trec_eval): linear gain, log2 discount.
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Mapping, Sequence

from jaxrl_agents.corpus import readers


def load_queries(folder: str | os.PathLike[str]) -> dict[str, str]:
  """Returns query id -> text from queries.jsonl (or with .gz); ValueError if there is none."""
  path = _queries_file(folder)
  return {
    readers.string_field(path, number, record, "_id", "id"): readers.string_field(
      path, number, record, "text"
    )
    for number, record in readers.read_jsonl(path)
  }


def load_answers(folder: str | os.PathLike[str]) -> dict[str, str]:
  """Returns query id -> answer of the queries whose metadata has an "answer" that is a text."""
  path = _queries_file(folder)
  found = {}
  for number, record in readers.read_jsonl(path):
    metadata = record.get("metadata")
    answer = metadata.get("answer") if isinstance(metadata, dict) else None
    if isinstance(answer, str):
      found[readers.string_field(path, number, record, "_id", "id")] = answer
  return found


def _queries_file(folder: str | os.PathLike[str]) -> pathlib.Path:
  root = pathlib.Path(folder)
  for name in ("queries.jsonl", "queries.jsonl.gz"):
    if (root / name).is_file():
      return root / name
  raise ValueError(f"{root}: no queries.jsonl or queries.jsonl.gz; name a BEIR collection")


def load_qrels(folder: str | os.PathLike[str], split: str) -> dict[str, dict[str, int]]:
  """Returns query id -> {document id: grade} of qrels/SPLIT.tsv; ValueError names the line."""
  path = pathlib.Path(folder) / "qrels" / f"{split}.tsv"
  if not path.is_file():
    splits = " ".join(sorted(file.stem for file in path.parent.glob("*.tsv"))) or "none"
    raise ValueError(f"{path}: no such judgments; splits there: {splits}")
  judgments: dict[str, dict[str, int]] = {}
  for number, line in enumerate(readers.read_text(path).splitlines(), 1):
    fields = line.split("\t")
    if not line.strip() or (number == 1 and fields[-1] == "score"):
      continue
    try:
      query_id, document_id, grade = fields
      judgments.setdefault(query_id, {})[document_id] = int(grade)
    except ValueError:
      raise ValueError(
        f"{path}, line {number}: {line[:80]!r}; write query id, document id and a whole number, "
        "with tabs between"
      ) from None
  return judgments


def ndcg(ranking: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
  """Returns the discounted gain of the first `depth` documents over that of the best ranking.

  The gain of a document is its grade over log2(rank + 1); a grade below 1 gains nothing. 0 if no
  document is relevant.
  """

  def gain(found: Sequence[int]) -> float:
    return sum(max(grade, 0) / math.log2(rank + 1) for rank, grade in enumerate(found, 1))

  best = gain(sorted(grades.values(), reverse=True)[:depth])
  return gain([grades.get(name, 0) for name in ranking[:depth]]) / best if best else 0.0


def recall(ranking: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
  """Returns the share of the relevant documents (grade 1 or more) among the first `depth`."""
  relevant = {name for name, grade in grades.items() if grade > 0}
  return len(relevant.intersection(ranking[:depth])) / len(relevant) if relevant else 0.0
