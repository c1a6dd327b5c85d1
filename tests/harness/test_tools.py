"""Every bad call becomes text that names the cause and the remedy."""

import asyncio
import math
import random
import statistics
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.harness.tools import Tool, ToolError, late, run_call, shortened
from jaxrl_agents.types import ToolCall, ToolSpec

SCHEMA = {
  "type": "object",
  "properties": {
    "query": {"type": "string", "minLength": 1, "maxLength": 20},
    "limit": {"type": "integer", "minimum": 1, "maximum": 9},
    "ids": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    "mode": {"enum": ["fast", "slow"]},
    "exact": {"type": "boolean"},
  },
  "required": ["query"],
}


def echo(query, **others):
  return f"{query} {others}"


def refuse(**_):
  raise ToolError("the index is closed; open it first")


def burst(**_):
  raise ZeroDivisionError("oh")


async def hang(**_):
  await asyncio.sleep(60)


def tools(run=echo, deadline_s=5.0):
  return {"search_corpus": Tool(ToolSpec("search_corpus", "", SCHEMA), run, deadline_s)}


def observe(arguments, name="search_corpus", error="", **options):
  return asyncio.run(run_call(tools(**options), ToolCall("0.0", name, arguments, error)))


def test_a_good_call_returns_what_the_tool_returned():
  assert observe({"query": "a", "limit": 3}) == "a {'limit': 3}"


@pytest.mark.parametrize(
  ("arguments", "expected"),
  [
    ({}, "arguments lack 'query'; add it (string)."),
    ({"query": 3}, "'query' must be of type string, not integer 3."),
    ({"query": ""}, "'query' has 0 characters; at least 1 required."),
    ({"query": "x" * 21}, "'query' has 21 characters; at most 20 allowed."),
    ({"query": "a", "limit": True}, "'limit' must be of type integer, not boolean true."),
    ({"query": "a", "limit": 10}, "'limit' is 10; at most 9 allowed."),
    ({"query": "a", "ids": ["b", 1]}, "'ids'[1] must be of type string, not integer 1."),
    ({"query": "a", "ids": ["b"] * 3}, "'ids' has 3 items; at most 2 allowed."),
    ({"query": "a", "mode": "odd"}, """'mode' must be one of ["fast", "slow"], not "odd"."""),
    (
      {"query": "a", "q": 1},
      """arguments have an unknown "q"; remove it. Known: query, limit, ids, mode, exact.""",
    ),
    ([], "arguments must be of type object, not array []."),
  ],
)
def test_arguments_that_break_the_schema_are_named_with_the_remedy(arguments, expected):
  assert observe(arguments) == f"Error: search_corpus: {expected}"


LETTER = {
  "type": "object",
  "properties": {
    "name": {"type": ["string", "null"]},
    "size": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    "who": {"$ref": "#/$defs/who"},
  },
  "$defs": {"who": {"type": "object", "required": ["id"]}},
}


@pytest.mark.parametrize(
  ("arguments", "expected"),
  [
    ({"name": None, "size": 2.0, "other": 1, "who": {"id": 1}}, ""),
    ({"name": 3}, "'name' must be of type string or null, not integer 3."),
    (
      {"size": 0},
      "'size' has none of the allowed forms: 'size' is 0; at least 1 required; or 'size' must be "
      "of type null, not integer 0.",
    ),
    ({"who": {}}, "'who' lack 'id'; add it (value)."),
    ({"who": 1}, "'who' must be of type object, not integer 1."),
  ],
)
def test_a_tool_that_is_not_strict_takes_what_json_schema_allows(arguments, expected):
  tool = Tool(ToolSpec("t", "", LETTER), lambda **given: "ran", strict=False)
  text = asyncio.run(run_call({"t": tool}, ToolCall("", "t", arguments)))
  assert text == (f"Error: t: {expected}" if expected else "ran")


def test_a_strict_tool_takes_no_further_argument_and_no_float_for_an_integer():
  assert "an unknown" in observe({"query": "a", "other": 1})
  assert "'limit' must be of type integer, not number 1.0" in observe({"query": "a", "limit": 1.0})


def test_a_shortened_tool_shortens_results_and_failures():
  short = {name: shortened(tool, lambda text: text[:9]) for name, tool in tools(refuse).items()}
  call = ToolCall("", "search_corpus", {"query": "a"})
  assert asyncio.run(run_call(short, call)) == "Error: the index"
  short = {name: shortened(tool, lambda text: text[:9]) for name, tool in tools().items()}
  long = ToolCall("", "search_corpus", {"query": "abcdefghijk"})
  assert asyncio.run(run_call(short, long)) == "abcdefghi"


