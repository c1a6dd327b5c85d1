"""Conversations of a file become demonstrations in the policy's own format."""

import json

import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.runs import chat_examples
from jaxrl_agents.types import Message, ToolCall
from tests.chat import families

CHAT = chat_lib.load("base")
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
MESSAGES = [
  {"role": "user", "content": "One and one?"},
  {"role": "assistant", "content": "", "tool_calls": [CALL]},
  {"role": "tool", "content": "2", "tool_call_id": "c"},
  {"role": "assistant", "content": "Two."},
]


def file_of(tmp_path, *lines):
  path = tmp_path / "chats.jsonl"
  path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines))
  return path


def made(path, **options):
  return chat_examples.examples(chat_examples.rows(path), CHAT, **{"most_tokens": 512, **options})


def test_every_turn_of_the_assistant_is_trained_and_nothing_else(tmp_path):
  path = file_of(tmp_path, {"messages": MESSAGES, "tools": [TOOL], "source": "x"}, "")
  (segment,), counts = made(path)
  call = Message("assistant", "", (ToolCall("c", "add", {"a": 1}),))
  first = CHAT.encode_reply(call).tolist()
  last = CHAT.encode_reply(Message("assistant", "Two.")).tolist()
  assert segment.tokens[segment.loss_mask].tolist() == first + last
  assert segment.tokens[-len(last) :].tolist() == last and segment.loss_mask[-len(last) :].all()
  assert CHAT.decode(segment.tokens.tolist()).startswith("<|tools|>add<|end|><|user|>One and one?")
  assert counts == {"conversations": 1, "too_long": 0, "kept": 1}


def test_the_last_turn_alone_is_trained_if_that_is_asked_for(tmp_path):
  (segment,), _ = made(file_of(tmp_path, {"messages": MESSAGES}), last_only=True)
  assert CHAT.decode(segment.tokens[segment.loss_mask].tolist()) == "Two.<|end|>"


@pytest.mark.parametrize(
  ("weights", "last_only", "trained"),
  [
    ((0, 1, None), False, ["Two.", "Three."]),
    ((1, 0, 0.0), False, ["One."]),
    ((None, 1, 0), True, ["Two."]),
    ((0, 0, 1), True, ["Three."]),
  ],
)
def test_a_turn_with_the_weight_0_is_context_alone(tmp_path, weights, last_only, trained):
  said = ("One.", "Two.", "Three.")
  messages = []
  for text, weight in zip(said, weights, strict=True):
    messages.append({"role": "user", "content": "Next?", "weight": 0})
    messages.append({"role": "assistant", "content": text, "weight": weight})
  (segment,), _ = made(file_of(tmp_path, {"messages": messages}), last_only=last_only)
  assert CHAT.decode(segment.tokens[segment.loss_mask].tolist()) == "".join(
    f"{text}<|end|>" for text in trained
  )
  context = said[: said.index(trained[-1]) + 1]
  assert [text for text in said if text in CHAT.decode(segment.tokens.tolist())] == [*context]


def test_conversations_that_do_not_fit_a_row_are_left_out_and_counted(tmp_path):
  long = [MESSAGES[0], {"role": "assistant", "content": "Two. " * 60}]
  path = file_of(tmp_path, {"messages": long}, {"messages": MESSAGES}, {"messages": MESSAGES})
  segments, counts = made(path, most_tokens=100)
  assert len(segments) == 2 and counts == {"conversations": 3, "too_long": 1, "kept": 2}


