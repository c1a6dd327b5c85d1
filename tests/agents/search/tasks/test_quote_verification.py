"""Every claim is a quote, and a quote that does not occur is refused."""

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxrl_agents.agents.search.tasks import quote_verification
from jaxrl_agents.agents.search.tasks.chains import Chain, Distractor, Item, Level

CLUES = "1. Bird: sings at night. 2. Bird using 1: builds of mud. 3. Tree holding 2: red in autumn."


def item(page, text, clue, quotes, truth=()):
  return Item(page, text, (clue,), tuple(quotes), tuple(truth), bool(truth), bool(truth))


def level_zero(**changes):
  items = (
    item("a", "The nightingale sings after dusk.", "Bird: sings at night", ["sings after dusk"]),
    item("b", "Mud nests: the swallow's work.", "builds of mud", ["Mud nests"]),
    item("c", "It is the maple that reddens.", "red in autumn", ["that reddens"], ["the maple"]),
  )
  level = Level(0, CLUES, "Question: which tree is 3?", "maple", "tree", items)
  return dataclasses.replace(level, **changes)


def failures(*levels, **switches):
  return quote_verification.failures(Chain("seed", levels), len(levels) - 1, **switches)


def with_item(index, **changes):
  items = list(level_zero().supporting_items)
  items[index] = dataclasses.replace(items[index], **changes)
  return level_zero(supporting_items=tuple(items))


def test_a_level_whose_quotes_all_occur_passes():
  assert failures(level_zero()) == []


@pytest.mark.parametrize(
  ("content", "quote"),
  [
    ("The Cat sat.", "the cat"),
    ("one\n    two  three", "two three"),
    ("see [the page](http://a.b/c) now", "the page now"),
    ("\u201cQuite\u201d so \u2014 it's done", '"quite" so - it\'s'),
    ("Return x, y; then stop.", "return x y then"),
  ],
)
def test_a_quote_occurs_whatever_its_case_white_space_links_and_quotation_marks(content, quote):
  assert quote_verification.contains(content, quote)


@pytest.mark.parametrize("quote", ["", "  ", "...", "the dog", "cat the"])
def test_an_empty_or_foreign_quote_does_not_occur(quote):
  assert not quote_verification.contains("The cat sat.", quote)


def test_five_long_words_in_order_pass_only_when_the_loose_rule_is_asked_for():
  content = "Large rivers, seldom frozen, carry timber towards distant harbours in spring."
  quote = "large rivers carry timber towards nowhere"
  assert not quote_verification.contains(content, quote)
  assert quote_verification.contains(content, quote, loose=True)


def test_two_of_three_quotes_pass_and_one_of_three_fails():
  two = ("sings after dusk", "nightingale", "flies by day")
  one = ("sings after dusk", "eats by day", "flies by day")
  assert failures(with_item(0, item_quotes=two)) == []
  assert failures(with_item(0, item_quotes=one)) == [
    "under two thirds of the item quotes of an item are in its text: a"
  ]
  two = ("sings at night", "1. Bird", "no such words")
  assert failures(with_item(0, clue_quotes=two)) == []
  assert failures(with_item(0, clue_quotes=two[1:])) == [
    "under two thirds of the clue quotes of an item are in the clues: a"
  ]


def test_one_missing_truth_quote_fails():
  reasons = failures(with_item(2, truth_quotes=("the maple", "an oak")))
  assert reasons == ["a truth quote of an item is not in its text: c"]


def test_none_as_a_quote_fails_and_so_does_an_item_without_quotes():
  assert "a quote is None" in failures(with_item(0, item_quotes=("None",)))[0]
  assert failures(with_item(0, clue_quotes=()))
  assert failures(with_item(0, item_quotes=()))


def test_some_item_must_contain_the_truth_and_quote_it():
  assert failures(with_item(2, contains_truth=False)) == ["no supporting item contains the truth"]
  reasons = failures(with_item(2, truth_quotes=("It is",)))
  assert reasons == ["no truth quote of an item holds the truth: c"]
  assert failures(with_item(2, truth_quotes=("It is",)), literal_truth=False) == []


def test_the_truth_may_stand_neither_in_the_clues_nor_in_the_question():
  level = level_zero(question="Question: is it the Maple?")
  assert failures(level) == ["a truth stands in the clues or in a question: 'maple'"]
  assert failures(level_zero(question="Question: which maples?")) == []  # another word


def test_items_are_distinct_and_three():
  items = level_zero().supporting_items
  reasons = failures(level_zero(supporting_items=(items[0], items[0], items[2])))
  assert reasons == ["two items are the same passage"]
  assert "2, not 3" in failures(level_zero(supporting_items=items[1:]))[0]


def test_a_distractor_that_contains_a_truth_of_the_chain_is_refused():
  good, bad = Distractor("x", "The oak reddens."), Distractor("y", "A Maple stood there.")
  assert failures(level_zero(distractors=(good,))) == []
  assert failures(level_zero(distractors=(good, bad))) == [
    "a distractor contains a truth of the chain: y"
  ]


def level_one(**changes):
  bridge = item("d", "Syrup comes from maples' sap.", "4. Food made of 3", ["Syrup comes from"])
  bridge = dataclasses.replace(bridge, previous_id="c", previous_quotes=("that reddens",))
  items = (
    item("e", "A pancake takes it.", "5. Food made with 4", ["A pancake"], ["pancake"]),
    item("f", "Breakfast is early.", "6. Meal holding 5", ["is early"]),
  )
  level = Level(
    1,
    "4. Food made of 3. 5. Food made with 4. 6. Meal holding 5.",
    "Question: which food is 5?",
    "pancake",
    "food",
    items,
    dataclasses.replace(bridge, **changes),
  )
  return level


def test_a_further_level_has_a_bridge_tied_to_an_earlier_passage():
  assert failures(level_zero(), level_one()) == []
  assert "tied to no item" in failures(level_zero(), level_one(previous_id="z"))[0]
  reasons = failures(level_zero(), level_one(previous_quotes=("Syrup comes from",)))
  assert reasons == ["the quotes that tie the bridging item are not in the earlier passage: d"]
  without = dataclasses.replace(level_one(), bridging_item=None)
  assert "a bridging item belongs to every level" in failures(level_zero(), without)[0]


WORDS = sorted({word for each in level_zero().items for word in each.text.split()})


@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=200)
def test_every_planted_false_quote_is_refused(data):
  """One word of a quote is dropped from the middle, doubled, swapped or replaced."""
  index = data.draw(st.integers(0, 2))
  chosen = level_zero().supporting_items[index]
  fields = ["clue_quotes", "item_quotes"] + ["truth_quotes"] * bool(chosen.truth_quotes)
  field = data.draw(st.sampled_from(fields))
  source = CLUES if field == "clue_quotes" else chosen.text
  words = getattr(chosen, field)[0].split()
  place = data.draw(st.integers(0, len(words) - 1))
  edit = data.draw(st.sampled_from(["replace", "double", "insert"]))
  if edit == "replace":
    words[place] = data.draw(st.sampled_from(WORDS))
  else:
    extra = words[place] if edit == "double" else data.draw(st.sampled_from(WORDS))
    words.insert(place, extra)
  false = " ".join(words)
  plain = lambda text: [word.strip(".,:?'").lower() for word in text.split()]
  text, quote = plain(source), plain(false)
  spans = (text[i : i + len(quote)] for i in range(len(text)))
  hypothesis.assume(quote not in spans)
  assert failures(with_item(index, **{field: (false,)}))
