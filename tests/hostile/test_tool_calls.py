"""Tool calls that a hostile policy makes: each costs little time and memory."""

import random
import time

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.judge.changes import added_lines

LIMIT_S = 3.0
"""Most seconds of work; what is tested took 30 s and more without its bound."""


def letters(count, seed):
  return "".join(random.Random(seed).choices("ab", k=count))


def test_an_edit_that_misses_in_a_megabyte_of_similar_lines_answers_soon():
  text = "\n".join(letters(199, seed) for seed in range(5_000))
  start = time.process_time()
  _, _, problem = view.edited("a.py", text, letters(198, "old"), "new")
  assert "old does not occur in a.py" in problem
  assert time.process_time() - start < LIMIT_S


def test_the_most_similar_line_is_still_named():
  text = "def total(items):\n  return sum(item.price for item in items)\n\n\nprint(total([]))\n"
  old = "  return sum(item.cost for item in items)"
  assert view.nearest(text, old) == (2, "  return sum(item.price for item in items)")
  assert view.nearest(text, "nothing like it at all, 0123456789") is None


def test_the_lines_that_a_huge_edit_adds_are_counted_soon():
  before = {"a.py": "\n" * 170_000}
  start = time.process_time()
  assert added_lines(before, {"a.py": b"x\n" * 90_000}) == ["x"] * 90_000
  assert added_lines(before, {"a.py": b"\n" * 180_000}) == [""] * 10_000
  assert time.process_time() - start < LIMIT_S


def test_a_moved_line_is_not_an_added_one():
  before = {"a.py": "one\ntwo\nthree\n"}
  assert added_lines(before, {"a.py": b"two\none\nthree\nfour\none\n"}) == ["four", "one"]
  assert added_lines(before, {"a.py": None, "b.txt": b"five"}) == []
