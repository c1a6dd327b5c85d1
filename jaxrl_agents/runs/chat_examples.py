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

Row = tuple[tuple[Message, ...], tuple[ToolSpec, ...]]
"""The messages of a conversation, of which one at least is an assistant's, and its tools."""

SPELLED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Control tokens that data sets spell within the content of the assistant."""


def rows(path: pathlib.Path) -> Iterator[Row]:
  """Yields the conversations of a file of JSON lines in the form of OpenAI's chat API: `messages`,
  and optionally `tools`. Further fields are ignored.

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
  for i, message in enumerate(value["messages"]):
    if message.get("weight", 1) != 1:
      raise ValueError(
        f"messages[{i}].weight is {message['weight']}, and all turns of the assistant are trained; "
        "with --last_only the last one of each conversation is: end it there, and remove the weight"
      )
  messages = tuple(map(_with_reasoning, messages))
  said = [message for message in messages if message.role == "assistant"]
  if not said:
    raise ValueError("no message is of the role assistant, so there is nothing to imitate")
  for message in said:
    if wrong := next((call for call in message.tool_calls if call.error), None):
      raise ValueError(f"the arguments of a call of {wrong.name!r} are wrong: {wrong.error}")
    if not (message.content or message.tool_calls):
      raise ValueError("a message of the assistant has neither content nor tool_calls")
  return messages, tools


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

  Each of its turns is a reply to the prompt that the chat format makes of all messages before it.
  Where a format rewrites earlier turns (reasoning that is dropped, for instance), a conversation
  becomes several segments, so that each reply is learnt in the context in which it will be asked
  for. Where a format ends a reply with its first call (harmony), a turn of several calls becomes
  several turns, each followed by its result. Conversations with a segment of more than
  `most_tokens` tokens are left out whole.

  Args:
    conversations: see `rows`.
    chat: template and tokenizer of the policy.
    most_tokens: tokens of a row of the learner.
    last_only: whether the last turn alone is trained; earlier ones are context.

  Raises:
    ValueError: the chat format cannot render a conversation.
  """
  kept: list[Segment] = []
  counts = {"conversations": 0, "too_long": 0, "kept": 0}
  for messages, tools in conversations:
    counts["conversations"] += 1
    try:
      segments = _segments(messages, tools, chat, most_tokens, last_only)
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
  most_tokens: int,
  last_only: bool,
) -> tuple[Segment, ...]:
  last = max(i for i, message in enumerate(messages) if message.role == "assistant")
  first = len(_as_sampled(messages[:last], chat)) if last_only else 0
  messages = _as_sampled(messages, chat)
  places = [i for i, message in enumerate(messages) if message.role == "assistant"]
  for i in places:
    for token in SPELLED:
      if token in messages[i].content and chat.id_of(token) is not None:
        raise ValueError(
          f"a message of the assistant spells the control token {token} within its content, where "
          "it would be trained as plain letters; put calls into tool_calls, and thoughts into "
          "reasoning_content or before the rest of the content"
        )
  turns = []
  for i in (place for place in places if place >= first):
    reply = spoken(chat, messages[i], messages[:i], most_tokens)
    turns.append(Turn(chat.render(messages[:i], tools), reply))
  return to_segments(turns)


def _as_sampled(messages: Sequence[Message], chat: Chat) -> list[Message]:
  """The messages with one turn for each call, where the format ends a reply with its first."""
  found: list[Message] = []
  placed: set[int] = set()
  for i, message in enumerate(messages):
    ends = np.isin(chat.encode_reply(message), chat.stop_tokens) if message.tool_calls else ()
    if np.sum(ends) <= 1:
      found += [] if i in placed else [message]
      continue
    after = itertools.takewhile(lambda j: messages[j].role == "tool", range(i + 1, len(messages)))
    results = {messages[j].tool_call_id: j for j in after}
    for call in message.tool_calls:
      found.append(dataclasses.replace(message, tool_calls=(call,)))
      if (result := results.get(call.id)) is not None:
        found.append(messages[result])
        placed.add(result)
      message = Message("assistant", "")  # what was said and thought stands before the first call
  return found
