import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.corpus import chunks
from jaxrl_agents.corpus.documents import Document

PROSE = st.lists(
  st.sampled_from(
    ["word ", "word. ", "end.\n", "\n\n", "\n", "  ", "é", "\u2028", "\f", "long" * 20, "😀", "? "]
  )
).map("".join)
CODE = st.lists(
  st.sampled_from(
    [
      "def f(a):\n  '''Doc.\n\n  More words here.'''\n  return 1\n\n",
      "# why\n@d\nclass A:\n  x = 1\n\n  # what\n  def m(self): pass\n  y = 2\n",
      "try:\n  import a\nexcept E:\n  def a(): pass\nelse:\n  class B: pass\n",
      "x = '''\n\ndef no():\n'''\n",
      f"x = '{'w' * 99}'\n",
      "\n\n",
      "def broken(:\n",
    ]
  )
).map("".join)


def cut(text, kind="text", **limits):
  return chunks.cut([Document("417", "title", text, {"kind": kind})], **limits)


@settings(max_examples=150, deadline=None)
@given(
  PROSE | CODE | st.text(),
  st.sampled_from(["python", "text"]),
  st.integers(1, 40),
  st.integers(4, 80),
)
def test_chunks_joined_are_the_document_and_each_is_within_the_limits(text, kind, tokens, size):
  pieces = cut(text, kind, max_tokens=tokens, max_bytes=size)
  assert "".join(piece.text for piece in pieces) == (text if text.strip() else "")
  for i, piece in enumerate(pieces):
    assert piece.id == f"417_{i}"
    assert text.startswith(piece.text, piece.start)
    assert len(piece.text) == 1 or len(piece.text.encode()) <= size
    assert len(piece.text) == 1 or chunks.count_words_and_marks(piece.text) <= tokens


@settings(max_examples=50, deadline=None)
@given(PROSE | CODE)
def test_limits_hold_for_a_count_that_is_not_a_sum_over_pieces(text):
  def count(piece):  # more for the whole than for its parts
    return len(piece) ** 2 // 50

  for kind in ("python", "text"):
    pieces = chunks.cut([Document("1", "", text, {"kind": kind})], count, max_tokens=20)
    assert all(count(piece.text) <= 20 for piece in pieces)
    assert "".join(piece.text for piece in pieces) == (text if text.strip() else "")


def test_words_and_marks_are_counted():
  assert chunks.count_words_and_marks("def f(a_b): # naïve\n") == 8


def test_python_is_cut_at_definitions_with_signature_and_docstring_first():
  source = '''import re

# Says hello.
@decorated
def hello(name):
  return name

def long(a):
  """First paragraph.

  Second paragraph, with more words than the first one had.
  """
  one = a + 1
  two = one + 2
  three = two + 3
  return one * two * three
'''
  pieces = [piece.text for piece in cut(source, "python", max_tokens=22)]
  assert pieces[0] == "import re\n\n"
  assert pieces[1] == "# Says hello.\n@decorated\ndef hello(name):\n  return name\n\n"
  assert pieces[2] == 'def long(a):\n  """First paragraph.\n\n'
  assert pieces[3].startswith("  Second paragraph")
  assert "".join(pieces) == source


def test_a_definition_that_fits_is_one_chunk_with_its_methods():
  source = "class A:\n  def f(self): pass\n\n  def g(self): pass\n\nx = 1\n" + "y = 2\n" * 20
  pieces = [piece.text for piece in cut(source, "python", max_tokens=24)]
  assert pieces[0].startswith("class A:\n  def f(self): pass\n\n  def g(self): pass\n")


def test_source_of_another_python_is_cut_as_prose():
  source = "print 'old'\n" * 30
  pieces = cut(source, "python", max_tokens=20)
  assert "".join(piece.text for piece in pieces) == source
  assert all(piece.text.startswith("print") for piece in pieces)


def test_prose_is_halved_at_a_paragraph_near_the_middle_before_a_sentence():
  first, second = "One two three. Four five six.\n\n", "Seven eight nine. Ten eleven twelve."
  assert [piece.text for piece in cut(first + second, max_tokens=10)] == [first, second]
  pieces = [piece.text for piece in cut(first + second, max_tokens=4)]
  assert pieces == [
    "One two three. ", "Four five six.\n\n", "Seven eight nine. ", "Ten eleven twelve."
  ]  # fmt: skip


def test_a_run_without_spaces_is_cut_within_the_word_and_characters_stay_whole():
  pieces = [piece.text for piece in cut("😀" * 10, max_bytes=16)]
  assert "".join(pieces) == "😀" * 10
  assert max(len(piece.encode()) for piece in pieces) <= 16


def test_limits_below_one_are_refused():
  with pytest.raises(ValueError, match="max_tokens=0"):
    cut("x", max_tokens=0)
