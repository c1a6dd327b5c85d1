"""HTML that is made to hang or to break a parser: it is read in time that grows with its length."""

import random
import time

import pytest

from jaxrl_agents.corpus import readers

COUNT = 100_000


@pytest.mark.parametrize(
  "piece",
  ["<!--", "<a ", "<![", "<!", "<?", "</", "<a b='", '<a b="', "<", "&#", "<p>", "<a <b>", "<!-->"],
)
def test_many_of_one_piece_are_read_soon(piece):
  start = time.process_time()
  readers.html_to_text(piece * COUNT)
  readers.html_to_text("<title>T</title>" + piece * COUNT + "-->'\">end")
  assert time.process_time() - start < 10.0


def test_random_markup_never_raises():
  parts = ["<!--", "-->", "<![", "]]>", "<!DOCTYPE html>", "<?", "<a href='x'>", "</a>", "<", ">",
           "&", "&#x;", "text", '"', "'", "<script>", "</script>", "<pre>", "\n"]  # fmt: skip
  draw = random.Random(0)
  for _ in range(5_000):
    readers.html_to_text("".join(draw.choices(parts, k=draw.randint(1, 20))))


def test_what_stands_between_comments_and_declarations_is_kept():
  page = "<!DOCTYPE html><title>A &amp; B</title><p>one<!-- no > no --> two</p><![CDATA[x]]>3 < 4"
  assert readers.html_to_text(page) == ("A & B", "one two\n\n3 < 4")
