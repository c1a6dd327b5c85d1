"""Other words and names in the texts of a drill."""

import random
import re

from jaxrl_agents.agents.search import rewording
from jaxrl_agents.agents.search.tasks import code_names

CLUE = "hand back ordered collection of descriptors inherited from parent"
DOCSTRING = '"""Return ordered collection of descriptors; get_fds."""'
HIT = f"def get_fds(self):\n    {DOCSTRING}\n    return None"
WORDS = [f"new{chr(97 + i)}" for i in range(26)]


def changed(*, share=1.0, renames=True, seed=0):
  draw = random.Random(seed)
  return rewording.Rewording([CLUE], WORDS, share=share, renames=renames, draw=draw)


def test_what_clue_and_hit_have_in_common_is_the_same_after_a_rewording():
  for seed in range(20):
    new = changed(seed=seed)
    clue, hit = new(CLUE).split(), new(HIT)
    for old, word in zip(CLUE.split(), clue, strict=True):
      assert (word == old) == (len(old) < rewording.MIN_WORD or old == "from")
    places = [CLUE.split().index(word) for word in ("ordered", "collection", "of", "descriptors")]
    assert f"{clue[places[0]]} {clue[places[1]]} of {clue[places[3]]}" in hit
    assert new(CLUE).split() == clue and new(HIT) == hit


def test_names_that_a_hit_defines_are_made_up_everywhere_and_code_stays():
  new = changed()
  hit = new(HIT)
  (name,) = code_names.defined(hit)
  assert name != "get_fds" and hit.count(name) == 2 and new.name("get_fds") == name
  assert re.fullmatch(r"def \w+\(self\):\n    \"\"\"Return .*\n    return None", hit)
  assert code_names.defined(changed(renames=False)(HIT)) == ["get_fds"]


def test_a_share_of_the_words_is_replaced_and_capitals_stay():
  assert changed(share=0.0, renames=False)(HIT) == HIT
  kept = [changed(share=0.5, seed=seed)("descriptors") == "descriptors" for seed in range(200)]
  assert 60 < sum(kept) < 140
  assert changed()("Ordered").istitle() and changed()("ordered").islower()


def test_clues_of_a_question_get_their_new_texts_in_order():
  question = "1. Routine: a b. 2. Method: a; using 1. Question: which method is 2?"
  wanted = "1. Routine: x. 2. Method: y; using 1. Question: which method is 2?"
  assert rewording.with_clues(question, ["a b", "a"], ["x", "y"]) == wanted
