"""Conversations of a file as the demonstrations of a warm-up.

rows {"messages": [...], "tools": [...]} -> prompts and replies in the policy's format -> segments
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.dialects import chat as dialect
from jaxrl_agents.gateway.requests import Fields, Refusal
from jaxrl_agents.harness.scripted_player import spoken
from jaxrl_agents.harness.segments import Turn, to_segments
from jaxrl_agents.types import Message, Segment, ToolSpec

Row = tuple[tuple[Message, ...], tuple[ToolSpec, ...], tuple[bool, ...]]
"""The messages of a conversation, its tools, and whether each message is trained: one at least is,
and all that are trained are an assistant's.
"""

SPELLED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Control tokens that data sets spell within the content of the assistant."""


def rows(path: pathlib.Path) -> Iterator[Row]:
  """Yields the conversations of a file of JSON lines in the form of OpenAI's chat API: `messages`,
  and optionally `tools`. A `weight` of 0 says that a message of the assistant is not trained.
  Further fields are ignored.

  Raises:
    ValueError: the file has none, or a line is no such conversation; it is named.
  """
  found = False
  with path.open(encoding="utf-8") as file:
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      found = True
      try:
        yield _row(json.loads(line))
      except (ValueError, Refusal) as error:
        raise ValueError(f"{path}, line {number}: {error}") from None
  if not found:
    raise ValueError(f"{path} has no lines; write one JSON object with `messages` on each")


def _row(value: Any) -> Row:
  fields = Fields(value)
  messages, tools = dialect.messages_of(fields), dialect.tools_of(fields)
  weights = [_weight(message, f"messages[{i}]") for i, message in enumerate(value["messages"])]
  messages = tuple(map(_with_reasoning, messages))
  said = [message for message in messages if message.role == "assistant"]
  if not said:
    raise ValueError("no message is of the role assistant, so there is nothing to imitate")
  for message in said:
    if wrong := next((call for call in message.tool_calls if call.error), None):
      raise ValueError(f"the arguments of a call of {wrong.name!r} are wrong: {wrong.error}")
    if not (message.content or message.tool_calls):
      raise ValueError("a message of the assistant has neither content nor tool_calls")
  trained = tuple(
    weight > 0 and message.role == "assistant"
    for message, weight in zip(messages, weights, strict=True)
  )
  if not any(trained):
    raise ValueError("each message of the assistant has the weight 0, so there is nothing to train")
  return messages, tools, trained


def _weight(message: Mapping[str, Any], name: str) -> float:
  weight = message.get("weight")
  if weight is None:
    return 1.0
  if isinstance(weight, bool) or weight not in (0, 1):
    raise ValueError(f"{name}.weight is {weight!r}; send 0 or 1")
  return float(weight)


def _with_reasoning(message: Message) -> Message:
  """The message with a thought that its content begins with as its reasoning."""
  thought, end, rest = message.content.partition("</think>")
  opened = thought.lstrip().removeprefix("<think>")
  if message.role != "assistant" or message.reasoning or not end or "<think>" in opened:
    return message
  return dataclasses.replace(message, content=rest.lstrip("\n"), reasoning=opened.strip("\n"))


def examples(
  conversations: Iterable[Row], chat: Chat, *, most_tokens: int, last_only: bool = False
) -> tuple[list[Segment], Mapping[str, int]]:
  """The segments that imitate the assistant, and how many conversations were read and kept.

  Each turn that is trained is a reply to the prompt that the chat format makes of all messages
  before it. Where a format rewrites earlier turns (reasoning that is dropped, for instance), a
  conversation becomes several segments, so that each reply is learnt in the context in which it
  will be asked for. Where a format ends a reply with its first call (harmony), a turn of several
  calls becomes several turns, each followed by its result. Conversations with a segment of more
  than `most_tokens` tokens are left out whole.

  Args:
    conversations: see `rows`.
    chat: template and tokenizer of the policy.
    most_tokens: tokens of a row of the learner.
    last_only: whether of the turns to be trained only the last one is; earlier ones are context.

  Raises:
    ValueError: the chat format cannot render a conversation.
  """
  kept: list[Segment] = []
  counts = {"conversations": 0, "too_long": 0, "kept": 0}
  for messages, tools, trained in conversations:
    counts["conversations"] += 1
    places = [i for i, is_trained in enumerate(trained) if is_trained]
    try:
      segments = _segments(
        messages, tools, chat, most_tokens=most_tokens, trained=places[-1:] if last_only else places
      )
    except ValueError as error:
      raise ValueError(f"conversation {counts['conversations']}: {error}") from None
    too_long = any(len(segment.tokens) > most_tokens for segment in segments)
    counts["too_long" if too_long else "kept"] += 1
    kept += [] if too_long else segments
  return kept, counts


def _segments(
  messages: Sequence[Message],
  tools: Sequence[ToolSpec],
  chat: Chat,
  *,
  most_tokens: int,
  trained: Sequence[int],
) -> tuple[Segment, ...]:
  """The segments of one conversation; `trained` are the places of the messages to imitate."""
  sampled = _as_sampled(messages, chat)
  messages = [message for message, _ in sampled]
  for message in messages:
    for token in SPELLED if message.role == "assistant" else ():
      if token in message.content and chat.id_of(token) is not None:
        raise ValueError(
          f"a message of the assistant spells the control token {token} within its content, where "
          "it would be trained as plain letters; put calls into tool_calls, and thoughts into "
          "reasoning_content or before the rest of the content"
        )
  turns = []
  for i, (message, place) in enumerate(sampled):
    if place not in trained:
      continue
    reply = spoken(chat, message, messages[:i], most_tokens)
    turns.append(Turn(chat.render(messages[:i], tools), reply))
  return to_segments(turns)


def _as_sampled(messages: Sequence[Message], chat: Chat) -> list[tuple[Message, int]]:
  """The messages with one turn for each call, where the format ends a reply with its first, and the
  place of each in `messages`.
  """
  found: list[tuple[Message, int]] = []
  placed: set[int] = set()
  for i, message in enumerate(messages):
    ends = np.isin(chat.encode_reply(message), chat.stop_tokens) if message.tool_calls else ()
    if np.sum(ends) <= 1:
      found += [] if i in placed else [(message, i)]
      continue
    after = itertools.takewhile(lambda j: messages[j].role == "tool", range(i + 1, len(messages)))
    results = {messages[j].tool_call_id: j for j in after}
    for call in message.tool_calls:
      found.append((dataclasses.replace(message, tool_calls=(call,)), i))
      if (result := results.get(call.id)) is not None:
        found.append((messages[result], result))
        placed.add(result)
      message = Message("assistant", "")  # what was said and thought stands before the first call
  return found
