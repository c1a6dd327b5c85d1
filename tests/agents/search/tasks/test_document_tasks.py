"""Questions about whole documents become a frozen task set that a run takes as its corpus."""

import asyncio
import collections
import os
import pathlib

import pytest

from jaxrl_agents import chat
from jaxrl_agents.agents.search import reward, tools
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.corpus_tasks import CorpusTasks
from jaxrl_agents.agents.search.expert import ExpertNoise, make_player
from jaxrl_agents.agents.search.tasks import (
  chroma_files,
  document_tasks,
  make_tasks,
  published_sets,
  task_set,
)
from jaxrl_agents.agents.search.tasks.document_tasks import Collection, Question
from jaxrl_agents.agents.swarm.tasks import budgets
from jaxrl_agents.agents.swarm.tasks import make_tasks as swarm_tasks
from jaxrl_agents.corpus import chunks
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.corpus.splits import split_of
from jaxrl_agents.harness.rollout import Sampling, run_episode
from tests.agents.search.tasks.test_chroma_files import web_file, write_json

TEXTS = {
  "Heron": "The heron stands in the shallow water of the estuary, waiting for fish. " * 3,
  "Estuary": "The estuary opens to the western sea below the town of Instow. " * 3,
  "Instow": "Instow has a cricket ground with thatched roofs near the beach. " * 3,
  "Cement": "Cement hardens under water, as Smeaton found for his lighthouse. " * 3,
}
WORDS = {"count_tokens": chunks.count_words_and_marks, "chunk_tokens": 16}


def collection(questions=None):
  documents = [
    Document(str(100 + n), title, text, {"source": title, "kind": "text"})
    for n, (title, text) in enumerate(TEXTS.items())
  ]
  default = [
    Question("q1", "Which town is near the heron?", ("Heron", "Estuary"), "Instow", ("Estuary",)),
    Question("q2", "What hardens?", ("Cement",), "Cement", split="test", kind="beir query"),
  ]
  return Collection(documents, default if questions is None else questions, {"without gold": 3})


def made(**options):
  return document_tasks.make(collection(), source="birds", **WORDS, **options)


def prepared(folder, cache, chunk_tokens=16, seed=0):
  return make_tasks.prepared(
    folder,
    count_tokens=chunks.count_words_and_marks,
    chunk_tokens=chunk_tokens,
    cache_dir=cache,
    seed=seed,
  )


def test_the_gold_of_a_task_are_documents_and_those_that_hold_the_answer():
  tasks = {task.id: task for each in made().tasks.values() for task in each}
  facts = tasks["q1"].facts
  assert (facts["document_ids"], facts["gold_document_ids"]) == (["100", "101"], ["101"])
  assert (facts["truth"], facts["level"]) == ("Instow", 1)
  assert [clue["text"] for clue in facts["clues"]] == ["Heron", "Estuary"]
  assert {i.split("_")[0] for i in facts["clues"][0]["chunk_ids"]} == {"100"}
  assert len(facts["clues"][0]["chunk_ids"]) > 1
  assert "gold_document_ids" not in tasks["q2"].facts
  assert tasks["q2"].facts["level"] == 0


def test_a_query_of_the_collection_comes_before_the_title():
  question = Question("q", "?", ("Heron", "Cement"), queries={"Cement": "what sets"})
  found = document_tasks.make(collection([question]), source="", **WORDS)
  (task,) = (task for each in found.tasks.values() for task in each)
  assert [clue["text"] for clue in task.facts["clues"]] == ["Heron", "what sets"]


def test_a_question_keeps_its_own_split_unless_a_hash_is_asked_for():
  split = lambda found: {t.id: t.split for each in found.tasks.values() for t in each}
  assert split(made())["q2"] == "test"
  assert split(made(own_splits=False))["q2"] == split_of("Cement")
  assert split(made())["q1"] == split_of("Estuary")  # the smallest name of its group


def test_questions_that_share_documents_also_through_others_get_one_split():
  pairs = [(f"d{2 * n}", f"d{2 * n + 1}") for n in range(200)]
  linked = [pair for a, b in zip(pairs[::4], pairs[1::4], strict=True) for pair in ((a[1], b[0]),)]
  questions = [Question(str(n), "?", gold) for n, gold in enumerate([*pairs, *linked])]
  chosen = document_tasks.splits(questions)
  assert document_tasks.shared_gold(questions, chosen) == 0
  counts = collections.Counter(chosen.values())
  assert min(counts["train"], counts["dev"], counts["test"]) > 5
  shuffled = document_tasks.splits(questions[::-1])
  assert shuffled == chosen


