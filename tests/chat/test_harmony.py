"""Harmony of gpt-oss: the expected text is written by hand after the format's published guide."""

import pytest

from jaxrl_agents.chat import harmony, typescript
from jaxrl_agents.types import Message, ToolCall, ToolSpec
from tests.chat import families
from tests.chat.families import CLOCK, CONVERSATION, SEARCH

SYSTEM = """<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06

Reasoning: medium

# Valid channels: analysis, commentary, final. Channel must be included for every message."""
TOOLS = """# Tools

## functions

namespace functions {

// Searches the corpus.
// Gives chunks.
type search_corpus = (_: {
// What to find, e.g. rivière
query: string,
limit?: number, // default: 5
order?: "best" | "newest", // default: best
}) => any;

// Tells the time.
type clock = () => any;

} // namespace functions"""
TALK = (
  "<|start|>user<|message|>Which river?<|end|>"
  "<|start|>assistant<|channel|>commentary to=functions.search_corpus <|constrain|>json<|message|>"
  '{"query": "say \\"rivière\\"", "limit": 2}<|call|>'
  "<|start|>assistant<|channel|>commentary to=functions.clock <|constrain|>json<|message|>"
  "{}<|call|>"
  '<|start|>functions.search_corpus to=assistant<|channel|>commentary<|message|>{"found": 1}<|end|>'
  '<|start|>functions.clock to=assistant<|channel|>commentary<|message|>{"hour": 12}<|end|>'
  "<|start|>assistant<|channel|>final<|message|>The Loire.<|end|>"
  "<|start|>user<|message|>And the next?<|end|>"
  "<|start|>assistant"
)
FINAL, ANALYSIS = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"


@pytest.fixture
def chat(chats):
  return chats["harmony"]


def spelled(chat, text):
  """Ids of a text in which control tokens are spelled out."""
  ids = []
  while text:
    places = [(text.find(token), token) for token in harmony.CONTROL_TOKENS if token in text]
    place, token = min(places, default=(len(text), ""))
    ids += chat.encode(text[:place]).tolist()
    ids += [chat.id_of(token)] if token else []
    text = text[place + len(token) :]
  return ids


def test_system_messages_become_the_developer_message_with_the_tools(chat):
  text = chat.decode(chat.render(CONVERSATION, [SEARCH, CLOCK]))
  calls = "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"
  developer = "<|start|>developer<|message|># Instructions\n\nFind it."
  assert text == f"{SYSTEM}{calls}{developer}\n\n{TOOLS}<|end|>{TALK}"
  assert chat.decode(chat.render(CONVERSATION)) == f"{SYSTEM}<|end|>{developer}<|end|>{TALK}"
  without_system = chat.decode(chat.render(CONVERSATION[1:], [CLOCK]))
  assert without_system.startswith(f"{SYSTEM}{calls}<|start|>developer<|message|># Tools\n\n## fun")
  assert chat.decode(chat.render(CONVERSATION[1:])) == f"{SYSTEM}<|end|>{TALK}"


@pytest.mark.parametrize("level", ["low", "medium", "high"])
def test_the_system_message_says_how_much_to_think(tmp_path, level):
  text = families.load(tmp_path, "harmony", level)
  system = SYSTEM.replace("Reasoning: medium", f"Reasoning: {level}")
  assert text.decode(text.render(CONVERSATION[1:])) == f"{system}<|end|>{TALK}"


def test_a_reply_thinks_speaks_of_what_it_will_do_and_calls(chat):
  reply = Message("assistant", "I look.", (ToolCall("", "clock", {}),), reasoning="Hm.")
  assert chat.decode(chat.encode_reply(reply)) == (
    "<|channel|>analysis<|message|>Hm.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.clock <|constrain|>json<|message|>"
    "{}<|call|>"
  )
  answer = Message("assistant", "Noon.")
  assert chat.decode(chat.encode_reply(answer)) == "<|channel|>final<|message|>Noon.<|return|>"


@pytest.mark.parametrize(
  "header",
  [
    "<|channel|>commentary to=functions.clock <|constrain|>json",
    "<|channel|>commentary to=functions.clock<|constrain|>json",
    "<|channel|>commentary to=functions.clock",
    " to=functions.clock<|channel|>commentary json",
    " to=functions.clock<|channel|>commentary <|constrain|>json",
    "<|channel|>analysis to=functions.clock <|constrain|>json",
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.clock<|channel|>x",
  ],
)
def test_a_recipient_may_stand_wherever_the_published_guide_allows_it(chat, header):
  (call,) = chat.parse(spelled(chat, header + '<|message|>{"zone": 1}<|call|>')).tool_calls
  assert (call.name, call.arguments, call.error) == ("clock", {"zone": 1}, "")
  assert call.label == "functions.clock"


