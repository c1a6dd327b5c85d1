"""DeepSeek-V3.1: the expected text is written by hand after the model's page."""

import pytest

from jaxrl_agents.chat import deepseek_v31
from jaxrl_agents.types import Message
from tests.chat import families
from tests.chat.families import CLOCK, CONVERSATION, SEARCH, spelled

TOOLS = """## Tools
You have access to the following tools:

### search_corpus
Description: Searches the corpus.
Gives chunks.

Parameters: {"type": "object", "properties": {"query": {"type": "string", "description": "What to \
find, e.g. rivière"}, "limit": {"type": "integer", "default": 5}, "order": {"type": "string", \
"enum": ["best", "newest"], "default": "best"}}, "required": ["query"]}

### clock
Description: Tells the time.

Parameters: {"type": "object", "properties": {}}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments\
<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""
TALK = (
  "<｜User｜>Which river?<｜Assistant｜></think><｜tool▁calls▁begin｜>"
  '<｜tool▁call▁begin｜>search_corpus<｜tool▁sep｜>{"query": "say \\"rivière\\"", "limit": 2}'
  "<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
  "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
  '<｜tool▁output▁begin｜>{"found": 1}<｜tool▁output▁end｜>'
  '<｜tool▁output▁begin｜>{"hour": 12}<｜tool▁output▁end｜>'
  "The Loire.<｜end▁of▁sentence｜><｜User｜>And the next?<｜Assistant｜></think>"
)
CALLS, CALLS_END = deepseek_v31.CALLS, deepseek_v31.CALLS_END
CALL, SEPARATOR, DONE = deepseek_v31.CALL, deepseek_v31.SEPARATOR, deepseek_v31.CALL_END


@pytest.fixture
def chat(chats):
  return chats["deepseek_v31"]


def test_tools_follow_the_system_prompt_and_no_header_follows_results(chat):
  begin = "<｜begin▁of▁sentence｜>"
  text = chat.decode(chat.render(CONVERSATION, [SEARCH, CLOCK]))
  assert text == f"{begin}Find it.\n\n{TOOLS}{TALK}"
  assert chat.decode(chat.render(CONVERSATION)) == f"{begin}Find it.{TALK}"
  assert chat.decode(chat.render(CONVERSATION[1:], [SEARCH, CLOCK])) == f"{begin}{TOOLS}{TALK}"
  assert chat.decode(chat.render(CONVERSATION[:5])).endswith("<｜tool▁output▁end｜>")


def test_with_thinking_the_prompt_opens_the_thought_in_which_a_reply_begins(tmp_path):
  chat = families.load(tmp_path, "deepseek_v31", deepseek_v31.THINKING)
  question = [Message("user", "Which river?")]
  assert chat.decode(chat.render(question)).endswith("<｜Assistant｜><think>")
  sampled = spelled(chat, ["hm", "</think>", "The Loire."])
  reply = chat.parse(sampled)
  assert (reply.reasoning, reply.content) == ("hm", "The Loire.")
  assert chat.encode_reply(reply, question).tolist() == sampled
  text = chat.decode(chat.render([*question, reply, Message("user", "So?")]))
  said = "<think>hm</think>The Loire.<｜end▁of▁sentence｜>"
  assert text.endswith(f"<｜Assistant｜>{said}<｜User｜>So?<｜Assistant｜><think>")


def test_replies_to_results_have_no_thought_as_their_prompt_opens_none(tmp_path):
  chat = families.load(tmp_path, "deepseek_v31", deepseek_v31.THINKING)
  reply = Message("assistant", "The Loire.", reasoning="hm")
  assert (
    chat.decode(chat.encode_reply(reply, CONVERSATION[:5])) == "The Loire.<｜end▁of▁sentence｜>"
  )
  assert chat.decode(chat.encode_reply(reply, CONVERSATION[:2])).startswith("hm</think>The Loire.")


def test_later_system_messages_are_turns_of_the_user(chat):
  text = chat.decode(chat.render([Message("user", "Hm?"), Message("system", "Be brief.")]))
  assert text.endswith("<｜User｜>Hm?<｜User｜>Be brief.<｜Assistant｜></think>")


def test_what_stands_around_the_calls_is_said(chat):
  pieces = ["I ask. ", CALLS, CALL, " clock ", SEPARATOR, ' {"x": 1} ', DONE, CALLS_END, "So."]
  reply = chat.parse(spelled(chat, pieces))
  assert reply.content == "I ask. So."
  assert [(c.name, c.arguments, c.error) for c in reply.tool_calls] == [("clock", {"x": 1}, "")]


@pytest.mark.parametrize(
  ("pieces", "name", "cause"),
  [
    ([CALLS, CALL, "f", SEPARATOR, "{}"], "f", "is not closed with <｜tool▁call▁end｜>"),
    ([CALLS, CALL, "f", SEPARATOR, '{"a": ', DONE], "f", "are not valid JSON"),
    ([CALLS, CALL, "f", SEPARATOR, "[]", DONE], "f", "a JSON list; write an object"),
    ([CALLS, CALL, "f{}", DONE], "", "has no <｜tool▁sep｜>"),
    ([CALLS, CALL, SEPARATOR, "{}", DONE], "", "has no name"),
    ([CALL, "f", SEPARATOR, "{}", DONE], "f", "stands before <｜tool▁calls▁begin｜>"),
  ],
)
def test_a_malformed_call_carries_its_cause(chat, pieces, name, cause):
  (call,) = chat.parse(spelled(chat, pieces)).tool_calls
  assert (call.name, dict(call.arguments)) == (name, {})
  assert cause in call.error
