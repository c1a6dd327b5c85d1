"""Kimi K2: the expected text is written by hand after the template on the model's page."""

import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.chat import kimi_k2
from jaxrl_agents.types import Message, ToolCall
from tests.chat import families
from tests.chat.families import CLOCK, CONVERSATION, SEARCH, spelled

TOOLS = (
  '<|im_system|>tool_declare<|im_middle|>[{"function":{"description":"Searches the corpus.\\nGives '
  'chunks.","name":"search_corpus","parameters":{"properties":{"limit":{"default":5,"type":'
  '"integer"},"order":{"default":"best","enum":["best","newest"],"type":"string"},"query":'
  '{"description":"What to find, e.g. rivière","type":"string"}},"required":["query"],"type":'
  '"object"}},"type":"function"},{"function":{"description":"Tells the time.","name":"clock",'
  '"parameters":{"properties":{},"type":"object"}},"type":"function"}]<|im_end|>'
)
SYSTEM = "<|im_system|>system<|im_middle|>Find it.<|im_end|>"
TALK = (
  "<|im_user|>user<|im_middle|>Which river?<|im_end|>"
  "<|im_assistant|>assistant<|im_middle|><think></think><|tool_calls_section_begin|>"
  "<|tool_call_begin|>functions.search_corpus:0<|tool_call_argument_begin|>"
  '{"query": "say \\"rivière\\"", "limit": 2}<|tool_call_end|>'
  "<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
  "<|tool_calls_section_end|><|im_end|>"
  "<|im_system|>tool<|im_middle|>## Return of functions.search_corpus:0\n"
  '{"found": 1}<|im_end|>'
  '<|im_system|>tool<|im_middle|>## Return of functions.clock:1\n{"hour": 12}<|im_end|>'
  "<|im_assistant|>assistant<|im_middle|><think></think>The Loire.<|im_end|>"
  "<|im_user|>user<|im_middle|>And the next?<|im_end|>"
  "<|im_assistant|>assistant<|im_middle|>"
)
BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, DONE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


@pytest.fixture
def chat(chats):
  return chats["kimi_k2"]


def test_tools_come_before_the_system_and_results_name_their_calls(chat):
  text = chat.decode(chat.render(CONVERSATION, [SEARCH, CLOCK]))
  assert text == TOOLS + SYSTEM + TALK
  assert chat.decode(chat.render(CONVERSATION)) == SYSTEM + TALK


def test_where_no_system_speaks_the_published_default_does(chat):
  said = "You are Kimi, an AI assistant created by Moonshot AI."
  default = f"<|im_system|>system<|im_middle|>{said}<|im_end|>"
  assert chat.decode(chat.render(CONVERSATION[1:])) == default + TALK


def test_the_instruct_model_which_has_no_tokens_of_a_thought_writes_none(tmp_path):
  chat = chat_lib.load(str(families.write_tokenizer(tmp_path, kimi_k2.CONTROL_TOKENS)))
  text = chat.decode(chat.render(CONVERSATION))
  assert text == SYSTEM + TALK.replace("<think></think>", "")


def test_calls_are_numbered_through_the_conversation(chat):
  reply = Message("assistant", "", (ToolCall("", "clock", {}),))
  assert "functions.clock:2" in chat.decode(chat.encode_reply(reply, CONVERSATION))
  assert "functions.clock:0" in chat.decode(chat.encode_reply(reply))


def test_a_result_names_its_call_as_the_policy_did_whatever_the_id_in_the_episode(chat):
  sampled = spelled(chat, [BEGIN, CALL, "functions.clock:7", ARGUMENTS, "{}", DONE, END])
  reply = chat.parse(sampled)
  (call,) = reply.tool_calls
  assert (call.name, call.label, call.error) == ("clock", "functions.clock:7", "")
  renamed = Message(
    "assistant", "", (ToolCall("4.0", "clock", {}, "", call.label),), tokens=sampled
  )
  text = chat.decode(chat.render([renamed, Message("tool", "noon", tool_call_id="4.0")]))
  assert "## Return of functions.clock:7\nnoon<|im_end|>" in text


def test_what_stands_around_the_calls_is_said(chat):
  pieces = ["<think>", "hm", "</think>", "a ", BEGIN, CALL, " functions.a.b:0 ", ARGUMENTS]
  parsed = chat.parse(spelled(chat, [*pieces, ' {"x": 1} ', DONE, END, "b"]))
  assert (parsed.reasoning, parsed.content) == ("hm", "a b")
  (call,) = parsed.tool_calls
  assert (call.name, call.arguments, call.error) == ("a.b", {"x": 1}, "")


@pytest.mark.parametrize(
  ("pieces", "name", "cause"),
  [
    ([BEGIN, CALL, "functions.f:0", ARGUMENTS, "{}"], "f", "not closed with <|tool_call_end|>"),
    ([BEGIN, CALL, "functions.f:0", ARGUMENTS, '{"a": ', DONE], "f", "are not valid JSON"),
    ([BEGIN, CALL, "functions.f:0", ARGUMENTS, "[]", DONE], "f", "a JSON list; write an object"),
    ([BEGIN, CALL, "functions.f:0{}", DONE], "", "has no <|tool_call_argument_begin|>"),
    ([BEGIN, CALL, "f", ARGUMENTS, "{}", DONE], "", "is not named functions.NAME:NUMBER"),
    ([BEGIN, CALL, "functions.f", ARGUMENTS, "{}", DONE], "", "is not named functions.NAME:NUM"),
    ([CALL, "functions.f:0", ARGUMENTS, "{}", DONE], "f", "before <|tool_calls_section_begin|>"),
  ],
)
def test_a_malformed_call_carries_its_cause(chat, pieces, name, cause):
  (call,) = chat.parse(spelled(chat, pieces)).tool_calls
  assert (call.name, dict(call.arguments)) == (name, {})
  assert cause in call.error
