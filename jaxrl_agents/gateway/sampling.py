"""From a generation to the reply that an agent gets."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.types import Generation, Message, SamplingLimits, ToolCall


def cut(
  chat: Chat,
  generation: Generation,
  prompt: np.ndarray,
  limits: SamplingLimits,
  stop: tuple[str, ...],
) -> tuple[Generation, str]:
  """The generation up to the token with which one of the texts `stop` is complete, and that text.

  Where a reply ends depends on its past alone, so the tokens that stay have the probabilities that
  they were sampled with.
  """
  n, found = first_stop(chat, generation.tokens, stop)
  if not found:
    return generation, ""
  rows = generation.routing
  shorter = dataclasses.replace(
    generation,
    tokens=generation.tokens[:n],
    logprobs=generation.logprobs[:n],
    versions=generation.versions[:n],
    stop="stop",
    routing=None if rows is None else rows[: len(prompt) - limits.routed_tokens + n],
  )
  return shorter, found


def first_stop(chat: Chat, tokens: np.ndarray, stop: Sequence[str]) -> tuple[int, str]:
  """(n, text): with the n-th id the first of the texts `stop` is complete; all ids and "" if none
  is. Control tokens count as they are spelled.
  """
  has = lambda n: holds_any(chat.decode(tokens[:n]), stop)
  if not stop or not has(len(tokens)):
    return len(tokens), ""
  n = bisect.bisect_left(range(len(tokens) + 1), True, key=has)
  kept = chat.decode(tokens[:n])
  return n, min((text for text in stop if text in kept), key=kept.index)


def holds_any(text: str, stop: Sequence[str]) -> bool:
  """Whether a text that ends a reply is in it."""
  return any(each in text for each in stop)


def message_of(
  chat: Chat,
  generation: Generation,
  stop_text: str,
  *,
  call_ids: str,
  may_call: bool,
  text_tools: frozenset[str] = frozenset(),
  as_text: bool = False,
) -> Message:
  """The reply as the agent gets it.

  Args:
    chat: that reads it.
    generation: of the reply.
    stop_text: that ended it, which the agent does not see.
    call_ids: first part of the ids of its calls.
    may_call: whether calls are given out as such; else, and where a call has no readable name, the
      reply is text alone, with its calls as the policy wrote them.
    text_tools: names of tools whose calls have the argument "input" alone: what else the policy
      wrote beside it does not reach the agent, and does not come back.
    as_text: whether it is handed out as it was sampled, since its prompt was no conversation.
  """
  if as_text:
    text = spelled(chat, generation.tokens)
    text = text.split(stop_text)[0] if stop_text else text
    return Message("assistant", text, tokens=generation.tokens)
  said = chat.parse(generation.tokens)
  content, calls = said.content, said.tool_calls
  if calls and not (may_call and all(c.name and (c.raw or not c.error) for c in calls)):
    content, calls = spelled(chat, generation.tokens), ()
  thought = said.reasoning
  if stop_text:
    thought = thought.split(stop_text)[0] if content else _before(thought, stop_text)
    content = _before(content, stop_text)
  calls = tuple(_as_one_text(call) if call.name in text_tools else call for call in calls)
  named = tuple(dataclasses.replace(call, id=f"{call_ids}_{i}") for i, call in enumerate(calls))
  return Message("assistant", content, named, tokens=generation.tokens, reasoning=thought)


def _before(text: str, stop_text: str) -> str:
  """What stands before a stop text that ended a reply, whose chat format has no white space at the
  end of a text.
  """
  before, found, _ = text.partition(stop_text)
  return before if found else text.removesuffix(stop_text.rstrip())


def _as_one_text(call: ToolCall) -> ToolCall:
  text = call.arguments.get("input")
  return dataclasses.replace(call, arguments={"input": text}) if isinstance(text, str) else call


def spelled(chat: Chat, tokens: np.ndarray) -> str:
  """The text of a reply with its markup, without the token that ends it."""
  ended = len(tokens) and int(tokens[-1]) in chat.stop_tokens
  return chat.decode(tokens[:-1] if ended else tokens)