def test_an_unknown_tool_is_answered_with_the_nearest_name():
  text = observe({"query": "a"}, name="serch_corpus")
  assert text == "Error: there is no tool 'serch_corpus'; did you mean search_corpus?"


def test_a_call_that_could_not_be_parsed_says_why():
  text = observe({}, error="the arguments are not valid JSON: line 1")
  assert text.startswith("Error: the arguments are not valid JSON: line 1. Write the call again")


def test_oversized_arguments_are_refused():
  assert "at most 8192 are allowed" in observe({"query": "x" * 10_000})


def test_what_a_tool_raises_becomes_an_observation():
  assert observe({"query": "a"}, run=refuse) == "Error: the index is closed; open it first"
  assert observe({"query": "a"}, run=burst) == (
    "Error: search_corpus failed: ZeroDivisionError: oh"
  )
  assert observe({"query": "a"}, run=lambda query: sys.exit(2)) == (
    "Error: search_corpus failed: SystemExit: 2"
  )


def test_what_a_tool_returns_is_awaited_whether_or_not_its_function_is_a_coroutine_function():
  async def later(query):
    return f"found {query}"

  assert observe({"query": "a"}, run=lambda query: later(query)) == "found a"


def test_arguments_are_measured_in_characters_whatever_the_alphabet():
  spec = ToolSpec("note", "", {"type": "object", "properties": {"text": {"type": "string"}}})
  noted = {"note": Tool(spec, lambda text: str(len(text)))}
  said = asyncio.run(run_call(noted, ToolCall("0.0", "note", {"text": "ж" * 2_000})))
  assert said == "2000"


def test_an_unknown_argument_is_named_where_others_fit_a_pattern():
  schema = {"type": "object", "patternProperties": {"^x_": {}}, "additionalProperties": False}
  tool = Tool(ToolSpec("note", "", schema), lambda **given: "", strict=False)
  said = asyncio.run(run_call({"note": tool}, ToolCall("0.0", "note", {"x_a": 1, "bad": 2})))
  assert 'an unknown "bad"' in said


def test_a_timeout_within_a_tool_is_not_taken_for_its_deadline():
  async def upstream(query, limit=5):
    raise TimeoutError("the index answered 504")

  text = observe({"query": "a"}, run=upstream)
  assert text == "Error: search_corpus failed: TimeoutError: the index answered 504"


def test_a_tool_that_hangs_is_given_up_at_its_deadline():
  began = time.monotonic()
  text = observe({"query": "a"}, run=hang, deadline_s=0.05)
  assert text == "Error: search_corpus took longer than 0.05 s. Ask for something simpler."
  assert time.monotonic() - began < 5


JSON_VALUES = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
  lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
  ),
  max_leaves=8,
)


def test_calls_that_hang_in_threads_leave_further_calls_room():
  end = threading.Event()
  hanging, quick = tools(lambda **_: end.wait(20.0), deadline_s=0.2), tools(deadline_s=5.0)
  call = ToolCall("0.0", "search_corpus", {"query": "a"})

  async def play():
    given_up = await asyncio.gather(*(run_call(hanging, call) for _ in range(40)))
    return given_up, await run_call(quick, call), await asyncio.to_thread(lambda: "packed")

  began = time.monotonic()
  try:
    given_up, answered, packed = asyncio.run(play())
  finally:
    end.set()
  assert all("took longer than 0.2 s" in text for text in given_up)
  assert (answered, packed) == ("a {}", "packed")
  assert time.monotonic() - began < 5.0


def test_a_late_tool_waits_a_time_of_its_own_before_each_call(monkeypatch):
  waits = []

  async def sleep(seconds):
    waits.append(seconds)

  monkeypatch.setattr(asyncio, "sleep", sleep)
  echoing = Tool(ToolSpec("echo", "", SCHEMA), echo, deadline_s=3.0)
  tool = late(echoing, 0.2, 0.5, random.Random(0))
  call = ToolCall("", "echo", {"query": "q"})

  async def calls():
    return [await run_call({"echo": tool}, call) for _ in range(400)]

  assert set(asyncio.run(calls())) == {"q {}"}
  assert 0.18 < statistics.median(waits) < 0.22
  assert 0.4 < statistics.stdev(map(math.log, waits)) < 0.6
  assert tool.deadline_s - 3.0 > max(waits)


@settings(max_examples=80, deadline=None)
@given(
  name=st.sampled_from(["search_corpus", "", "zzz", "prune"]) | st.text(max_size=12),
  arguments=JSON_VALUES | st.dictionaries(st.sampled_from(list(SCHEMA["properties"])), JSON_VALUES),
  error=st.sampled_from(["", "odd"]),
)
def test_no_call_whatever_raises(name, arguments, error):
  assert isinstance(observe(arguments, name=name, error=error), str)
