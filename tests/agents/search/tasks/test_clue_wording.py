"""Clues say what a sentence says, in other words, and never the name."""

import pytest

from jaxrl_agents.agents.search.tasks import clue_wording, everyday_words


def rewrite(sentence, table="train", own_name="frobnicate", rare_names=()):
  return clue_wording.rewrite(sentence, table, own_name=own_name, rare_names=rare_names)


def test_words_of_manuals_become_everyday_words_of_the_table_of_the_split():
  sentence = "Return the directory of the user and remove the file."
  assert rewrite(sentence) == (
    "hand back the folder of the person and take away the stored item",
    len(sentence),
  )
  assert rewrite(sentence, "test") == (
    "give the place for records of the human and drop the record on disk",
    len(sentence),
  )


def test_code_numbers_proper_nouns_and_rare_names_are_blanked():
  clue, _ = rewrite("Wait until `self._lock` is free within 30 seconds on every slow network.")
  assert clue == (
    "hold on until something is free within a certain number seconds on every slow web of machines"
  )
  clue, _ = rewrite("Pick out what Windows hosts say of parseaddr here.", rare_names={"parseaddr"})
  assert clue == "pick out what something hosts say of something here"


def test_the_own_name_never_shows_even_as_an_everyday_word():
  clue, _ = rewrite("Fetch every letter that is pending on the line of the queue.", own_name="row")
  assert "row" not in clue.split()
  clue, _ = rewrite("Search through all the pending letters of somebody else.", own_name="search")
  assert clue.startswith("look ")  # the word for it is another one


def test_a_long_sentence_is_cut_at_the_end_of_a_clause_and_says_how_far_it_went():
  sentence = (
    "Walk over every leaf of the tree from the root down, which takes as long as there are leaves, "
    "and tell the caller of each leaf that was seen on the way there and back again."
  )
  clue, length = rewrite(sentence)
  assert sentence[:length].endswith("down, which takes as long as there are leaves")
  assert clue.endswith("as there are leaves")
  assert len(clue.split()) <= clue_wording.MAX_WORDS


@pytest.mark.parametrize(
  "sentence",
  [
    "Close it now.",  # under five words
    "See `a.b` and `c.d` or `e.f` and `g.h` for more.",  # nothing but blanks
    "foo_bar() of baz_qux(): see RFC 822.",
  ],
)
def test_a_sentence_with_too_little_information_makes_no_clue(sentence):
  assert rewrite(sentence) is None


def test_the_two_tables_have_the_same_words_and_share_no_replacement():
  train, test = everyday_words.TABLES["train"], everyday_words.TABLES["test"]
  assert train.keys() == test.keys()
  assert len(train) > 250
  assert [word for word in train if train[word] == test[word]] == []
  assert everyday_words.TABLES["dev"] == train
