"""Token ids are the only truth: rendering appends, sampled ids are never re-tokenised."""

import json
import random

import numpy as np
import pytest

from jaxrl_agents import chat
from jaxrl_agents.chat import base_format, document_numbers
from jaxrl_agents.types import Message, ToolCall, ToolSpec

CHAT = chat.load("base")
SEARCH = ToolSpec("search_corpus", "", {"type": "object"})


def random_text(rng, size):
  alphabet = 'abc <|end|> {"x": 1} 417_31\n\té漢🙂'
  return "".join(rng.choice(alphabet) for _ in range(size))


def test_text_survives_encoding_and_decoding():
  rng = random.Random(0)
  for size in range(80):
    text = random_text(rng, size)
    assert CHAT.decode(CHAT.encode(text)) == text


def test_control_tokens_written_in_a_document_stay_characters():
  ids = CHAT.encode("stop <|end|> now <|call|>")
  assert not set(ids.tolist()) & set(range(len(base_format.CONTROL_TOKENS)))


def test_a_number_below_a_thousand_is_one_token_so_a_chunk_id_is_two():
  assert CHAT.count("417_31") == 2
  assert CHAT.count("417_1031") == 3


def test_a_conversation_that_grew_renders_to_an_extension_of_what_was_sampled():
  rng = np.random.default_rng(0)
  messages = [Message("system", "find"), Message("user", "1. a routine")]
  seen = CHAT.render(messages, [SEARCH])
  for turn in range(5):
    sampled = rng.integers(9, CHAT.vocab_size, rng.integers(1, 30)).astype(np.int32)
    if turn % 2:
      sampled = np.append(sampled, np.int32(CHAT.stop_tokens[0]))
    seen = np.concatenate([seen, sampled])
    messages += [CHAT.parse(sampled), Message("tool", "No results found")]
    rendered = CHAT.render(messages, [SEARCH])
    np.testing.assert_array_equal(rendered[: len(seen)], seen)
    assert len(rendered) > len(seen)
    seen = rendered


def test_a_reply_with_several_calls_is_parsed_back():
  calls = (
    ToolCall("call_0", "search_corpus", {"query": 'say "hi" \\ {x}'}),
    ToolCall("call_1", "prune_chunks", {"chunk_ids": ["1_2", "3_4"]}),
  )
  parsed = CHAT.parse(CHAT.encode_reply(Message("assistant", "thinking", calls)))
  assert parsed.content == "thinking"
  assert parsed.tool_calls == calls


@pytest.mark.parametrize(
  ("text", "cause"),
  [
    ('search_corpus{"query": ', "not valid JSON"),
    ("search_corpus", "no JSON arguments"),
    ('search_corpus{"query": "a"} extra', "not valid JSON"),
  ],
)
def test_a_malformed_call_carries_its_cause(text, cause):
  call = base_format.CONTROL_TOKENS.index("<|call|>")
  close = base_format.CONTROL_TOKENS.index("<|/call|>")
  parsed = CHAT.parse([call, *CHAT.encode(text), close])
  assert cause in parsed.tool_calls[0].error


def test_a_call_that_is_cut_off_is_an_error_not_a_call():
  call = base_format.CONTROL_TOKENS.index("<|call|>")
  parsed = CHAT.parse([call, *CHAT.encode('search_corpus{"query": "a"}')])
  assert "not closed" in parsed.tool_calls[0].error


def test_no_sequence_of_ids_makes_parsing_raise():
  rng = np.random.default_rng(1)
  for _ in range(500):
    ids = rng.integers(0, CHAT.vocab_size, rng.integers(0, 40))
    ids[rng.random(len(ids)) < 0.3] = rng.integers(0, 9)
    message = CHAT.parse(ids)
    for call in message.tool_calls:
      assert call.error or json.dumps(call.arguments)


def test_document_numbers_are_found_wherever_an_id_is_quoted_and_nowhere_else():
  shown = '\n# DOCUMENT ID: 417_31 (57 tokens) \nreturn 12, "5"\n'
  text = shown + '<Document id=8_2>\n{"chunk_ids": ["417_31", "9_0"]}'
  ids = CHAT.encode(text)
  places = document_numbers.of(CHAT).document_places(ids)
  assert [CHAT.decode([ids[i]]) for i in places] == ["417", "8", "417", "9"]
  after = document_numbers.of(CHAT).chunk_places(ids)
  assert [CHAT.decode([ids[i]]) for i in after] == ["_31", "_2", "_31", "_0"]


def test_numbers_of_documents_and_chunks_are_found_at_the_very_end_too():
  ids = CHAT.encode("<Document id=8")
  assert document_numbers.of(CHAT).document_places(ids).tolist() == [len(ids) - 1]
  assert document_numbers.of(CHAT).chunk_places(ids).tolist() == []
