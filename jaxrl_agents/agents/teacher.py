"""A model behind an OpenAI-compatible endpoint in the place of the policy, to record its episodes.

It is asked with the messages and tools of the episode. What it answers is written in the policy's
own format, so that the policy can imitate it token by token.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.chat_endpoint import Client, Endpoint
from jaxrl_agents.types import Context, Message, ToolCall, ToolSpec

NAME = "teacher"
"""The player of that name is a model behind an endpoint."""

MAX_CALLS = 64
"""Calls of one reply; a reply with more is asked for again."""


@dataclasses.dataclass(frozen=True)
class Teacher:
  """Where a teacher answers, and how it is sampled; picklable.

  Attributes:
    endpoint: its address, model, key and limits.
    temperature: of its replies.
    max_tokens: of a reply, in its own tokens.
  """

  endpoint: Endpoint
  temperature: float
  max_tokens: int


def player(teacher: Teacher, client: Client, seed: int) -> Callable[[Context], Awaitable[Message]]:
  """The replies of a teacher in one episode, for `harness.scripted_player.Scripted`."""

  async def play(context: Context) -> Message:
    request: dict[str, Any] = {
      "messages": written(context.messages),
      "temperature": teacher.temperature,
      "max_tokens": teacher.max_tokens,
      "seed": seed,
    }
    if context.tools:
      request["tools"] = [_tool(spec) for spec in context.tools]
    return await client.ask(request, read)

  return play


def written(messages: Sequence[Message]) -> list[dict[str, Any]]:
  """Messages as those of a chat completion."""
  found = []
  for message in messages:
    one: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
      one["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
      one["tool_calls"] = [
        {
          "id": call.id,
          "type": "function",
          "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for call in message.tool_calls
      ]
    found.append(one)
  return found


def read(message: Mapping[str, Any]) -> Message:
  """The reply in a message of a chat completion.

  Raises:
    ValueError: it is empty, or a call has no name or no object of arguments.
  """
  content, calls = message.get("content"), message.get("tool_calls") or []
  if not isinstance(content, str | None) or not isinstance(calls, list):
    raise ValueError("the message has no text and no list of calls")
  if not content and not calls or len(calls) > MAX_CALLS:
    raise ValueError(f"the message has no text and {len(calls)} calls")
  return Message("assistant", content or "", tuple(map(_call, calls)))


def _call(call: Any) -> ToolCall:
  try:
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
  except (ValueError, RecursionError, LookupError, TypeError) as error:
    raise ValueError(f"a call cannot be read ({type(error).__name__})") from None
  if not isinstance(name, str) or not name or not isinstance(arguments, dict):
    raise ValueError("a call has no name, or arguments that are no object")
  return ToolCall("", name, arguments)


def _tool(spec: ToolSpec) -> dict[str, Any]:
  function = {
    "name": spec.name,
    "description": spec.description,
    "parameters": dict(spec.parameters),
  }
  return {"type": "function", "function": function}