@pytest.mark.parametrize(
  ("text", "reasoning", "content"),
  [
    (f"{FINAL}Noon.<|return|>", "", "Noon."),
    (f"{ANALYSIS}a<|end|>{FINAL}b<|return|>", "a", "b"),
    (f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b", "a\nb", ""),
    ("<|channel|>commentary<|message|>plan<|end|>", "", "plan"),
    ("no header at all<|return|>", "", "no header at all"),
    (f"{FINAL}a<|end|><|start|>user<|message|>b<|end|>", "", "a"),
    (f"{FINAL}a<|end|><|start|>functions.f to=assistant<|message|>b<|end|>", "", "a"),
  ],
)
def test_channels_tell_thought_from_speech_and_other_roles_are_not_heard(
  chat, text, reasoning, content
):
  parsed = chat.parse(spelled(chat, text))
  assert (parsed.reasoning, parsed.content, parsed.tool_calls) == (reasoning, content, ())


@pytest.mark.parametrize(
  ("text", "name", "cause"),
  [
    ("<|channel|>commentary to=functions.f<|message|>{}", "f", "is not ended with <|call|>"),
    ("<|channel|>commentary to=functions.f<|message|>{}<|end|>", "f", "is not ended with <|call|>"),
    ("<|channel|>commentary to=functions.f<|message|>{<|call|>", "f", "are not valid JSON"),
    ("<|channel|>commentary to=functions.f<|message|>3<|call|>", "f", "a JSON int; write an obj"),
    ("<|channel|>commentary to=browser.open<|message|>{}<|call|>", "", "goes to 'browser.open'"),
    ("<|channel|>commentary<|message|>{}<|call|>", "", "names no recipient"),
    ("{}<|call|>", "", "names no recipient"),
  ],
)
def test_a_malformed_call_carries_its_cause_and_can_be_answered(chat, text, name, cause):
  ids = spelled(chat, text)
  reply = chat.parse(ids)
  (call,) = reply.tool_calls
  assert (call.name, dict(call.arguments)) == (name, {})
  assert cause in call.error
  author = call.label or "functions"
  rendered = chat.decode(chat.render([reply, Message("tool", "No.", tool_call_id=call.id)]))
  assert f"<|start|>{author} to=assistant<|channel|>commentary<|message|>No.<|end|>" in rendered


def test_a_sampled_answer_keeps_the_token_that_ended_it(chat):
  reply = chat.parse(spelled(chat, "<|channel|>final<|message|>Noon.<|return|>"))
  text = chat.decode(chat.render([reply, Message("user", "Sure?")]))
  assert "Noon.<|return|><|start|>user<|message|>Sure?<|end|>" in text


def test_schemas_become_types(chat):
  tool = ToolSpec(
    "f",
    "",
    {
      "type": "object",
      "properties": {
        "ids": {
          "type": "array",
          "items": {"type": "string"},
          "description": "Some.\nOrder counts.",
        },
        "any": {"type": "array"},
        "span": {
          "type": "object",
          "properties": {"low": {"type": "number"}, "high": {"type": ["integer", "null"]}},
          "required": ["low"],
        },
        "who": {"oneOf": [{"type": "string"}, {"type": "boolean"}], "default": "me"},
      },
    },
  )
  assert (
    typescript.declared("functions", [tool])
    == """## functions

namespace functions {

type f = (_: {
// Some.
// Order counts.
ids?: string[],
any?: any[],
span?: {
    low: number,
    high?: number | null,
    },
who?: string | boolean, // default: "me"
}) => any;

} // namespace functions"""
  )


def test_what_is_said_before_the_answer_is_settled_once_no_thought_can_follow(chat):
  more = f"<|start|>assistant{ANALYSIS}Or the Rhine?<|end|><|start|>assistant"
  said = f"{ANALYSIS}The Loire?<|end|><|start|>assistant<|channel|>commentary<|message|>Hm.<|end|>"
  whole = spelled(chat, f"{said}{more}{FINAL}The Loire.<|return|>")
  parts = [chat.parse(chat.settled(whole[:n])) for n in range(len(whole))]
  assert {part.reasoning for part in parts if part.content} == {"The Loire?\nOr the Rhine?"}
  assert {part.content for part in parts} > {"", "Hm.", "Hm.\nThe Loire."}
  assert not len(chat.settled(spelled(chat, f"{said}<|start|>assistant<|channel|>final")))
