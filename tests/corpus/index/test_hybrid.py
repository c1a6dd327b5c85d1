import dataclasses
import json
import statistics
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents import file_digests
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.grep import GrepError
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.corpus.index.hybrid import Fusion

VOCABULARY = [
  "river", "stone", "cloud", "music", "engine", "planet", "garden", "window", "silver", "letter",
  "hammer", "forest", "ocean", "candle",
]  # fmt: skip


def random_chunks(num_documents=30, per_document=3):
  generator = np.random.default_rng(7)
  chunks = []
  for document in range(100, 100 + num_documents):
    start = 0
    for i in range(per_document):
      text = " ".join(generator.choice(VOCABULARY, generator.integers(3, 12))) + "\n"
      chunks.append(Chunk(f"{document}_{i}", str(document), f"title{document}", text, start))
      start += len(text)
  return chunks


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  return hybrid.build(random_chunks(), tmp_path_factory.mktemp("cache"), rank=6)


def ids(hits):
  return [hit.chunk.id for hit in hits]


def test_without_weight_the_dense_leg_finds_nothing(built):
  only = Fusion(dense_weight=0.0)
  assert built.search("zzzz", limit=3, settings=only) == []
  word = built.chunk("107_1").text.split()[0]
  assert ids(built.search(word, limit=3, settings=only)) == ids(
    built.search(word, limit=3, mode="bm25")
  )


def test_a_chunk_is_found_by_its_words_in_every_mode(built):
  target = built.chunk("107_1")
  for mode in ("bm25", "dense", "hybrid"):
    hits = built.search(f"title107 {target.text}", limit=3, mode=mode)
    assert target in [hit.chunk for hit in hits]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_the_title_is_searched_and_is_no_part_of_the_text(built):
  hits = built.search("title112", mode="bm25")
  assert set(ids(hits)) == {"112_0", "112_1", "112_2"}
  assert all("title" not in hit.chunk.text for hit in hits)


@settings(max_examples=40, deadline=None)
@given(
  st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4),
  st.sets(st.integers(0, 89), max_size=60),
  st.integers(1, 10),
  st.sampled_from(["bm25", "dense"]),
)
def test_excluded_chunks_take_no_place_in_a_ranking(built, asked, rows, limit, mode):
  names = [chunk.id for chunk in random_chunks()]
  exclude = {names[row] for row in rows}
  everything = ids(built.search(" ".join(asked), limit=1000, mode=mode))
  expected = [name for name in everything if name not in exclude][:limit]
  assert ids(built.search(" ".join(asked), exclude, limit, mode=mode)) == expected


@settings(max_examples=20, deadline=None)
@given(
  st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4),
  st.sets(st.integers(0, 89), max_size=60),
)
def test_a_hybrid_search_finds_what_is_not_excluded(built, asked, rows):
  names = [chunk.id for chunk in random_chunks()]
  exclude = {names[row] for row in rows}
  by_scores = Fusion(fused=1000)
  everything = ids(built.search(" ".join(asked), limit=1000, settings=by_scores))
  kept = ids(built.search(" ".join(asked), exclude, limit=1000, settings=by_scores))
  assert kept == [name for name in everything if name not in exclude]
  by_ranks = ids(built.search(" ".join(asked), exclude, 1000, settings=Fusion("ranks", fan_out=5)))
  assert len(by_ranks) >= min(5, len(kept))
  assert not exclude & set(by_ranks)


def test_a_hybrid_search_adds_scores_over_their_standard_deviations(built):
  query, names = "river stone music", [chunk.id for chunk in random_chunks()]
  total = dict.fromkeys(names, 0.0)
  for mode, weight in (("bm25", 1.0), ("dense", 0.5)):
    scores = {hit.chunk.id: hit.score for hit in built.search(query, limit=1000, mode=mode)}
    spread = statistics.pstdev(scores.get(name, 0.0) for name in names)
    for name, score in scores.items():
      total[name] += weight * score / spread
  best = sorted(total.values(), reverse=True)[:5]
  hits = built.search(query, limit=50, settings=Fusion(fused=5, dense_weight=0.5))
  assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-5)
  assert [total[hit.chunk.id] for hit in hits] == pytest.approx(best, rel=1e-5)


def test_fusion_by_ranks_is_that_of_the_two_rankings(built):
  query = "river stone music"
  bm25 = ids(built.search(query, limit=4, mode="bm25"))
  dense = ids(built.search(query, limit=4, mode="dense"))
  points = {}
  for ranking, weight in ((bm25, 1.0), (dense, 0.5)):
    for place, name in enumerate(ranking):
      points[name] = points.get(name, 0) + weight / (60 + 1 + place)
  expected = sorted(points, key=lambda name: (-points[name], name))[:5]
  chosen = Fusion("ranks", dense_weight=0.5, fan_out=4, fused=5)
  assert ids(built.search(query, limit=50, settings=chosen)) == expected


