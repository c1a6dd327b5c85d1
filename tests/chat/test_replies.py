"""JSON in replies: what is taken, and what is an error of the call."""

import pytest

from jaxrl_agents.chat import replies


def nested(depth):
  return '{"a": ' * (depth - 1) + "{}" + "}" * (depth - 1)


def test_arguments_may_be_nested_as_deeply_as_what_reads_them_allows():
  for text in (nested(replies.MAX_DEPTH), "[" * 64 + "]" * 64, "5", '"text"'):
    replies.parsed(text)
  for text in (
    nested(replies.MAX_DEPTH + 1),
    nested(600),
    '{"a": ' + "[" * 5_000 + "]" * 5_000 + "}",
  ):
    with pytest.raises(ValueError, match="nested too deeply"):
      replies.parsed(text)
  assert "nested too deeply" in replies.with_arguments("", "look", nested(600)).error
