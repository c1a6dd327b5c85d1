"""POST /v1/responses: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.dialects.chat import TEXT_PARTS
from jaxrl_agents.gateway.dialects.offered_tools import CUSTOM_SCHEMA, Offer, joint
from jaxrl_agents.gateway.progress import rest_of
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


class Stream:
  """The events of a stream: the beginning, each item from its beginning to its end, the whole."""

  def __init__(self, asked: Asked):
    self._asked, self._numbers = asked, itertools.count()
    self._id = f"resp_{secrets.token_hex(8)}"  # until there is a reply
    self._created = {"created_at": int(time.time())}
    self._sent, self._place = "", -1  # of the item with the text, once it is open

  def more(self, partial: Reply) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """New text; what stands before it goes out with the first."""
    yield from self._numbered(self._more(partial))

  def end(self, replies: Sequence[Reply]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """All that did not go out yet."""
    yield from self._numbered(self._end(replies[0]))

  def failed(self, error: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Those of an end without a reply: openai reads the first, Codex the second.

    Args:
      error: its message, type, param and code, as in the body of a refusal.
    """
    yield from self._numbered(self._failed(error))

  def _failed(self, error: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    wrong = error["type"] == "invalid_request_error"
    code = error["code"] or ("invalid_prompt" if wrong else "server_error")
    told = {name: error[name] for name in ("message", "param")} | {"code": code}
    yield "error", {"error": dict(error), **told}
    cause = {"code": code, "message": error["message"]}
    response = _response(self._asked, self._id, "failed") | self._created | {"error": cause}
    yield "response.failed", {"response": response}

  def _more(self, partial: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    text = partial.message.content
    if len(text) <= len(self._sent):
      return
    if self._place < 0:
      *before, item = _items(self._asked, partial)
      self._place = len(before)
      yield from self._begun(partial)
      for i, each in enumerate(before):
        yield from _whole(i, each)
      yield from _opened_text(self._place, item)
    new = text[len(self._sent) :]
    yield _delta_of_text(self._place, f"msg_{partial.id}", new)
    self._sent = text

  def _end(self, reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    items = _items(self._asked, reply)
    if self._place < 0:
      yield from self._begun(reply)
    else:
      if rest := rest_of(reply.message, self._sent):
        yield _delta_of_text(self._place, f"msg_{reply.id}", rest)
      texts = [item for item in items if item["type"] == "message"]
      yield from _closed_text(self._place, *(texts or [_text_item(reply.id, self._sent)]))
      items = [item for item in items if item["type"] not in ("message", "reasoning")]
    for i, item in enumerate(items, self._place + 1):
      yield from _whole(i, item)
    whole = body_of(self._asked, [reply]) | self._created
    yield f"response.{whole['status']}", {"response": whole}

  def _begun(self, reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = _head(self._asked, reply, "in_progress") | self._created
    self._id = begun["id"]
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}

  def _numbered(
    self, events: Iterator[tuple[str, dict[str, Any]]]
  ) -> Iterator[tuple[str, dict[str, Any] | str]]:
    for kind, fields in events:
      yield kind, {"type": kind, "sequence_number": next(self._numbers), **fields}


def _whole(i: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
  """The events of an item that is complete."""
  kind = item["type"]
  if kind in ("message", "reasoning"):
    yield from _opened_text(i, item)
    yield _delta_of_text(i, item["id"], item["content"][0]["text"], of=kind)
    yield from _closed_text(i, item)
    return
  place = {"output_index": i, "item_id": item["id"]}
  custom = kind == "custom_tool_call"
  name = "input" if custom else "arguments"
  stem = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
  yield _added(i, {**item, name: ""})
  yield f"{stem}.delta", {**place, "delta": item[name]}
  named = {} if custom else {"name": item["name"]}
  yield f"{stem}.done", {**place, name: item[name], **named}
  yield "response.output_item.done", {"output_index": i, "item": item}


def _added(i: int, item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
  opened = {**item, "status": "in_progress"} if "status" in item else item
  return "response.output_item.added", {"output_index": i, "item": opened}


def _opened_text(i: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
  """The events that begin an item with text or a thought."""
  yield _added(i, {**item, "content": []})
  place = {"output_index": i, "item_id": item["id"], "content_index": 0}
  part = {**item["content"][0], "text": ""}
  yield "response.content_part.added", {**place, "part": part}


def _delta_of_text(
  i: int, item_id: str, text: str, of: str = "message"
) -> tuple[str, dict[str, Any]]:
  place = {"output_index": i, "item_id": item_id, "content_index": 0}
  return f"{_stem(of)}.delta", {**place, "delta": text, **_probabilities(of)}


def _closed_text(i: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
  """The events that end such an item."""
  place = {"output_index": i, "item_id": item["id"], "content_index": 0}
  kind, part = item["type"], item["content"][0]
  yield f"{_stem(kind)}.done", {**place, "text": part["text"], **_probabilities(kind)}
  yield "response.content_part.done", {**place, "part": part}
  yield "response.output_item.done", {"output_index": i, "item": item}


def _stem(kind: str) -> str:
  return "response.output_text" if kind == "message" else "response.reasoning_text"


def _probabilities(kind: str) -> dict[str, Any]:
  return {"logprobs": []} if kind == "message" else {}


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
    items.append(_text_item(reply.id, message.content))
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


def _text_item(reply_id: str, text: str) -> dict[str, Any]:
  part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
  said = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
  return {"id": f"msg_{reply_id}", **said}