def test_nothing_is_found_for_words_that_no_chunk_has(built):
  for mode in ("bm25", "dense", "hybrid"):
    assert built.search("zzz the 7 ?", mode=mode) == []
    assert built.search("", mode=mode) == []


def test_a_document_is_read_whole_and_in_order(built):
  chunks = built.document("103")
  assert ids_of(chunks) == ["103_0", "103_1", "103_2"]
  assert chunks == random_chunks()[9:12]
  assert built.document("999") == []
  with pytest.raises(KeyError):
    built.chunk("999_0")


def ids_of(chunks):
  return [chunk.id for chunk in chunks]


def test_grep_finds_chunks_in_corpus_order_and_refuses_bad_patterns(built):
  hits = built.grep(r"river\s+stone", limit=3)
  assert [hit.chunk.id for hit in hits] == [
    chunk.id for chunk in random_chunks() if "river stone" in chunk.text
  ][:3]
  with pytest.raises(GrepError, match="invalid pattern"):
    built.grep("(")


def test_a_loaded_index_gives_the_same_results_as_the_built_one(built):
  again = hybrid.load(built.folder)
  assert len(again) == len(built) == 90
  for mode in ("bm25", "dense", "hybrid"):
    for query in ("river", "silver letter planet"):
      assert again.search(query, mode=mode) == built.search(query, mode=mode)
  assert [again.chunk(chunk.id) for chunk in random_chunks()] == random_chunks()


def test_the_same_chunks_are_built_once_and_other_chunks_elsewhere(built):
  meta = built.folder / "meta.json"
  before = meta.stat().st_mtime_ns
  assert hybrid.build(random_chunks(), built.folder.parent, rank=6).folder == built.folder
  assert meta.stat().st_mtime_ns == before
  changed = random_chunks()
  changed[5] = dataclasses.replace(changed[5], text=changed[5].text + "more")
  assert hybrid.build(changed, built.folder.parent, rank=6).folder != built.folder
  assert not list(built.folder.parent.glob(".*"))  # nothing half written is left


def test_building_twice_gives_the_same_bytes(built, tmp_path):
  other = hybrid.build(random_chunks(), tmp_path, rank=6)
  for path in built.folder.iterdir():
    assert path.read_bytes() == (other.folder / path.name).read_bytes(), path.name


def test_a_broken_folder_is_a_value_error_with_the_remedy(built, tmp_path):
  with pytest.raises(ValueError, match="no whole index .*; remove the folder and build"):
    hybrid.load(tmp_path)
  copy = tmp_path / "copy"
  copy.mkdir()
  for path in built.folder.iterdir():
    (copy / path.name).write_bytes(path.read_bytes())
  (copy / "vectors.npy").write_bytes(b"\x93NUMPY")
  with pytest.raises(ValueError, match="no whole index"):
    hybrid.load(copy)
  (copy / "meta.json").write_text(json.dumps({"format": 0}))
  file_digests.write(copy)
  with pytest.raises(ValueError, match="format 0, this version reads"):
    hybrid.load(copy)


def test_bad_chunks_and_settings_are_refused(built, tmp_path):
  one = Chunk("1_0", "1", "", "text", 0)
  other = Chunk("2_0", "2", "", "text", 0)
  with pytest.raises(ValueError, match="no chunks"):
    hybrid.build([], tmp_path)
  with pytest.raises(ValueError, match="two chunks have the id '1_0'"):
    hybrid.build([one, one], tmp_path)
  with pytest.raises(ValueError, match="document '1' are not together"):
    hybrid.build([one, other, dataclasses.replace(one, id="1_1")], tmp_path)
  with pytest.raises(ValueError, match="'bert' is unknown; use lsa or minilm"):
    hybrid.build([one], tmp_path, dense_leg="bert")
  with pytest.raises(ValueError, match="'fuzzy' is unknown; use hybrid, bm25 or dense"):
    built.search("river", mode="fuzzy")
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["?!", "one", "\ud800 lone surrogate word"])
def test_a_corpus_of_one_odd_chunk_can_be_searched(tmp_path, text):
  small = hybrid.build([Chunk("1_0", "1", "", text, 0)], tmp_path)
  assert small.chunk("1_0").text == text
  assert small.search("word one") in ([], small.search("word one"))
  assert ids(small.grep(".")) == ["1_0"]


@pytest.mark.slow
def test_searching_imports_neither_jax_nor_bm25s(built):
  code = (
    "import sys; from jaxrl_agents.corpus.index import hybrid; "
    f"hits = hybrid.load({str(built.folder)!r}).search('river'); "
    "assert hits and not {'jax', 'bm25s', 'tensorflow'} & set(sys.modules), sorted(sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
