"""Measures search on BEIR collections: nDCG@10, recall@10 and recall@100 of each ranking.

  python scripts/bench_search.py --beir=FOLDER [--beir=FOLDER ...] --dense=minilm --json=search.json

A document is one chunk, searched to depth 1000; questions without a relevant document are left out.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
import time

import numpy as np
from absl import flags

from jaxrl_agents.corpus import beir, documents
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.runs import entry_point

_BEIR = flags.DEFINE_multi_string(
  "beir", None, "Folder of a BEIR collection; may be repeated.", required=True
)
_SPLIT = flags.DEFINE_string("split", "test", "Which qrels/SPLIT.tsv.")
_DENSE = flags.DEFINE_enum("dense", "lsa", ["lsa", "minilm"], "The dense ranking.")
_RANK = flags.DEFINE_integer("rank", 256, "Rank of latent semantic analysis.", lower_bound=1)
_K1 = flags.DEFINE_float("k1", 0.9, "Of BM25.", lower_bound=0.0)
_B = flags.DEFINE_float("b", 0.4, "Of BM25.", lower_bound=0.0, upper_bound=1.0)
_DENSE_WEIGHT = flags.DEFINE_float("dense_weight", 1.0, "Of the dense ranking in the fusion.")
_CACHE = flags.DEFINE_string("cache", "", "Folder that keeps indexes and vectors for later runs.")
_JSON = flags.DEFINE_string("json", "", "File that the figures are written to.")

_DEPTH = 1000
_MEASURES = {
  "ndcg@10": lambda ranking, grades: beir.ndcg(ranking, grades, 10),
  "recall@10": lambda ranking, grades: beir.recall(ranking, grades, 10),
  "recall@100": lambda ranking, grades: beir.recall(ranking, grades, 100),
}


def measure(folder: str, cache_dir: str) -> dict:
  """Returns the figures of one collection: of each mode, each measure and milliseconds a query."""
  chunks = [
    Chunk(
      document.metadata["source"], document.metadata["source"], document.title, document.text, 0
    )
    for document in documents.load(folder)
  ]
  queries, judgments = beir.load_queries(folder), beir.load_qrels(folder, _SPLIT.value)
  asked = [name for name, grades in judgments.items() if max(grades.values()) > 0]
  unknown = [name for name in asked if name not in queries]
  if unknown or not asked:
    raise ValueError(
      f"{folder}: {len(asked)} judged questions, {len(unknown)} of them not among the queries "
      f"{unknown[:3]}; the split and the queries belong to different collections"
    )
  start = time.monotonic()
  bm25 = {"k1": _K1.value, "b": _B.value}
  searcher = hybrid.build(chunks, cache_dir, dense_leg=_DENSE.value, rank=_RANK.value, **bm25)
  result = {"documents": len(chunks), "questions": len(asked), "dense": _DENSE.value}
  result |= bm25 | {"dense_weight": _DENSE_WEIGHT.value}
  result["build_s"] = round(time.monotonic() - start, 1)
  settings = hybrid.Fusion(fan_out=_DEPTH, fused=_DEPTH, dense_weight=_DENSE_WEIGHT.value)
  for mode in ("bm25", "dense", "hybrid"):
    start = time.monotonic()
    rankings = {
      name: [
        hit.chunk.id
        for hit in searcher.search(queries[name], limit=_DEPTH, mode=mode, settings=settings)
      ]
      for name in asked
    }
    spent_ms = 1e3 * (time.monotonic() - start) / len(asked)
    result[mode] = {
      measure_name: round(float(np.mean([f(rankings[name], judgments[name]) for name in asked])), 4)
      for measure_name, f in _MEASURES.items()
    } | {"ms_per_query": round(spent_ms, 2)}
  return result


def main() -> None:
  """Prints a table and writes the figures."""
  results = {}
  with tempfile.TemporaryDirectory() as temporary:
    for folder in _BEIR.value:
      name = pathlib.Path(folder).resolve().name
      results[name] = measure(folder, _CACHE.value or temporary)
      for mode in ("bm25", "dense", "hybrid"):
        figures = "  ".join(f"{key} {value:.4f}" for key, value in results[name][mode].items())
        print(f"{name:20s} {mode:8s} {figures}", flush=True)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
  entry_point.run(main)
