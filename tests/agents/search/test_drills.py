"""Drills: what is quoted stands in the hits or in the question, and only the right hits are."""

import re

import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents.search import drills as search_drills
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import Task

WRONG = (Chunk("5_5", "5", "d", "wrong text here", 0), Chunk("6_6", "6", "d", "more of it", 0))
TEXTS = {
  "7_3": "def f(): pass # some words before the lamp gives light to the whole street at night ok",
  "8_1": "a bird sings",
  "9_9": "stones are heavy and cold",
}
CLUES = (
  {"text": "gives light to the street", "chunk_ids": ["7_3"], "name": "lamp"},
  {"text": "sings", "chunk_ids": ["8_1", "9_9"], "name": "bird"},
)


PROMPT = "1. Lamp: gives light to the street. 2. Bird: sings. Question: which bird is 2?"


def search(query):
  """Wrong chunks, others for each clue, around the right one."""
  right = "7_3" if query == CLUES[0]["text"] else "8_1"
  own = [Chunk(f"{w.id}{right[0]}", w.doc_id, w.title, w.text, 0) for w in WRONG]
  return [own[0], Chunk(right, right[0], "d", TEXTS[right], 0), own[1]]


def task(i, clues=CLUES):
  return Task(f"t{i}", "search", PROMPT, {"clues": clues}, "train", i)


@pytest.fixture(scope="module")
def drills():
  talk = chat_lib.load("base")
  pairs = search_drills.reading_drills(
    [task(i) for i in range(600)], TEXTS.__getitem__, search, talk, can_prune=True, seed=3
  )
  return [(talk.decode(p), talk.decode(r)) for p, r in pairs]


def shown(prompt):
  return re.findall(r"# DOCUMENT ID: (\S+) \(\d+ tokens\) \n(.*)", prompt)


def test_with_a_question_the_right_hits_or_all_are_listed_or_all_the_wrong_ones_pruned(drills):
  """Of a result without the right hit, the first stands in for it."""
  listed = generous = pruned = missed = 0
  for prompt, reply in drills:
    if "<|user|>" not in prompt or "<|tool|>" not in prompt:
      continue
    ids = [name for name, _ in shown(prompt)]
    by_result = [[name for name, _ in shown(text)] for text in prompt.split("<|tool|>")[1:]]
    assert len(by_result) == 2
    right = [next((i for i in hits if i in TEXTS), hits[0]) for hits in by_result]
    missed += not TEXTS.keys() >= set(right)
    if "prune_chunks" in reply:
      pruned += 1
      assert sorted(re.findall(r'"(\d+_\d+)"', reply)) == sorted(set(ids) - set(right))
    else:
      found = re.findall(r"<Document id=([^>]+)>", reply)
      listed += found == right
      generous += found == list(dict.fromkeys(ids)) != right
      assert found in (right, list(dict.fromkeys(ids)))
  assert listed > 100 and pruned > 20 and 20 < generous < 80 and 20 < missed < 100


def test_without_a_question_the_first_hit_of_every_result_is_listed(drills):
  bare = [(p, r) for p, r in drills if "<|user|>" not in p]
  assert 40 < len(bare) < 120
  for prompt, reply in bare:
    firsts = [shown(result)[0][0] for result in prompt.split("<|tool|>")[1:]]
    assert re.findall(r"<Document id=([^>]+)>", reply) == firsts


def test_queries_are_the_clues_of_the_question_word_for_word_even_of_strange_words(drills):
  asked = [(p, r) for p, r in drills if "<|tool|>" not in p]
  assert 250 < len(asked) < 350
  strange = 0
  for prompt, reply in asked:
    queries = re.findall(r'{"query": " ([^"]+)"}', reply)
    [(first, second)] = re.findall(r"1. Lamp: (.+). 2. Bird: (.+). Question: which", prompt)
    assert queries == [first, second]
    strange += queries != [clue["text"] for clue in CLUES]
  assert 100 < strange < 180


def test_a_hit_is_cut_to_the_words_that_the_clue_shares(drills):
  texts = {text for prompt, _ in drills for name, text in shown(prompt) if name == "7_3"}
  pieces = {text.split("<|")[0] for text in texts}
  assert pieces == {
    "the lamp gives light to the whole street",
    "# some words before the lamp gives light to the whole street",
    TEXTS["7_3"],
  }


def test_a_drill_does_not_depend_on_how_many_there_are():
  talk = chat_lib.load("base")
  make = lambda tasks: [
    np.concatenate(pair)
    for pair in search_drills.reading_drills(
      tasks, TEXTS.__getitem__, search, talk, can_prune=True, seed=1
    )
  ]
  one, two = make([task(0), task(1)]), make([task(1)])
  np.testing.assert_array_equal(one[1], two[0])


def test_without_the_tool_that_prunes_no_drill_prunes(drills):
  talk = chat_lib.load("base")
  tasks = [task(i) for i in range(600)]
  pairs = search_drills.reading_drills(
    tasks, TEXTS.__getitem__, search, talk, can_prune=False, seed=3
  )
  replies = [talk.decode(reply) for _, reply in pairs]
  assert len(replies) == 600 and not any("prune_chunks" in reply for reply in replies)
  assert any("prune_chunks" in reply for _, reply in drills)
