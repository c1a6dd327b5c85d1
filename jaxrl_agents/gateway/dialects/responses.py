"""POST /v1/responses: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.dialects.block_stream import Block, BlockStream, Event
from jaxrl_agents.gateway.dialects.chat import TEXT_PARTS
from jaxrl_agents.gateway.dialects.offered_tools import CUSTOM_SCHEMA, Offer, joint
from jaxrl_agents.gateway.requests import (
  SAMPLING,
  Asked,
  Fields,
  Refusal,
  Reply,
  Request,
  arguments_of,
  call_of,
  text_of,
)
from jaxrl_agents.types import Message, ToolCall

ENCRYPTED = "encrypted_content"


def parse(body: Any, chat: Chat) -> Asked:
  """The request in a JSON body.

  Tools that run on a server of their maker are not offered to the policy, and named among the
  fields without effect.

  Raises:
    Refusal: 400, with the field that is wrong or not supported.
  """
  fields = Fields(body)
  fields.refuse(
    {
      **SAMPLING,
      "previous_response_id": ("",),
      "conversation": (),
      "background": (False,),
    }
  )
  instructions = fields.take("instructions", str, "")
  items = fields.need("input", (str, list))
  if isinstance(items, str):
    items = [{"role": "user", "content": items}]
  messages = [Message("system", instructions)] if instructions else []
  offer = Offer()
  offer.add(fields, "tools")
  messages += _messages(items, fields, offer)
  choice = fields.take("tool_choice", (str, dict), "auto")
  model, stream = fields.take("model", str, ""), fields.take("stream", bool, False)
  request = Request(
    messages=tuple(messages),
    tools=tuple(offer.tools),
    max_tokens=fields.whole("max_output_tokens", least=1),
    temperature=fields.number("temperature", least=0, most=2),
    top_p=fields.top_p(),
    may_call=choice != "none",
    text_tools=frozenset(tool.name for tool in offer.tools if tool.parameters is CUSTOM_SCHEMA),
    without_effect=(
      *fields.rest(),
      *offer.left_out,
      *(() if choice in ("auto", "none") else ("tool_choice",)),
    ),
  )
  return Asked(request, model, stream, namespaces=offer.namespaces)


def _messages(items: Sequence[Any], asked: Fields, offer: Offer) -> list[Message]:
  """The messages of a history; what an assistant says and calls in a row is one of them. Tools
  that it adds go to `offer`."""
  found: list[Message] = []
  for i, item in enumerate(items):
    fields = asked.inside(item, f"input[{i}]")
    kind = fields.take("type", str, "message")
    if kind == "additional_tools":
      offer.add(fields, fields.named("tools"))
      continue
    if kind == "message":
      said = _message(fields)
    elif kind == "agent_message":
      said = Message("user", _between_agents(fields))
    elif kind == "reasoning":
      said = Message("assistant", "", reasoning=_thought(fields))
    elif kind == "function_call":
      call = call_of(
        fields.need("call_id", str), _called(fields), fields.take("arguments", str, "")
      )
      said = Message("assistant", "", (call,))
    elif kind == "custom_tool_call":
      arguments = {"input": fields.take("input", str, "")}
      call = ToolCall(fields.need("call_id", str), _called(fields), arguments)
      said = Message("assistant", "", (call,))
    elif kind in ("function_call_output", "custom_tool_call_output"):
      output = fields.take("output", (str, list))
      text = text_of(output, fields.named("output"), fields, kinds=TEXT_PARTS)
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
  text = text_of(content, fields.named("content"), fields, kinds=TEXT_PARTS)
  if role in ("system", "developer"):
    return Message("system", text)
  if role == "user" or role == "assistant":
    return Message("user" if role == "user" else "assistant", text)
  path = fields.named("role")
  raise Refusal(400, f"{path}={role!r}; send system, user or assistant", param=path)


def _between_agents(fields: Fields) -> str:
  """What one agent of Codex wrote to another. Codex marks the argument that it comes from as one
  that the server encrypts; this server does not, so the text is as the policy wrote it."""
  texts = []
  for i, part in enumerate(fields.need("content", list)):
    if isinstance(part, Mapping) and part.get("type") == ENCRYPTED:
      inner = fields.inside(part, f"{fields.named('content')}[{i}]")
      inner.take("type", str)
      texts.append(inner.need(ENCRYPTED, str))
    else:
      texts.append(text_of([part], fields.named("content"), fields, kinds=TEXT_PARTS))
  return "".join(texts)


def _thought(fields: Fields) -> str:
  parts = fields.take("content", list, []) or fields.take("summary", list, [])
  kinds = ("reasoning_text", "summary_text", "text")
  return text_of(parts, fields.named("content"), fields, kinds=kinds)


def _joined(first: Message, second: Message) -> Message:
  return dataclasses.replace(
    first,
    content=first.content + second.content,
    tool_calls=first.tool_calls + second.tool_calls,
    reasoning=first.reasoning + second.reasoning,
  )


def _called(fields: Fields) -> str:
  """The name of a called tool, as the policy knows it."""
  return joint(fields.take("namespace", str, ""), fields.need("name", str))


def body_of(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
  """The reply of a request that is not streamed."""
  reply = replies[0]
  return _head(asked, reply, "completed") | {"output": _items(asked, reply), "usage": _usage(reply)}


class Stream(BlockStream):
  """The events of a stream: the beginning, each item from its beginning to its end, the whole."""

  text, thought = "message", "reasoning"

  def __init__(self, asked: Asked):
    super().__init__(asked)
    self._numbers = itertools.count()
    self._id = f"resp_{secrets.token_hex(8)}"  # until there is a reply
    self._created = {"created_at": int(time.time())}

  def more(self, partial: Reply) -> Iterator[Event]:
    """See BlockStream.more; each event has its number."""
    return self._numbered(super().more(partial))

  def end(self, replies: Sequence[Reply]) -> Iterator[Event]:
    """See BlockStream.end; each event has its number."""
    return self._numbered(super().end(replies))

  def failed(self, error: Mapping[str, Any]) -> Iterator[Event]:
    """The events of an end without a reply: openai reads the first, Codex the second.

    Args:
      error: its message, type, param and code, as in the body of a refusal.
    """
    return self._numbered(self._failed(error))

  def _failed(self, error: Mapping[str, Any]) -> Iterator[Event]:
    wrong = error["type"] == "invalid_request_error"
    code = error["code"] or ("invalid_prompt" if wrong else "server_error")
    told = {name: error[name] for name in ("message", "param")} | {"code": code}
    yield "error", {"error": dict(error), **told}
    cause = {"code": code, "message": error["message"]}
    response = _response(self._asked, self._id, "failed") | self._created | {"error": cause}
    yield "response.failed", {"response": response}

  def _numbered(self, events: Iterator[Event]) -> Iterator[Event]:
    for kind, fields in events:
      yield kind, {"type": kind, "sequence_number": next(self._numbers), **fields}

  def _blocks(self, reply: Reply) -> list[Block]:
    return _items(self._asked, reply)

  def _begun(self, reply: Reply) -> Iterator[Event]:
    begun = _head(self._asked, reply, "in_progress") | self._created
    self._id = begun["id"]
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}

  def _opened(self, place: int, block: Block) -> Iterator[Event]:
    yield _added(place, {**block, "content": []})
    part = {**block["content"][0], "text": ""}
    yield "response.content_part.added", {**_part(place, block), "part": part}

  def _grown(self, place: int, block: Block, text: str) -> Event:
    more = _probabilities(block)
    return f"{_stem(block)}.delta", {**_part(place, block), "delta": text, **more}

  def _closed(self, place: int, block: Block) -> Iterator[Event]:
    part, more = block["content"][0], _probabilities(block)
    yield f"{_stem(block)}.done", {**_part(place, block), "text": part["text"], **more}
    yield "response.content_part.done", {**_part(place, block), "part": part}
    yield "response.output_item.done", {"output_index": place, "item": block}

  def _whole(self, place: int, block: Block) -> Iterator[Event]:
    if block["type"] in (self.text, self.thought):
      yield from self._opened(place, block)
      yield self._grown(place, block, block["content"][0]["text"])
      yield from self._closed(place, block)
    else:
      yield from _called_events(place, block)

  def _ended(self, reply: Reply) -> Iterator[Event]:
    whole = body_of(self._asked, [reply]) | self._created
    yield f"response.{whole['status']}", {"response": whole}


def _called_events(place: int, item: Block) -> Iterator[Event]:
  """The events of a call."""
  where = {"output_index": place, "item_id": item["id"]}
  custom = item["type"] == "custom_tool_call"
  name = "input" if custom else "arguments"
  stem = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
  yield _added(place, {**item, name: ""})
  yield f"{stem}.delta", {**where, "delta": item[name]}
  named = {} if custom else {"name": item["name"]}
  yield f"{stem}.done", {**where, name: item[name], **named}
  yield "response.output_item.done", {"output_index": place, "item": item}


def _added(place: int, item: Block) -> Event:
  opened = {**item, "status": "in_progress"} if "status" in item else item
  return "response.output_item.added", {"output_index": place, "item": opened}


def _part(place: int, item: Block) -> dict[str, Any]:
  """Where the only part of an item stands."""
  return {"output_index": place, "item_id": item["id"], "content_index": 0}


def _stem(item: Block) -> str:
  return "response.output_text" if item["type"] == "message" else "response.reasoning_text"


def _probabilities(item: Block) -> dict[str, Any]:
  return {"logprobs": []} if item["type"] == "message" else {}


def _head(asked: Asked, reply: Reply, status: str) -> dict[str, Any]:
  cut = reply.stop == "length" and status == "completed"
  response = _response(asked, f"resp_{reply.id}", "incomplete" if cut else status)
  return response | ({"incomplete_details": {"reason": "max_output_tokens"}} if cut else {})


def _response(asked: Asked, response_id: str, status: str) -> dict[str, Any]:
  return {
    "id": response_id,
    "object": "response",
    "created_at": int(time.time()),
    "status": status,
    "incomplete_details": None,
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
  for i, call in enumerate(message.tool_calls):
    namespace = asked.namespaces.get(call.name, "")
    name = call.name.removeprefix(joint(namespace, ""))
    made = {"id": f"fc_{reply.id}_{i}", "call_id": call.id, "name": name}
    if namespace:
      made["namespace"] = namespace
    text = call.arguments.get("input")
    if call.name in asked.request.text_tools and isinstance(text, str):
      items.append({**made, "type": "custom_tool_call", "input": text})
    else:
      function = {"type": "function_call", "arguments": arguments_of(call), "status": "completed"}
      items.append({**made, **function})
  return items