def test_a_group_of_most_questions_is_split_and_the_shared_documents_are_counted():
  chain = [Question(str(n), "?", (f"d{n:03}", f"d{n + 1:03}")) for n in range(100)]
  chosen = document_tasks.splits(chain)
  assert set(chosen.values()) == {"train", "dev", "test"}
  borders = sum(chosen[str(n)] != chosen[str(n + 1)] for n in range(99))
  assert document_tasks.shared_gold(chain, chosen) == borders > 0
  hub = [Question(str(n), "?", ("hub", f"a{n}")) for n in range(100)]
  assert set(document_tasks.splits(hub).values()) == {split_of("hub")}


def test_a_saved_set_is_what_a_run_takes_as_its_corpus(tmp_path):
  task_set.save(made(), tmp_path / "set")
  loaded = prepared(tmp_path / "set", tmp_path / "cache")
  assert loaded.tasks == made().tasks
  assert loaded.chunks == made().chunks
  assert loaded.manifest["left_out"] == {"without gold": 3}
  assert not (tmp_path / "cache").exists()


def test_a_set_that_was_cut_or_numbered_otherwise_names_the_option(tmp_path):
  task_set.save(made(), tmp_path / "set")
  with pytest.raises(ValueError, match=r"set corpus\.chunk_tokens=16"):
    prepared(tmp_path / "set", tmp_path, chunk_tokens=64)
  with pytest.raises(ValueError, match=r"set corpus\.seed=0"):
    prepared(tmp_path / "set", tmp_path, seed=3)


def test_task_files_of_context_1_are_a_corpus_for_a_run(tmp_path):
  chains = [chroma_files.read(write_json(tmp_path, web_file()))]
  frozen = make_tasks.from_chains(chains, gold="fact", **WORDS)
  task_set.save(frozen, tmp_path / "set")
  assert prepared(tmp_path / "set", tmp_path).tasks == frozen.tasks


def test_a_swarm_refuses_a_search_task_set(tmp_path):
  task_set.save(made(), tmp_path / "set")
  with pytest.raises(ValueError, match="a frozen task set of the search agent"):
    swarm_tasks.prepared(
      tmp_path / "set",
      cache_dir=tmp_path,
      budgets=budgets.Budgets(
        share=0.4,
        max_calls=1,
        grep_limit=1,
        max_assignments=4,
        token_budget=1_000,
        lookup_tokens=100,
        max_shown=2,
      ),
      **WORDS,
    )


def test_a_gold_document_that_is_not_in_the_corpus_is_refused():
  task = next(task for each in made().tasks.values() for task in each if task.id == "q1")
  known = {chunk.id for chunk in made().chunks} | {"100"}
  with pytest.raises(ValueError, match="gold document '101' is not in the corpus"):
    task_set.require_gold(task, known, "set")


@pytest.mark.parametrize("short_ids", [False, True])
def test_the_demonstrator_finds_and_lists_whole_documents(tmp_path, short_ids):
  frozen = made()
  index = hybrid.build(frozen.chunks, tmp_path, rank=4)
  corpus = CorpusTasks(frozen, index, hybrid.Fusion(), short_ids)
  task = next(task for each in corpus.tasks.values() for task in each if task.id == "q1")
  limits = SearchConfig(max_turns=6, tool_output_tokens=400, max_new_tokens=200)
  services = tools.SearchServices(chat.load(), index, limits)
  noise = ExpertNoise(
    scales=(0.0,), cut_query=0.0, read=0.0, one_by_one=0.0, hasty=0.0, generous=0.0
  )
  player = make_player(task, services, noise, 0)
  sampling = Sampling(max_new_tokens=200)
  played = asyncio.run(run_episode(player, services.chat, player, task=task, sampling=sampling))
  assert (played.rewards["output_recall"], played.rewards["precision"]) == (1.0, 1.0)
  assert played.rewards["answer_found"] == 1.0
  assert reward.search_total(played.rewards, beta=4.0) == 2.0


def test_two_questions_with_one_id_and_an_empty_set_are_refused():
  question = Question("q", "?", ("Heron",))
  with pytest.raises(ValueError, match="two questions have the id 'q'"):
    document_tasks.make(collection([question, question]), source="birds", **WORDS)
  with pytest.raises(ValueError, match=r"birds: no question is left \(3 without gold\)"):
    document_tasks.make(collection([]), source="birds", **WORDS)


@pytest.mark.parametrize(
  ("name", "documents", "questions"),
  [("hotpotqa_train100", 994, 100), ("musique_train", 1_158, 60), ("cacm", 3_204, 52)],
)
def test_samples_of_real_collections_become_task_sets(name, documents, questions):
  """The folder of the samples is in $JAXRL_QUESTION_SETS."""
  folder = pathlib.Path(os.environ.get("JAXRL_QUESTION_SETS", "/nowhere")) / name
  if not folder.is_dir():
    pytest.skip("needs $JAXRL_QUESTION_SETS")
  read = published_sets.read("beir", folder)
  options = {**WORDS, "chunk_tokens": 256}
  found = document_tasks.make(read, source=name, own_splits=False, **options)
  assert len(found.documents) == documents
  assert sum(map(len, found.tasks.values())) == questions
