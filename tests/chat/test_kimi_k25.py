"""Kimi K2.5: the expected text is written by hand after the files on the model's page."""

import pytest

from jaxrl_agents.chat import kimi_k25, kimi_typescript
from jaxrl_agents.types import Message, ToolCall, ToolSpec
from tests.chat import families
from tests.chat.families import CLOCK, CONVERSATION, SEARCH, spelled
from tests.chat.test_kimi_k2 import ARGUMENTS, BEGIN, CALL, DONE, END, SYSTEM, TALK

TOOLS = """<|im_system|>tool_declare<|im_middle|># Tools

## functions
namespace functions {
// Searches the corpus.
// Gives chunks.
type search_corpus = (_: {
  // What to find, e.g. rivière
  query: string,
  // Default: 5
  limit?: number,
  // Default: "best"
  order?: "best" | "newest"
}) => any;
// Tells the time.
type clock = (_: {}) => any;
}
<|im_end|>"""
CLOCK_CALL = (BEGIN, CALL, "functions.clock:0", ARGUMENTS, "{}", DONE, END)
OPENS = "<|im_assistant|>assistant<|im_middle|><think>"


@pytest.fixture
def chat(chats):
  return chats["kimi_k25"]


def test_tools_are_types_and_the_prompt_opens_a_thought(chat):
  text = chat.decode(chat.render(CONVERSATION, [SEARCH, CLOCK]))
  assert text == f"{TOOLS}{SYSTEM}{TALK}<think>"


def test_without_thinking_every_turn_has_an_empty_thought_that_the_policy_did_not_write(tmp_path):
  chat = families.load(tmp_path, "kimi_k25", kimi_k25.UNTHINKING)
  assert chat.decode(chat.render(CONVERSATION)) == f"{SYSTEM}{TALK}<think></think>"
  reply = Message("assistant", "The Loire.", reasoning="hm")
  assert chat.decode(chat.encode_reply(reply)) == "The Loire.<|im_end|>"
  assert chat.parse(chat.encode_reply(reply)).content == "The Loire."


def test_a_reply_begins_in_the_thought_and_is_put_back_as_it_was_sampled(chat):
  pieces = ["hm", "</think>", "I ask.", *CLOCK_CALL]
  sampled = spelled(chat, pieces)
  reply = chat.parse(sampled)
  assert (reply.reasoning, reply.content) == ("hm", "I ask.")
  assert [(call.name, call.error) for call in reply.tool_calls] == [("clock", "")]
  text = chat.decode(chat.render([Message("user", "When?"), reply]))
  assert text.endswith(f"{OPENS}{''.join(pieces)}<|im_end|>{OPENS}")
  assert chat.encode_reply(reply).tolist() == sampled


@pytest.mark.parametrize("calls", [True, False])
def test_a_thought_that_is_not_closed_ends_where_calls_begin(chat, calls):
  pieces = CLOCK_CALL if calls else []
  reply = chat.parse(spelled(chat, ["I should look.", *pieces]))
  assert (reply.reasoning, reply.content) == ("I should look.", "")
  assert [call.name for call in reply.tool_calls] == ["clock"] * calls


def test_a_schema_that_types_cannot_express_declares_all_tools_as_kimi_k2_does(chats):
  odd = ToolSpec("odd", "", {"type": "object", "properties": {"x": {"oneOf": [{"type": "null"}]}}})
  texts = {}
  for name in ("kimi_k2", "kimi_k25"):
    talk = chats[name]
    texts[name] = talk.decode(talk.render(CONVERSATION[:2], [CLOCK, odd]))
  assert "oneOf" in texts["kimi_k2"]
  assert texts["kimi_k25"] == texts["kimi_k2"] + "<think>"


def test_types_of_nested_recursive_and_named_schemas():
  tree = {
    "type": "object",
    "$defs": {
      "Leaf": {"description": "An end.", "type": "object", "properties": {"of": {"type": "null"}}},
      "Kind": {"enum": ["a", None, 1]},
    },
    "properties": {
      "z": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Leaf"}},
      "b": {
        "type": "array",
        "items": {"type": "string", "description": "A word.\n\nOr two.", "maxLength": 9},
      },
      "a": {"anyOf": [{"type": ["integer", "null"]}, {"$ref": "#/$defs/Kind"}]},
      "n": {
        "type": "object",
        "properties": {"y": {"type": "integer", "minimum": 0, "default": True}, "x": {}},
        "required": ["y"],
        "additionalProperties": False,
      },
      "up": {"$ref": "#"},
    },
    "required": ["z"],
  }
  # the parameters of a function that refers to itself stay in the order of names
  assert kimi_typescript.declared([ToolSpec("grow", "Grows.", tree)]) == (
    """# Tools

## functions
namespace functions {
interface parameters {
  a?: number | null | Kind,
  b?: Array<
    // A word.

    // Or two.
    // maxLength: 9
    string
  >,
  n?: {
    // minimum: 0
    // Default: True
    y: number,
    x?: any,
    [k: string]: never
  },
  up?: parameters,
  // minItems: 1
  z: Array<Leaf>
}
interface Kind "a" | None | 1
// An end.
interface Leaf {
  of?: null
}
// Grows.
type grow = (_: parameters) => any;
}
"""
  )


@pytest.mark.parametrize(
  "schema",
  [
    {"description": "no type"},
    {"type": ["string", "odd"]},
    {"$ref": "#/$defs/Missing"},
    {"type": "string", "enum": ["a", 1]},
    {"type": ["string", "integer"], "enum": ["a"]},
  ],
)
def test_a_schema_without_a_counterpart_is_an_error(schema):
  with pytest.raises(ValueError):
    kimi_typescript.declared([ToolSpec("f", "", {"type": "object", "properties": {"x": schema}})])


def test_calls_are_numbered_through_the_conversation(chat):
  reply = Message("assistant", "", (ToolCall("", "clock", {}),), reasoning="hm")
  text = chat.decode(chat.encode_reply(reply, CONVERSATION))
  assert text == f"hm</think>{BEGIN}{CALL}functions.clock:2{ARGUMENTS}{{}}{DONE}{END}<|im_end|>"
