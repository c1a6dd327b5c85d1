"""What holds in every format: appended prompts, ids as sampled, text that stays text."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.types import Message, ToolCall
from tests.chat import families
from tests.chat.families import CLOCK, CONVERSATION, FAMILIES, SEARCH

EVERY = tuple(families.CONTROL_TOKENS)


def control_ids(chat, family):
  return [chat.id_of(token) for token in families.CONTROL_TOKENS[family]]


def character_by_character(chat, text):
  """Ids of `text` that are not those which the tokenizer gives it."""
  ids = np.concatenate([chat.encode(c) for c in text])
  assert chat.decode(ids) == text and len(ids) > len(chat.encode(text))
  return ids


@pytest.mark.parametrize("family", EVERY)
def test_a_tokenizer_is_recognised_by_its_control_tokens(chats, family):
  assert chats[family].name == family


@pytest.mark.parametrize("family", EVERY)
def test_control_tokens_that_a_text_spells_stay_characters(chats, family):
  chat = chats[family]
  text = "".join(f"{token} and " for token in families.CONTROL_TOKENS[family])
  assert not set(chat.encode(text).tolist()) & set(control_ids(chat, family))
  assert chat.decode(chat.encode(text)) == text
  roles = ("system", "user", "user")
  plain = chat.render([Message(role, "x") for role in roles], [SEARCH])
  spelled = chat.render([Message(role, text) for role in roles], [SEARCH])
  controls = control_ids(chat, family)
  assert spelled[np.isin(spelled, controls)].tolist() == plain[np.isin(plain, controls)].tolist()


@pytest.mark.parametrize("family", EVERY)
def test_half_a_surrogate_pair_is_rendered_as_a_question_mark(chats, family):
  assert chats[family].decode(chats[family].encode("a\ud800b")) == "a?b"


@pytest.mark.parametrize("family", EVERY)
def test_a_conversation_that_grew_extends_what_was_seen_by_ids_that_no_text_would_give(
  chats, family
):
  chat = chats[family]
  rng = np.random.default_rng(0)
  for size in (3, 8, 30):
    messages = [Message("system", "find"), Message("user", "1. a river")]
    seen = chat.render(messages, [SEARCH, CLOCK])
    for turn in range(8):
      sampled = rng.integers(0, chat.vocab_size, rng.integers(0, size)).astype(np.int32)
      if turn % 3 == 0:
        sampled = np.concatenate([sampled, character_by_character(chat, "the river")])
      if turn % 2:
        sampled = np.append(sampled, np.int32(rng.choice(chat.stop_tokens)))
      seen = np.concatenate([seen, sampled])
      calls = (ToolCall(f"{turn}.0", "clock", {}), ToolCall(f"{turn}.1", "clock", {}))
      reply = Message("assistant", "", calls[: turn % 3], tokens=sampled)
      results = [Message("tool", "noon", tool_call_id=call.id) for call in reply.tool_calls]
      messages += [reply, *results] if results else [reply, Message("user", "go on")]
      rendered = chat.render(messages, [SEARCH, CLOCK])
      np.testing.assert_array_equal(rendered[: len(seen)], seen)
      assert len(rendered) > len(seen)
      seen = rendered


@pytest.mark.parametrize("family", EVERY)
def test_every_prefix_that_a_reply_follows_is_a_prefix_of_the_whole_prompt(chats, family):
  chat = chats[family]
  messages = list(CONVERSATION)
  for i, message in enumerate(messages):
    if message.role == "assistant":
      sampled = chat.encode_reply(message, messages[:i])
      messages[i] = Message("assistant", "", message.tool_calls, tokens=sampled)
  whole = chat.render(messages, [SEARCH, CLOCK])
  for i, message in enumerate(messages):
    if message.role == "assistant":
      seen = np.concatenate([chat.render(messages[:i], [SEARCH, CLOCK]), message.tokens])
      np.testing.assert_array_equal(whole[: len(seen)], seen)


@pytest.mark.parametrize("family", EVERY)
def test_a_turn_that_was_cut_off_is_closed_before_the_next(chats, family):
  chat = chats[family]
  cut = Message("assistant", "", tokens=chat.encode("the river"))
  whole = Message("assistant", "", tokens=np.append(cut.tokens, chat.stop_tokens[0]))
  after = Message("user", "go on")
  assert len(chat.render([cut, after])) == len(chat.render([whole, after]))


@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize(
  ("content", "arguments"),
  [
    ("", [{"query": 'say "hi" \\ {x} </tool_call> <|call|>'}, {}]),
    ("Thinking of rivers.\n\nTwo.", [{"ids": ["1_2", "3_4"], "deep": {"é": [1, None, True]}}]),
    ("Just an answer: <Document id=1_2>", []),
    ("", []),
  ],
)
def test_a_reply_is_parsed_back(chats, family, content, arguments):
  chat = chats[family]
  calls = tuple(ToolCall("", "search_corpus", each) for each in arguments)
  reply = Message("assistant", content, calls)
  ids = chat.encode_reply(reply)
  parsed = chat.parse(ids)
  assert int(ids[-1]) in chat.stop_tokens
  assert parsed.content == content
  assert [(c.name, c.arguments, c.error) for c in parsed.tool_calls] == [
    ("search_corpus", each, "") for each in arguments
  ]
  assert [c.id for c in parsed.tool_calls] == [f"call_{i}" for i in range(len(arguments))]
  np.testing.assert_array_equal(parsed.tokens, ids)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "deepseek_v31"])
def test_a_thought_is_set_apart_from_what_is_said(chats, family):
  reply = Message("assistant", "Yes.", (ToolCall("", "clock", {}),), reasoning="It is\n\nnoon.")
  parsed = chats[family].parse(chats[family].encode_reply(reply))
  assert (parsed.reasoning, parsed.content) == ("It is\n\nnoon.", "Yes.")
  assert [call.name for call in parsed.tool_calls] == ["clock"]


@settings(max_examples=400, deadline=None)
@given(family=st.sampled_from(EVERY), data=st.data())
def test_no_sequence_of_ids_makes_parsing_or_the_next_prompt_raise(chats, family, data):
  chat = chats[family]
  whole = chat.encode_reply(Message("assistant", "Go.", families.CALLS, reasoning="Hm."))
  some = st.one_of(
    st.sampled_from(control_ids(chat, family)),
    st.integers(0, chat.vocab_size + 50),
    st.sampled_from(['{"a": ', "}", "[1]", "\ud800", '{"name": 3}', "functions.x", "to="]).map(
      lambda text: chat.encode(text).tolist()
    ),
    st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole))).map(
      lambda cut: whole[min(cut) : max(cut)].tolist()
    ),
  )
  drawn = data.draw(st.lists(some, max_size=12))
  ids = np.array([i for each in drawn for i in (each if isinstance(each, list) else [each])])
  message = chat.parse(ids)
  np.testing.assert_array_equal(message.tokens, ids)
  for call in message.tool_calls:
    assert isinstance(call.arguments, dict) and isinstance(call.name, str)
    assert not call.arguments if call.error else json.dumps(call.arguments)
  results = [Message("tool", call.error, tool_call_id=call.id) for call in message.tool_calls]
  prompt = chat.render([Message("user", "go"), message, *results])
  seen = np.concatenate([chat.render([Message("user", "go")]), ids.astype(np.int32)])
  np.testing.assert_array_equal(prompt[: len(seen)], seen)


@pytest.mark.parametrize("family", ("kimi_k2", "harmony"))
def test_a_result_whose_call_is_not_in_the_context_is_an_error_that_says_so(chats, family):
  with pytest.raises(ValueError, match="call '0.7', which no earlier message makes"):
    chats[family].render([Message("tool", "noon", tool_call_id="0.7")])


@pytest.mark.parametrize("thinking", ["on", "off", "model"])
@pytest.mark.parametrize("family", EVERY)
def test_what_is_settled_of_an_unfinished_reply_stands_in_the_whole_one(tmp_path, family, thinking):
  try:
    chat = families.load(tmp_path, family, thinking)
  except ValueError:
    pytest.skip(f"{family} has no thinking={thinking}")
  rng = np.random.default_rng(3)
  words = ["river", " the", "\n", " é", "漢字", "end ", "{"]
  said = 0
  for _ in range(60):
    text, thought = ("".join(rng.choice(words, rng.integers(0, 9))).strip() for _ in range(2))
    calls = families.CALLS[: rng.integers(0, 3)]
    after = (Message("tool", "1", tool_call_id="0.0"),) if rng.random() < 0.3 else ()
    reply = Message("assistant", text, calls, reasoning=thought)
    tokens = chat.encode_reply(reply, after)
    whole = chat.parse(tokens)
    for n in range(len(tokens) + 1):
      part = chat.parse(chat.settled(tokens[:n]))
      content = part.content.rstrip("\N{REPLACEMENT CHARACTER}").rstrip()
      assert whole.content.startswith(content), (reply, n)
      assert not content or part.reasoning == whole.reasoning, (reply, n)
      said += bool(content) and content != whole.content
  assert said > 60
