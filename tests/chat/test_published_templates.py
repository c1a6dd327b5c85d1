"""Our prompts against the chat templates that the models are published with, rendered by
transformers.

JAXRL_CHAT_TEMPLATES names a folder with qwen3.jinja, kimi_k2.jinja (of Kimi-K2-Thinking),
deepseek_v31.jinja and harmony.jinja (of gpt-oss), taken from the models' pages; without it and
transformers these tests are skipped. Where our rendering departs on purpose, the test says how.
"""

import dataclasses
import json
import os
import pathlib
import re

import numpy as np
import pytest

from jaxrl_agents.chat import deepseek_v31, replies
from jaxrl_agents.types import Message
from tests.chat import families
from tests.chat.families import CALLS, CLOCK, CONVERSATION, SEARCH

TEMPLATES = os.environ.get("JAXRL_CHAT_TEMPLATES", "")
pytestmark = pytest.mark.skipif(not TEMPLATES, reason="JAXRL_CHAT_TEMPLATES names no folder")

ONE_CALL = tuple(
  dataclasses.replace(m, tool_calls=m.tool_calls[:1])
  for m in CONVERSATION
  if m.tool_call_id != "0.1"
)
SPOKEN = tuple(
  dataclasses.replace(m, content="I look.") if m.tool_calls else m for m in CONVERSATION
)
# All in one turn of the user, where the published templates keep thoughts too.
THOUGHT = (
  Message("user", "Which river?"),
  Message("assistant", "", CALLS, reasoning="I should look."),
  *CONVERSATION[3:5],
)
CONVERSATIONS = {
  "one call": ONE_CALL,
  "several calls": CONVERSATION,
  "calls after a preamble": SPOKEN,
  "no system": CONVERSATION[1:],
  "a thought": THOUGHT,
  "first turn": CONVERSATION[:2],
}


def published(transformers, folder, family, messages, tools, **options):
  """The text of the published template."""
  tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
  template = (pathlib.Path(TEMPLATES) / f"{family}.jinja").read_text("utf-8")
  return tokenizer.apply_chat_template(
    messages,
    tools=tools or None,
    chat_template=template,
    tokenize=False,
    add_generation_prompt=True,
    **options,
  )


def plain(messages, *, numbered=False, thought="reasoning_content"):
  """Messages as the templates take them."""
  labels, found = {}, []
  for message in messages:
    record = {"role": message.role, "content": message.content}
    if message.reasoning:
      record[thought] = message.reasoning
    calls = []
    for call in message.tool_calls:
      labels[call.id] = f"functions.{call.name}:{len(labels)}" if numbered else call.id
      function = {"name": call.name, "arguments": dict(call.arguments)}
      calls.append({"id": labels[call.id], "type": "function", "function": function})
    if calls:
      record["tool_calls"] = calls
    if message.role == "tool":
      record["tool_call_id"] = labels[message.tool_call_id]
    found.append(record)
  return found


@pytest.fixture(scope="module")
def transformers():
  return pytest.importorskip("transformers")


@pytest.mark.parametrize("tools", [(), (SEARCH, CLOCK)], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_qwen3_renders_the_text_and_the_ids_of_its_template(transformers, tmp_path, name, tools):
  chat = families.load(tmp_path, "qwen3")
  messages = CONVERSATIONS[name]
  declared = [replies.declaration(tool) for tool in tools]
  text = published(transformers, tmp_path, "qwen3", plain(messages), declared)
  rendered = chat.render(messages, tools)
  assert chat.decode(rendered) == text
  whole = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
  np.testing.assert_array_equal(rendered, whole(text)["input_ids"])


def test_qwen3_without_thinking_ends_the_prompt_as_its_template_does(transformers, tmp_path):
  """The template drops the empty thoughts of earlier turns, which would edit the past."""
  chat, first = families.load(tmp_path, "qwen3", "off"), CONVERSATIONS["first turn"]
  text = published(transformers, tmp_path, "qwen3", plain(first), [], enable_thinking=False)
  assert chat.decode(chat.render(first)) == text


def test_harmony_says_how_much_to_think_as_its_template_does(transformers, tmp_path):
  chat, first = families.load(tmp_path, "harmony", "high"), CONVERSATION[1:2]
  text = published(transformers, tmp_path, "harmony", plain(first), [], reasoning_effort="high")
  assert chat.decode(chat.render(first)) == re.sub("Current date: .*\n", "", text)


@pytest.mark.parametrize("tools", [(), (SEARCH, CLOCK)], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_kimi_k2_renders_the_text_and_the_ids_of_its_template(transformers, tmp_path, name, tools):
  """The model's tokenizer sorts the keys of tools before its template is given them."""
  chat = families.load(tmp_path, "kimi_k2")
  messages = CONVERSATIONS[name]
  declared = [json.loads(json.dumps(replies.declaration(t), sort_keys=True)) for t in tools]
  text = published(transformers, tmp_path, "kimi_k2", plain(messages, numbered=True), declared)
  rendered = chat.render(messages, tools)
  assert chat.decode(rendered) == text
  whole = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
  np.testing.assert_array_equal(rendered, whole(text)["input_ids"])


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_deepseek_v31_renders_the_text_of_its_template(transformers, tmp_path, name):
  """The template leaves tools to the system prompt, and takes arguments as text."""
  chat = families.load(tmp_path, "deepseek_v31")
  records = plain(CONVERSATIONS[name])
  for call in (call for record in records for call in record.get("tool_calls", ())):
    call["function"]["arguments"] = replies.json_text(call["function"]["arguments"])
  begin = {"bos_token": deepseek_v31.BEGIN}
  text = published(transformers, tmp_path, "deepseek_v31", records, [], **begin)
  assert chat.decode(chat.render(CONVERSATIONS[name])) == text


@pytest.mark.parametrize("tools", [(), (SEARCH, CLOCK)], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", ["one call", "no system", "a thought", "first turn"])
def test_harmony_renders_the_text_of_its_template(transformers, tmp_path, name, tools):
  """But for the date, which we leave out; the header of a call, which we write as policies sample
  it; a second line of a description, the comma after a default and the blank line after
  instructions without tools, in which we follow the published guide and library. The template takes
  one call a turn, and results as values.
  """
  chat = families.load(tmp_path, "harmony")
  messages = [dataclasses.replace(m, tool_calls=m.tool_calls[:1]) for m in CONVERSATIONS[name]]
  messages = [m for m in messages if m.tool_call_id != "0.1"]
  records = plain(messages, thought="thinking")
  for record in records:
    if record["role"] == "tool":
      record["content"] = json.loads(record["content"])
  given = [replies.declaration(tool) for tool in tools]
  text = published(transformers, tmp_path, "harmony", records, given)
  text = re.sub("Current date: .*\n", "", text)
  text = re.sub(
    r"assistant to=(\S+?)<\|channel\|>commentary json",
    r"assistant<|channel|>commentary to=\1 <|constrain|>json",
    text,
  )
  text = text.replace("Find it.\n\n<|end|>", "Find it.<|end|>")
  text = re.sub(r"(// default: .*),$", r"\1", text, flags=re.MULTILINE)
  text = text.replace("// Searches the corpus.\nGives", "// Searches the corpus.\n// Gives")
  assert chat.decode(chat.render(messages, tools)) == text