def test_a_turn_of_several_calls_becomes_several_turns_where_a_call_ends_a_reply(tmp_path):
  harmony = families.load(tmp_path, "harmony")
  calls = [CALL, {**CALL, "id": "d", "function": {"name": "add", "arguments": '{"a": 2}'}}]
  first = {"role": "assistant", "content": "I add.", "tool_calls": calls}
  second = {"role": "tool", "content": "3", "tool_call_id": "d"}
  given = [MESSAGES[0], first, second, *MESSAGES[2:]]  # its results in another order
  path = file_of(tmp_path, {"messages": given, "tools": [TOOL]})
  segments, _ = chat_examples.examples(chat_examples.rows(path), harmony, most_tokens=1_024)
  ends = [harmony.id_of(name) for name in ("<|call|>", "<|call|>", "<|return|>")]
  (segment,) = segments
  trained = segment.tokens[segment.loss_mask]
  assert [token for token in trained.tolist() if token in harmony.stop_tokens] == ends
  text = harmony.decode(segment.tokens.tolist())
  places = [text.index(part) for part in ("I add.", '{"a": 1}', ">2<", '{"a": 2}', ">3<", "Two.")]
  assert places == sorted(places) and text.count("I add.") == 1
  path = file_of(tmp_path, {"messages": given[:2], "tools": [TOOL]})
  rows = chat_examples.rows(path)
  (last,), _ = chat_examples.examples(rows, harmony, most_tokens=1_024, last_only=True)
  text = harmony.decode(last.tokens[last.loss_mask].tolist())
  assert "I add." in text and text.count("<|call|>") == 2
  path = file_of(tmp_path, {"messages": [given[0], {**first, "weight": 0}, *given[2:]]})
  rows = chat_examples.rows(path)
  (answer,), _ = chat_examples.examples(rows, harmony, most_tokens=1_024)
  text = harmony.decode(answer.tokens[answer.loss_mask].tolist())
  assert "Two." in text and "I add." not in text and "<|call|>" not in text
  for end in np.flatnonzero(np.isin(segment.tokens, harmony.stop_tokens)):
    assert not segment.loss_mask[end + 1 : end + 2].any()


@pytest.mark.parametrize("opening", ["<think>\n", ""])
def test_a_thought_that_is_spelled_before_the_content_is_reasoning(tmp_path, opening):
  qwen = families.load(tmp_path, "qwen3")
  content = f"{opening}One more.\n</think>\n\nTwo."
  path = file_of(tmp_path, {"messages": [MESSAGES[0], {"role": "assistant", "content": content}]})
  (segment,), _ = chat_examples.examples(chat_examples.rows(path), qwen, most_tokens=512)
  trained = segment.tokens[segment.loss_mask]
  parsed = qwen.parse(trained)
  assert (parsed.reasoning, parsed.content) == ("One more.", "Two.")
  assert qwen.id_of("</think>") in trained.tolist()


@pytest.mark.parametrize("content", ["<tool_call>{}</tool_call>", "So <think>a</think>b"])
def test_control_tokens_that_are_spelled_within_the_content_are_refused(tmp_path, content):
  qwen = families.load(tmp_path, "qwen3")
  path = file_of(tmp_path, {"messages": [MESSAGES[0], {"role": "assistant", "content": content}]})
  with pytest.raises(ValueError, match="conversation 1: .*spells the control token <.*tool_calls"):
    chat_examples.examples(chat_examples.rows(path), qwen, most_tokens=512)


@pytest.mark.parametrize(
  ("line", "cause"),
  [
    ("{", "Expecting property name"),
    ("[]", "the body is a JSON array; send an object"),
    ({"messages": []}, "messages is empty"),
    ({"messages": [{"role": "narrator", "content": "x"}]}, "role='narrator'; send system, user"),
    ({"messages": MESSAGES[:1]}, "nothing to imitate"),
    ({"messages": [MESSAGES[0], {"role": "assistant", "content": ""}]}, "neither content nor"),
    (
      {
        "messages": [
          {
            "role": "assistant",
            "tool_calls": [{**CALL, "function": {**CALL["function"], "arguments": "x"}}],
          }
        ]
      },
      "the arguments of a call of 'add' are wrong",
    ),
    ({"messages": [*MESSAGES[:1], MESSAGES[3]], "tools": [{"type": "web"}]}, "send functions"),
    ({"messages": [*MESSAGES[:3], {**MESSAGES[3], "weight": 0.5}]}, "messages[3].weight is 0.5;"),
    ({"messages": [*MESSAGES[:3], {**MESSAGES[3], "weight": "0"}]}, "messages[3].weight is '0';"),
    ({"messages": [{**MESSAGES[0], "weight": True}, MESSAGES[3]]}, "messages[0].weight is True;"),
    ({"messages": [MESSAGES[0], {**MESSAGES[3], "weight": 0}]}, "has the weight 0, so there is no"),
  ],
)
def test_a_line_that_is_no_conversation_is_named_with_the_cause(tmp_path, line, cause):
  path = file_of(tmp_path, {"messages": MESSAGES}, line)
  with pytest.raises(ValueError, match="line 2: ") as caught:
    made(path)
  assert cause in str(caught.value)


def test_an_empty_file_is_refused(tmp_path):
  with pytest.raises(ValueError, match="has no lines"):
    made(file_of(tmp_path, ""))
