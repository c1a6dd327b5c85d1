"""Our prompts against the chat templates that the models are published with, rendered by
transformers.

JAXRL_CHAT_TEMPLATES names a folder with qwen3.jinja, kimi_k2.jinja (of Kimi-K2-Thinking),
deepseek_v31.jinja and harmony.jinja (of gpt-oss), taken from the models' pages, and with
tool_declaration_ts.py of Kimi-K2.5. Without it and transformers these tests are skipped. Where our
rendering departs on purpose, the test says how.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import re

import numpy as np
import pytest

from jaxrl_agents.chat import deepseek_v31, kimi_typescript, replies
from jaxrl_agents.types import Message, ToolSpec
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


@pytest.mark.parametrize("seed", range(20))
def test_kimi_k25_declares_tools_with_random_schemas_as_its_tokenizer_does(seed):
  """1,000 for each seed. Where the published code raises, its tokenizer declares tools as Kimi K2
  does, and so do we.
  """
  spec = importlib.util.spec_from_file_location("page", f"{TEMPLATES}/tool_declaration_ts.py")
  page = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(page)
  draw, equal = random.Random(seed), 0
  for _ in range(1_000):
    names = draw.sample(["Leaf", "Node"], draw.randint(0, 2))
    schema = random_object(draw, 3, names)
    if names:
      schema["$defs"] = {name: random_schema(draw, 2, names) for name in names}
    tool = ToolSpec("f", draw.choice(["", "Does it.", "Does it.\n\nOr not."]), schema)
    sorted_keys = json.loads(json.dumps(replies.declaration(tool), sort_keys=True))
    try:
      wanted = page.encode_tools_to_typescript_style([sorted_keys])
    except Exception:
      with pytest.raises(ValueError):
        kimi_typescript.declared([tool])
      continue
    assert kimi_typescript.declared([tool]) == wanted
    equal += 1
  assert equal > 300


def random_schema(draw, depth, names):
  """A schema with every keyword that the published code knows, and some that it does not."""
  described = {"description": draw.choice(["One.", "Two\nlines.", "A\n\nb", "é"])}
  more = described if draw.random() < 0.5 else {}
  kind = draw.choice(
    ["plain"] * 8 + ["any", "none", "ref", "self", "enum", "list", "either", "odd"]
  )
  if kind == "any":
    return draw.choice([True, {}])
  if kind == "none":
    return False
  if kind == "ref" and names:
    return {"$ref": f"#/$defs/{draw.choice(names)}", **more}
  if kind == "self":
    return {"$ref": "#", **more}
  if kind == "enum":
    types = ["string", "integer", "boolean", ["string", "null"], ["string", "integer"]]
    typed = {"type": draw.choice(types)} if draw.random() < 0.6 else {}
    return {"enum": draw.choice([["a", "b"], [1, 2], [True], [None, "x"]]), **typed, **more}
  if kind == "list":
    return {"type": draw.sample(["string", "integer", "null", "array", "object"], 2), **more}
  if kind == "either" and depth:
    branches = [random_schema(draw, depth - 1, names) for _ in range(draw.randint(1, 3))]
    return {"anyOf": branches, **more}
  if kind == "odd":
    return {"oneOf": [], **more}
  plain = draw.choice(
    ["string", "integer", "number", "boolean", *["object", "array"] * (depth > 0)]
  )
  if plain == "object":
    return random_object(draw, depth - 1, names) | more
  bounds = {"maxLength": 3, "minLength": 1, "pattern": "^a", "maximum": 9, "minimum": 0.5}
  bounds |= {"minItems": 1, "maxItems": 3}
  bounds |= {"default": draw.choice([None, True, 5, 1.5, "x", ["a"], {"b": 1}, "é"])}
  found = {"type": plain, **more, **{k: v for k, v in bounds.items() if draw.random() < 0.2}}
  if plain == "array" and draw.random() < 0.85:
    found["items"] = random_schema(draw, depth - 1, names)
  return found


def random_object(draw, depth, names):
  """The schema of an object with up to four properties."""
  inner = draw.sample(["b", "a", "c", "z", "aa"], draw.randint(0, 4))
  found = {"type": "object"}
  found["properties"] = {name: random_schema(draw, depth, names) for name in inner}
  if draw.random() < 0.7:
    found["required"] = draw.sample(inner, draw.randint(0, len(inner)))
  if draw.random() < 0.3:
    others = draw.choice([True, False, {"type": "string", "description": "More."}])
    found["additionalProperties"] = others
  return found


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
