"""POST /v1/messages and /v1/messages/count_tokens: https://docs.anthropic.com/en/api/messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.dialects.block_stream import Block, BlockStream, Event
from jaxrl_agents.gateway.requests import (
  SAMPLING,
  Asked,
  Fields,
  Refusal,
  Reply,
  Request,
  call_of,
  stop_texts,
  text_of,
  tool_spec,
)
from jaxrl_agents.types import Message, ToolCall, ToolSpec

BILLING = "x-anthropic-billing-header"
"""A first system text that begins so differs in each request of Claude Code; it is left out."""

FINISH = {
  "stop": "end_turn",
  "tool_calls": "tool_use",
  "length": "max_tokens",
  "stop_text": "stop_sequence",
}


def parse(body: Any, chat: Chat) -> Asked:
  """The request in a JSON body.

  Raises:
    Refusal: 400, with the field that is wrong or not supported.
  """
  asked = counted(body)
  if asked.request.messages[-1].role == "assistant":
    raise Refusal(
      400, "the last of messages is of the assistant, whose replies this policy does not continue; "
      "end with a message of the user", param="messages"
    )  # fmt: skip
  return asked


def counted(body: Any) -> Asked:
  """The request whose tokens are to be counted; its history may end with any message."""
  fields = Fields(body)
  fields.refuse(SAMPLING)
  chosen = fields.inside(fields.take("tool_choice", dict, {}), "tool_choice")
  choice = chosen.take("type", str, "auto")
  model, stream = fields.take("model", str, ""), fields.take("stream", bool, False)
  messages, tools = conversation(fields)
  request = Request(
    messages=messages,
    tools=tools,
    max_tokens=fields.whole("max_tokens", least=1),
    stop=stop_texts(fields.take("stop_sequences", list), "stop_sequences"),
    temperature=fields.number("temperature", least=0, most=2),
    top_p=fields.top_p(),
    may_call=choice != "none",
    without_effect=(*fields.rest(), *(() if choice in ("auto", "none") else ("tool_choice",))),
  )
  return Asked(request, model, stream, usage=True)


def conversation(fields: Fields) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
  """Messages, the system text first, and tools."""
  messages = [Message("system", text) for text in _system(fields)]
  items = fields.need("messages", list)
  if not items:
    raise Refusal(400, "messages is empty; send one at least", param="messages")
  offered, deferred = _tools(fields)
  known = {tool.name: tool for tool in (*offered, *deferred)}
  for i, item in enumerate(items):
    messages += _messages(fields.inside(item, f"messages[{i}]"), known)
  return tuple(messages), offered


def _system(fields: Fields) -> list[str]:
  value = fields.take("system", (str, list), "")
  blocks = value if isinstance(value, list) else [value]
  texts = [text_of([block], "system", fields, kinds=("text",)) for block in blocks]
  if texts and texts[0].startswith(BILLING):
    texts = texts[1:]
  whole = "\n\n".join(text for text in texts if text)
  return [whole] if whole else []


def _messages(fields: Fields, known: Mapping[str, ToolSpec]) -> list[Message]:
  """The messages of one turn: a user turn holds the results of calls besides its text."""
  role = fields.need("role", str)
  if role not in ("user", "assistant", "system"):
    path = fields.named("role")
    raise Refusal(400, f"{path}={role!r}; send user or assistant", param=path)
  content = fields.need("content", (str, list))
  blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
  texts, thoughts = [], []
  calls: list[ToolCall] = []
  results: list[Message] = []
  for i, block in enumerate(blocks):
    part = fields.inside(block, f"{fields.named('content')}[{i}]")
    kind = part.take("type", str, "text")
    if kind == "text":
      texts.append(part.take("text", str, ""))
    elif kind == "thinking" and role == "assistant":
      thoughts.append(part.take("thinking", str, ""))
    elif kind == "redacted_thinking" and role == "assistant":
      continue
    elif kind == "tool_use" and role == "assistant":
      call_id, name = part.need("id", str), part.need("name", str)
      calls.append(_call(call_id, name, part.take("input", dict, {}), known.get(name)))
    elif kind == "tool_result" and role == "user":
      text = _result(part, known)
      results.append(Message("tool", text, tool_call_id=part.need("tool_use_id", str)))
    else:
      path = part.named("type")
      raise Refusal(400, f"{path}={kind!r} is not supported in a turn of {role}", param=path)
  text = "".join(texts) if role == "assistant" else "\n".join(texts)
  if role == "assistant":
    return [Message("assistant", text, tuple(calls), reasoning="".join(thoughts))]
  own = [Message("system" if role == "system" else "user", text)] if texts or not results else []
  return [*results, *own]


def _call(call_id: str, name: str, arguments: dict[str, Any], tool: ToolSpec | None) -> ToolCall:
  """A call of an earlier reply; see `_blocks` for arguments that are no JSON object. Where the tool
  has a parameter "raw", that is what is meant.
  """
  raw = arguments.get("raw")
  properties = tool.parameters.get("properties") if tool else None
  declared = isinstance(properties, Mapping) and "raw" in properties
  if isinstance(raw, str) and len(arguments) == 1 and not declared:
    call = call_of(call_id, name, raw)
    if call.raw:
      return call
  return ToolCall(call_id, name, arguments)


def _result(part: Fields, known: Mapping[str, ToolSpec]) -> str:
  """The text of a tool's result, after "Error: " if it is marked as one. A reference to a tool is
  its definition, as a line of JSON: so a tool that was found by a search is known from there on,
  and the text before it stays as it was."""
  content, path = part.take("content", (str, list)), part.named("content")
  texts = ["Error: "] if part.take("is_error", bool, False) else []
  for i, block in enumerate(content if isinstance(content, list) else [content or ""]):
    if not (isinstance(block, Mapping) and block.get("type") == "tool_reference"):
      texts.append(text_of([block], f"{path}[{i}]", part, kinds=("text",)))
      continue
    reference = part.inside(block, f"{path}[{i}]")
    reference.take("type", str)
    name = reference.need("tool_name", str)
    if name not in known:
      named = reference.named("tool_name")
      raise Refusal(400, f"{named}={name!r} is none of the tools; send its definition", param=named)
    tool = known[name]
    spec = {"name": name, "description": tool.description, "input_schema": dict(tool.parameters)}
    texts.append(json.dumps(spec, ensure_ascii=False) + "\n")
  return "".join(texts)


def _tools(fields: Fields) -> tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]]:
  """The tools that are offered, and those that the agent wants to be found by a search first."""
  offered: list[ToolSpec] = []
  deferred: list[ToolSpec] = []
  for i, item in enumerate(fields.take("tools", list, [])):
    tool = fields.inside(item, f"tools[{i}]")
    kind = tool.take("type", str, "custom")
    if kind != "custom":
      raise Refusal(
        400, f"tools[{i}] of type {kind!r} runs on a server of its maker; send tools with an "
        "input_schema", param="tools"
      )  # fmt: skip
    found = deferred if tool.take("defer_loading", bool, False) else offered
    found.append(tool_spec(tool, "input_schema"))
  return tuple(offered), tuple(deferred)


def body_of(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
  """The reply of a request that is not streamed."""
  reply = replies[0]
  return _head(asked, reply) | {
    "content": _blocks(reply.message),
    "stop_reason": FINISH[reply.stop],
    "stop_sequence": reply.stop_text or None,
    "usage": _usage(reply, len(reply.generation.tokens)),
  }


class Stream(BlockStream):
  """The events of a stream: the beginning, the events of each block, the reason of the end."""

  text, thought = "text", "thinking"

  def _blocks(self, reply: Reply) -> list[Block]:
    return _blocks(reply.message)

  def _begun(self, reply: Reply) -> Iterator[Event]:
    ends = {"stop_reason": None, "stop_sequence": None, "usage": _usage(reply, 0)}
    yield _event("message_start", message=_head(self._asked, reply) | {"content": []} | ends)

  def _opened(self, place: int, block: Block) -> Iterator[Event]:
    yield _event("content_block_start", index=place, content_block=_split(block)[0])

  def _grown(self, place: int, block: Block, text: str) -> Event:
    _, delta = _split({**block, "text": text})
    return _event("content_block_delta", index=place, delta=delta)

  def _closed(self, place: int, block: Block) -> Iterator[Event]:
    yield _event("content_block_stop", index=place)

  def _whole(self, place: int, block: Block) -> Iterator[Event]:
    yield from self._opened(place, block)
    yield _event("content_block_delta", index=place, delta=_split(block)[1])
    yield from self._closed(place, block)

  def _ended(self, reply: Reply) -> Iterator[Event]:
    end = {"stop_reason": FINISH[reply.stop], "stop_sequence": reply.stop_text or None}
    yield _event("message_delta", delta=end, usage=_usage(reply, len(reply.generation.tokens)))
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
  return kind, {"type": kind, **fields}


def _head(asked: Asked, reply: Reply) -> dict[str, Any]:
  name = f"msg_{reply.id}"
  return {"id": name, "type": "message", "role": "assistant", "model": asked.model}


def _usage(reply: Reply, sampled: int) -> dict[str, int]:
  return {"input_tokens": len(reply.prompt), "output_tokens": sampled}


def _blocks(message: Message) -> list[dict[str, Any]]:
  """Thought, text and calls. Arguments that are no JSON object stand below "raw"."""
  blocks: list[dict[str, Any]] = []
  if message.reasoning:
    blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
  if message.content:
    blocks.append({"type": "text", "text": message.content})
  for call in message.tool_calls:
    arguments = {"raw": call.raw} if call.raw else dict(call.arguments)
    blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
  return blocks


def _split(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """A block as it begins, and the delta that completes it."""
  if block["type"] == "text":
    return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
  if block["type"] == "thinking":
    return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
  text = json.dumps(block["input"], ensure_ascii=False)
  return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": text}
