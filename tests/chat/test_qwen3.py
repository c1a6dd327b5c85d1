"""Qwen3: the expected text is written by hand after the template on the model's page."""

import numpy as np
import pytest

from jaxrl_agents.harness.segments import Turn, to_segments
from jaxrl_agents.types import Generation, Message, ToolCall
from tests.chat import families
from tests.chat.families import CLOCK, CONVERSATION, SEARCH, spelled

TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "search_corpus", "description": "Searches the corpus.\\nGives chunks.", "parameters": {"type": "object", "properties": {"query": {"type": "string", "description": "What to find, e.g. rivière"}, "limit": {"type": "integer", "default": 5}, "order": {"type": "string", "enum": ["best", "newest"], "default": "best"}}, "required": ["query"]}}}
{"type": "function", "function": {"name": "clock", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
"""  # noqa: E501

TALK = """<|im_start|>user
Which river?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "search_corpus", "arguments": {"query": "say \\"rivière\\"", "limit": 2}}
</tool_call>
<tool_call>
{"name": "clock", "arguments": {}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
{"found": 1}
</tool_response>
<tool_response>
{"hour": 12}
</tool_response><|im_end|>
<|im_start|>assistant
The Loire.<|im_end|>
<|im_start|>user
And the next?<|im_end|>
<|im_start|>assistant
"""


@pytest.fixture
def chat(chats):
  return chats["qwen3"]


def test_tools_stand_in_the_system_turn_and_the_results_of_a_turn_in_one_user_turn(chat):
  text = chat.decode(chat.render(CONVERSATION, [SEARCH, CLOCK]))
  assert text == "<|im_start|>system\nFind it.\n\n" + TOOLS + TALK
  without_system = chat.decode(chat.render(CONVERSATION[1:], [SEARCH, CLOCK]))
  assert without_system == "<|im_start|>system\n" + TOOLS + TALK
  without_tools = chat.decode(chat.render(CONVERSATION))
  assert without_tools == "<|im_start|>system\nFind it.<|im_end|>\n" + TALK


def test_text_between_control_tokens_is_encoded_as_one_text(chat):
  rendered = chat.render([Message("user", "\nuser")])
  start, end = chat.id_of("<|im_start|>"), chat.id_of("<|im_end|>")
  expected = [start, *chat.encode("user\n\nuser"), end, *chat.encode("\n")]
  assert rendered.tolist() == [*expected, start, *chat.encode("assistant\n")]


def test_a_thought_stands_before_what_is_said(chat):
  reply = Message("assistant", "Yes.", (ToolCall("", "clock", {}),), reasoning="Hm.")
  assert chat.decode(chat.encode_reply(reply)) == (
    "<think>\nHm.\n</think>\n\nYes.\n"
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call><|im_end|>'
  )


def test_without_thinking_every_turn_begins_with_an_empty_thought_and_says_no_other(tmp_path):
  chat = families.load(tmp_path, "qwen3", "off")
  empty = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
  text = chat.decode(chat.render(CONVERSATION, [SEARCH, CLOCK]))
  expected = "<|im_start|>system\nFind it.\n\n" + TOOLS + TALK
  assert text == expected.replace("<|im_start|>assistant\n", empty)
  reply = Message("assistant", "Yes.", reasoning="Hm.")
  assert chat.decode(chat.encode_reply(reply)) == "Yes.<|im_end|>"


def test_with_thinking_every_turn_begins_within_a_thought(tmp_path):
  chat = families.load(tmp_path, "qwen3", "on")
  text = chat.decode(chat.render(CONVERSATION, [SEARCH, CLOCK]))
  opened = "<|im_start|>assistant\n<think>\n"
  spoken = "<|im_start|>system\nFind it.\n\n" + TOOLS + TALK
  *turns, last = spoken.split("<|im_start|>assistant\n")
  assert text == f"{opened}\n</think>\n\n".join(turns) + opened + last
  reply = Message("assistant", "Yes.", (ToolCall("", "clock", {}),), reasoning="Hm.")
  tokens = chat.encode_reply(reply)
  assert chat.decode(tokens).startswith("Hm.\n</think>\n\nYes.\n<tool_call>")
  parsed = chat.parse(tokens)
  assert (parsed.reasoning, parsed.content) == ("Hm.", "Yes.")
  assert [call.name for call in parsed.tool_calls] == ["clock"]
  cut = chat.parse(spelled(chat, ["never ", "<tool_call>", "{}", "</tool_call>", "closed"]))
  assert (cut.content, cut.tool_calls) == ("", ()) and cut.reasoning.startswith("never")
  quoted = chat.parse(spelled(chat, ["a ", "<think>", " b", "</think>", "c"]))
  assert (quoted.reasoning, quoted.content) == ("a  b", "c")


def test_the_empty_thought_is_of_the_prompt_and_a_conversation_that_grew_goes_on_one_segment(
  tmp_path,
):
  chat = families.load(tmp_path, "qwen3", "off")
  messages, turns = [Message("user", "Which river?")], []
  for content in ("The Loire.", "The Seine."):
    prompt = chat.render(messages, [SEARCH])
    sampled = chat.encode_reply(Message("assistant", content))
    zeros = np.zeros(len(sampled))
    turns.append(Turn(prompt, Generation(sampled, zeros, zeros.astype(np.int32), None, "stop")))
    messages += [chat.parse(sampled), Message("user", "And the next?")]
  (segment,) = to_segments(turns)
  assert (
    chat.decode(segment.tokens[segment.loss_mask]) == "The Loire.<|im_end|>The Seine.<|im_end|>"
  )


@pytest.mark.parametrize(
  ("pieces", "reasoning", "content", "names"),
  [
    (["<think>", "a", "</think>", "b"], "a", "b", []),
    (["a", "</think>", "b"], "a", "b", []),  # the prompt may have opened it
    (["<think>", "never closed"], "never closed", "", []),
    (["<think>", "<tool_call>", "{}", "</tool_call>", "</think>", "b"], "<tool_call>{}", "b", []),
    (["b ", "<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>"], "", "b", ["f"]),
    (["b", "</tool_call>", "<|im_start|>"], "", "b</tool_call><|im_start|>", []),
  ],
)
def test_thinking_content_and_calls_are_separated(chat, pieces, reasoning, content, names):
  parsed = chat.parse(spelled(chat, pieces))
  assert parsed.reasoning.startswith(reasoning) and bool(parsed.reasoning) == bool(reasoning)
  assert (parsed.content, [call.name for call in parsed.tool_calls]) == (content, names)


@pytest.mark.parametrize(
  ("pieces", "name", "cause"),
  [
    (["<tool_call>", '{"name": "f", "arguments": {}}'], "f", "is not closed with </tool_call>"),
    (["<tool_call>", '{"name": "f"', "</tool_call>"], "", "is not valid JSON: "),
    (["<tool_call>", "[" * 100_000, "</tool_call>"], "", "is not valid JSON: "),
    (["<tool_call>", "[1]", "</tool_call>"], "", 'is no JSON object with "name"'),
    (["<tool_call>", '{"name": 3, "arguments": {}}', "</tool_call>"], "", 'no JSON object with "n'),
    (["<tool_call>", '{"name": "f"}', "</tool_call>"], "f", 'has no "arguments"'),
    (
      ["<tool_call>", '{"name": "f", "arguments": "{}"}', "</tool_call>"],
      "f",
      "the arguments of 'f' are a JSON str; write an object",
    ),
    (["<tool_call>", "</tool_call>"], "", "is not valid JSON: "),
  ],
)
def test_a_malformed_call_carries_its_cause(chat, pieces, name, cause):
  (call,) = chat.parse(spelled(chat, pieces)).tool_calls
  assert (call.name, dict(call.arguments)) == (name, {})
  assert cause in call.error and len(call.error) < 300


def test_a_call_that_a_second_one_cuts_off_is_an_error_and_the_second_is_not(chat):
  whole = '{"name": "f", "arguments": {}}'
  pieces = ["<tool_call>", '{"na', "<tool_call>", whole, "</tool_call>"]
  first, second = chat.parse(spelled(chat, pieces)).tool_calls
  assert "is not closed" in first.error and not second.error
