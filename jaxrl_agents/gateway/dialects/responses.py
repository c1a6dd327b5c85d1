"""POST /v1/responses: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.dialects.chat import TEXT_PARTS
from jaxrl_agents.gateway.requests import (
  Asked,
  Fields,
  Refusal,
  Reply,
  Request,
  arguments_of,
  call_of,
  text_of,
  tool_spec,
)
from jaxrl_agents.types import Message, ToolCall, ToolSpec

CUSTOM = "custom"
"""Type of a tool whose input is a text in the place of JSON."""

CUSTOM_SCHEMA = {
  "type": "object",
  "properties": {"input": {"type": "string"}},
  "required": ["input"],
}


def parse(body: Any, chat: Chat) -> Asked:
  """The request in a JSON body.

  Tools that run on a server of their maker are not offered to the policy, and named among the
  fields without effect.

  Raises:
    Refusal: 400, with the field that is wrong or not supported.
  """
  fields = Fields(body)
  fields.refuse({"previous_response_id": ("",), "conversation": (), "background": (False,)})
  instructions = fields.take("instructions", str, "")
  items = fields.need("input", (str, list))
  if isinstance(items, str):
    items = [{"role": "user", "content": items}]
  messages = [Message("system", instructions)] if instructions else []
  messages += _messages(items)
  tools, left_out = _tools(fields.take("tools", list, []))
  choice = fields.take("tool_choice", (str, dict), "auto")
  model, stream = fields.take("model", str, ""), fields.take("stream", bool, False)
  request = Request(
    messages=tuple(messages),
    tools=tools,
    max_tokens=fields.whole("max_output_tokens", least=1),
    temperature=fields.number("temperature", least=0, most=2),
    top_p=fields.number("top_p", least=0, most=1),
    may_call=choice != "none",
    without_effect=(
      *fields.rest(),
      *left_out,
      *(() if choice in ("auto", "none") else ("tool_choice",)),
    ),
  )
  return Asked(request, model, stream)


def _messages(items: Sequence[Any]) -> list[Message]:
  """The messages of a history; what an assistant says and calls in a row is one of them."""
  found: list[Message] = []
  for i, item in enumerate(items):
    fields = Fields(item, f"input[{i}]")
    kind = fields.take("type", str, "message")
    if kind == "message":
      said = _message(fields)
    elif kind == "reasoning":
      said = Message("assistant", "", reasoning=_thought(fields))
    elif kind == "function_call":
      call = call_of(
        fields.need("call_id", str), fields.need("name", str), fields.take("arguments", str, "")
      )
      said = Message("assistant", "", (call,))
    elif kind == "custom_tool_call":
      arguments = {"input": fields.take("input", str, "")}
      call = ToolCall(fields.need("call_id", str), fields.need("name", str), arguments)
      said = Message("assistant", "", (call,))
    elif kind in ("function_call_output", "custom_tool_call_output"):
      output = fields.take("output", (str, list))
      text = text_of(output, fields.named("output"), kinds=TEXT_PARTS)
      said = Message("tool", text, tool_call_id=fields.need("call_id", str))
    else:
      path = fields.named("type")
      raise Refusal(400, f"{path}={kind!r} is not supported", param=path)
    if said.role == "assistant" and found and found[-1].role == "assistant":
      said = _joined(found.pop(), said)
    found.append(said)
  if not found:
    raise Refusal(400, "input is empty; send one message at least", param="input")
  return found


def _message(fields: Fields) -> Message:
  role = fields.need("role", str)
  content = fields.take("content", (str, list))
  text = text_of(content, fields.named("content"), kinds=TEXT_PARTS)
  if role in ("system", "developer"):
    return Message("system", text)
  if role == "user" or role == "assistant":
    return Message("user" if role == "user" else "assistant", text)
  path = fields.named("role")
  raise Refusal(400, f"{path}={role!r}; send system, user or assistant", param=path)


def _thought(fields: Fields) -> str:
  parts = fields.take("content", list, []) or fields.take("summary", list, [])
  kinds = ("reasoning_text", "summary_text", "text")
  return text_of(parts, fields.named("content"), kinds=kinds)


def _joined(first: Message, second: Message) -> Message:
  return dataclasses.replace(
    first,
    content=first.content + second.content,
    tool_calls=first.tool_calls + second.tool_calls,
    reasoning=first.reasoning + second.reasoning,
  )


def _tools(items: Sequence[Any]) -> tuple[tuple[ToolSpec, ...], list[str]]:
  """Tools that the policy may call, and names of those that it may not."""
  found, left_out = [], []
  for i, item in enumerate(items):
    fields = Fields(item, f"tools[{i}]")
    kind = fields.take("type", str, "function")
    if kind == "function":
      found.append(tool_spec(fields, "parameters"))
    elif kind == CUSTOM:
      name, description = fields.need("name", str), fields.take("description", str, "")
      found.append(ToolSpec(name, description, CUSTOM_SCHEMA))
    else:
      left_out.append(f"tools of type {kind}")
  return tuple(found), left_out


def body_of(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
  """The reply of a request that is not streamed."""
  reply = replies[0]
  return _head(asked, reply, "completed") | {"output": _items(asked, reply), "usage": _usage(reply)}


def events(asked: Asked, replies: Sequence[Reply]) -> Iterator[tuple[str, dict[str, Any] | str]]:
  """The events of a stream: the beginning, each item from its beginning to its end, the whole."""
  numbers = itertools.count()
  for kind, fields in _events(asked, replies[0]):
    yield kind, {"type": kind, "sequence_number": next(numbers), **fields}


def _events(asked: Asked, reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
  begun = _head(asked, reply, "in_progress")
  yield "response.created", {"response": begun}
  yield "response.in_progress", {"response": begun}
  for i, item in enumerate(_items(asked, reply)):
    place = {"output_index": i, "item_id": item["id"]}
    kind = item["type"]
    field = {"message": "content", "reasoning": "content", "function_call": "arguments"}
    opened = {**item, "status": "in_progress"} if "status" in item else dict(item)
    name = field.get(kind, "input")
    opened[name] = [] if isinstance(item[name], list) else ""
    yield "response.output_item.added", {"output_index": i, "item": opened}
    if kind in ("message", "reasoning"):
      stem = "response.output_text" if kind == "message" else "response.reasoning_text"
      part = item["content"][0]
      place["content_index"] = 0
      more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
      yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
      yield f"{stem}.delta", {**place, "delta": part["text"], **more}
      yield f"{stem}.done", {**place, "text": part["text"], **more}
      yield "response.content_part.done", {**place, "part": part}
    else:
      custom = kind == "custom_tool_call"
      stem = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
      yield f"{stem}.delta", {**place, "delta": item[name]}
      named = {} if custom else {"name": item["name"]}
      yield f"{stem}.done", {**place, name: item[name], **named}
    yield "response.output_item.done", {"output_index": i, "item": item}
  whole = body_of(asked, [reply])
  yield f"response.{whole['status']}", {"response": whole}


def _head(asked: Asked, reply: Reply, status: str) -> dict[str, Any]:
  cut = reply.stop == "length" and status == "completed"
  return {
    "id": f"resp_{reply.id}",
    "object": "response",
    "created_at": int(time.time()),
    "status": "incomplete" if cut else status,
    "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
    "error": None,
    "instructions": None,
    "metadata": {},
    "model": asked.model,
    "output": [],
    "parallel_tool_calls": True,
    "temperature": None,
    "top_p": None,
    "tool_choice": "auto",
    "tools": [],
    "usage": None,
  }


def _usage(reply: Reply) -> dict[str, Any]:
  prompt, sampled = len(reply.prompt), len(reply.generation.tokens)
  return {
    "input_tokens": prompt,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": sampled,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": prompt + sampled,
  }


def _items(asked: Asked, reply: Reply) -> list[dict[str, Any]]:
  """Thought, text and calls; a reply of nothing is an empty text."""
  message, items = reply.message, []
  if message.reasoning:
    content = [{"type": "reasoning_text", "text": message.reasoning}]
    items.append({"id": f"rs_{reply.id}", "type": "reasoning", "summary": [], "content": content})
  if message.content or not message.tool_calls:
    part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
    said = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    items.append({"id": f"msg_{reply.id}", **said})
  custom = {tool.name for tool in asked.request.tools if tool.parameters is CUSTOM_SCHEMA}
  for i, call in enumerate(message.tool_calls):
    made = {"id": f"fc_{reply.id}_{i}", "call_id": call.id, "name": call.name}
    if call.name in custom and isinstance(call.arguments.get("input"), str):
      items.append({**made, "type": "custom_tool_call", "input": call.arguments["input"]})
    else:
      function = {"type": "function_call", "arguments": arguments_of(call), "status": "completed"}
      items.append({**made, **function})
  return items
