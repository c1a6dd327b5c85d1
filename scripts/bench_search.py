"""Measures search on BEIR collections: nDCG@10, recall@10 and recall@100 of each ranking.

  python scripts/bench_search.py --beir=FOLDER [--beir=FOLDER ...] --dense=minilm --json=search.json
  python scripts/bench_search.py --beir=FOLDER [--beir=FOLDER ...] --fused=scores:0.5,scores:1

A document is one chunk, searched to depth 1000; questions without a relevant document are left out.
The second command chooses a weight of the dense ranking: its last lines are the mean nDCG@10 of
each ranking over the collections, and the most that it is below the better of the two in one.
With --peers=FOLDER_OF_VENVS and --peer_scripts=FOLDER_OF_SCRIPTS, the interpreter in
FOLDER_OF_VENVS/search runs search_bm25s.py and search_minilm.py (onnxruntime; with --dense=minilm)
on a JSON file of texts and queries. Each prints seconds under the names of `speed`.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable

import numpy as np
from absl import app, flags

from jaxrl_agents.corpus import beir, documents
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import bm25, fusion, hybrid, minilm, words
from jaxrl_agents.runs import entry_point

_BEIR = flags.DEFINE_multi_string(
  "beir", None, "Folder of a BEIR collection; may be repeated.", required=True
)
_SPLIT = flags.DEFINE_string("split", "test", "Which qrels/SPLIT.tsv.")
_DENSE = flags.DEFINE_enum("dense", "lsa", ["lsa", "minilm"], "The dense ranking.")
_RANK = flags.DEFINE_integer("rank", 128, "Rank of latent semantic analysis.", lower_bound=1)
_K1 = flags.DEFINE_float("k1", 0.9, "Of BM25.", lower_bound=0.0)
_B = flags.DEFINE_float("b", 0.4, "Of BM25.", lower_bound=0.0, upper_bound=1.0)
_FUSED = flags.DEFINE_list(
  "fused", ["scores:1"], "Fusions: scores or ranks, a colon, the weight of the dense ranking."
)
_CACHE = flags.DEFINE_string("cache", "", "Folder that keeps indexes and vectors for later runs.")
_PEERS = flags.DEFINE_string("peers", "", "Folder of the peers' virtual environments.")
_PEER_SCRIPTS = flags.DEFINE_string("peer_scripts", "", "Folder of the peers' scripts.")
_JSON = flags.DEFINE_string("json", "", "File that the figures are written to.")

_DEPTH = 1000
_SHOWN = 10
_ENCODED = 256  # texts
_PEER_SCRIPT = {"bm25s": "search_bm25s.py", "onnxruntime": "search_minilm.py"}
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
  constants = {"k1": _K1.value, "b": _B.value}
  searcher = hybrid.build(chunks, cache_dir, dense_leg=_DENSE.value, rank=_RANK.value, **constants)
  result = {"documents": len(chunks), "questions": len(asked), "dense": _DENSE.value}
  result |= constants
  result["build_s"] = round(time.monotonic() - start, 1)
  for name in _rankings():
    mode, settings = _ranking(name)
    start = time.monotonic()
    rankings = {
      query_id: [
        hit.chunk.id
        for hit in searcher.search(queries[query_id], limit=_DEPTH, mode=mode, settings=settings)
      ]
      for query_id in asked
    }
    spent_ms = 1e3 * (time.monotonic() - start) / len(asked)
    result[name] = {
      measure_name: round(float(np.mean([f(rankings[i], judgments[i]) for i in asked])), 4)
      for measure_name, f in _MEASURES.items()
    } | {"ms_per_query": round(spent_ms, 2)}
  if _PEERS.value:
    texts = [f"{chunk.title}\n{chunk.text}".strip() for chunk in chunks]
    result["speed"] = beside_peers(texts, [queries[name] for name in asked])
  return result


def _rankings() -> list[str]:
  return ["bm25", "dense", *_FUSED.value]


def _ranking(name: str) -> tuple[hybrid.Mode, hybrid.Fusion]:
  """The search that a name of `_rankings` stands for."""
  if name in ("bm25", "dense"):
    return name, hybrid.Fusion()
  by, _, weight = name.partition(":")
  if by not in ("scores", "ranks") or not weight:
    raise app.UsageError(f"--fused has {name!r}; write scores:WEIGHT or ranks:WEIGHT")
  fusion = hybrid.Fusion(by=by, dense_weight=float(weight), fan_out=_DEPTH, fused=_DEPTH)
  return "hybrid", fusion


def show_means(results: dict[str, dict]) -> None:
  """Prints the mean nDCG@10 of each ranking, and the most that it loses to the better leg."""
  gain = lambda name, each: each[name]["ndcg@10"]
  for name in _rankings():
    mean = np.mean([gain(name, each) for each in results.values()])
    losses = {
      collection: gain(name, each) - max(gain("bm25", each), gain("dense", each))
      for collection, each in results.items()
    }
    worst = min(losses, key=losses.__getitem__)
    print(f"{'mean':20s} {name:10s} ndcg@10 {mean:.4f}  worst {losses[worst]:+.4f} in {worst}")


def seconds(call: Callable[[], object]) -> float:
  """The seconds of a call, after one that is not timed."""
  call()
  start = time.perf_counter()
  call()
  return time.perf_counter() - start


def speed(texts: list[str], queries: list[str]) -> dict[str, float]:
  """Seconds to index the texts for BM25 and for each query to the ten best, one by one; with
  MiniLM also to encode each query, and each of the first 256 texts together.
  """
  counted = words.count(texts)
  index = bm25.fit(*counted)
  found = {
    "bm25_index_s": seconds(lambda: bm25.fit(*words.count(texts))),
    "bm25_query_s": seconds(
      lambda: [fusion.best_rows(bm25.scores(index, query), _SHOWN) for query in queries]
    )
    / len(queries),
  }
  if _DENSE.value == "minilm":
    from jaxrl_agents.corpus.index import encode

    encoder, some = minilm.load(), texts[:_ENCODED]
    rows = minilm.pieces(encoder, some)
    one_by_one = seconds(lambda: [minilm.encode(encoder, [query]) for query in queries])
    found["minilm_query_s"] = one_by_one / len(queries)
    found["minilm_text_s"] = seconds(lambda: encode.on_cpu(encoder.weights, rows)) / len(some)
  return found


def beside_peers(texts: list[str], queries: list[str]) -> dict[str, dict[str, float]]:
  """For each figure of `speed`: ours, the peer's, and how many times faster ours is."""
  ours = speed(texts, queries)
  theirs: dict[str, float] = {}
  python = pathlib.Path(_PEERS.value).absolute() / "search" / "bin" / "python"
  with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    json.dump({"texts": texts, "queries": queries, "encoded": _ENCODED}, file)
    file.flush()
    for name, script in _PEER_SCRIPT.items():
      if name == "onnxruntime" and _DENSE.value != "minilm":
        continue
      command = [str(python), str(pathlib.Path(_PEER_SCRIPTS.value).absolute() / script), file.name]
      done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
      if done.returncode:
        raise RuntimeError(f"{name}: {script} ended with {done.returncode}:\n{done.stderr[-2000:]}")
      theirs |= json.loads(done.stdout.splitlines()[-1])
  return {
    name: {"ours": ours[name], "peer": theirs[name], "times_peer": theirs[name] / ours[name]}
    for name in ours
  }


def main() -> None:
  """Prints a table and writes the figures."""
  if bool(_PEERS.value) != bool(_PEER_SCRIPTS.value):
    raise app.UsageError("--peers and --peer_scripts go together")
  results = {}
  with tempfile.TemporaryDirectory() as temporary:
    for folder in _BEIR.value:
      name = pathlib.Path(folder).resolve().name
      results[name] = measure(folder, _CACHE.value or temporary)
      for ranking in _rankings():
        figures = "  ".join(f"{key} {value:.4f}" for key, value in results[name][ranking].items())
        print(f"{name:20s} {ranking:10s} {figures}", flush=True)
      for figure, each in results[name].get("speed", {}).items():
        text = "  ".join(f"{key} {value:.4g}" for key, value in each.items())
        print(f"{name:20s} {figure:16s} {text}", flush=True)
  show_means(results)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
  entry_point.run(main)
