import time

import pytest

from jaxrl_agents.corpus import grep


def test_the_first_matching_texts_are_found_in_order():
  texts = ["a cat", "dog", "Cat", "cats", "cat"]
  assert grep.matching(texts, "cat", limit=2) == [0, 3]
  assert grep.matching(texts, "(?i)^cat", limit=5) == [2, 3, 4]
  assert grep.matching(texts, "bird") == []
  assert grep.matching(texts, "cat", limit=0) == []


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "((a{1,1000}){1,1000}){1,1000}b"])
def test_a_catastrophic_pattern_ends_at_the_time_limit(pattern):
  start = time.process_time()
  with pytest.raises(grep.GrepError, match=r"took longer than 0\.2 s; use a simpler pattern"):
    grep.matching(["a" * 3000 + "!"] * 50, pattern, timeout_s=0.2)
  assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
  ("pattern", "message"),
  [
    ("[", "invalid pattern: unterminated character set"),
    ("(?P<x>a)(?P<x", "invalid pattern"),
    ("a{99999999999999}", "invalid pattern"),
    ("(" * 240 + ")" * 240, ""),
    (" ", "the pattern is empty"),
    ("x" * 501, "has 501 characters, at most 500"),
  ],
)
def test_an_unusable_pattern_is_a_typed_error_or_finds_nothing(pattern, message):
  if message:
    with pytest.raises(grep.GrepError, match=message):
      grep.matching(["text"], pattern)
  else:
    assert grep.matching(["text"], pattern) == [0]  # empty groups match anywhere
