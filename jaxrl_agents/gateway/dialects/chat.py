"""POST /v1/chat/completions: https://platform.openai.com/docs/api-reference/chat."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.chat import Chat
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
  stop_texts,
  text_of,
  tool_spec,
)
from jaxrl_agents.types import Message, ToolCall, ToolSpec

REFUSED: Mapping[str, Sequence[Any]] = {
  **SAMPLING,
  "functions": ([],),
  "function_call": ("none", "auto"),
  "audio": (),
  "modalities": (["text"],),
}
"""Fields that would change the reply, and the values with which they do not."""

FINISH = {"stop_text": "stop"}
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def parse(body: Any, chat: Chat) -> Asked:
  """The request in a JSON body.

  Raises:
    Refusal: 400, with the field that is wrong or not supported.
  """
  fields = Fields(body)
  fields.refuse(REFUSED)
  limits = [fields.whole(name, least=1) for name in ("max_tokens", "max_completion_tokens")]
  choice = fields.take("tool_choice", (str, dict), "auto")
  extra = fields.inside(fields.take("stream_options", dict, {}), "stream_options")
  usage = extra.take("include_usage", bool, False)
  model, stream = fields.take("model", str, ""), fields.take("stream", bool, False)
  logprobs = fields.take("logprobs", bool, False)
  ids = fields.take("return_token_ids", bool, False)
  request = Request(
    messages=messages_of(fields),
    tools=tools_of(fields),
    max_tokens=min((limit for limit in limits if limit), default=0),
    n=fields.whole("n", least=1, default=1),
    seed=fields.take("seed", int),
    stop=stop_texts(fields.take("stop", (str, list)), "stop"),
    temperature=fields.number("temperature", least=0, most=2),
    top_p=fields.top_p(),
    may_call=choice != "none",
    without_effect=(*fields.rest(), *(() if choice in ("auto", "none") else ("tool_choice",))),
  )
  return Asked(request, model, stream, logprobs=logprobs, usage=usage, ids=ids)


def messages_of(fields: Fields) -> tuple[Message, ...]:
  """The messages of a request: its history."""
  items = fields.need("messages", list)
  if not items:
    raise Refusal(400, "messages is empty; send one at least", param="messages")
  return tuple(_message(fields.inside(item, f"messages[{i}]")) for i, item in enumerate(items))


def _message(fields: Fields) -> Message:
  role = fields.need("role", str)
  content = fields.take("content", (str, list))
  text = text_of(content, fields.named("content"), fields, kinds=TEXT_PARTS)
  if role in ("system", "developer"):
    return Message("system", text)
  if role == "user":
    return Message("user", text)
  if role == "tool":
    return Message("tool", text, tool_call_id=fields.need("tool_call_id", str))
  if role == "assistant":
    calls = fields.take("tool_calls", list, [])
    name = fields.named("tool_calls")
    made = tuple(_call(fields.inside(call, f"{name}[{i}]")) for i, call in enumerate(calls))
    return Message("assistant", text, made, reasoning=fields.take("reasoning_content", str, ""))
  path = fields.named("role")
  raise Refusal(400, f"{path}={role!r}; send system, user, assistant or tool", param=path)


def _call(fields: Fields) -> ToolCall:
  call_id = fields.need("id", str)
  fields.take("type", str)
  function = fields.inside(fields.need("function", dict), fields.named("function"))
  return call_of(call_id, function.need("name", str), function.take("arguments", str, ""))


def tools_of(fields: Fields) -> tuple[ToolSpec, ...]:
  """The functions of a request, which the policy may call."""
  found = []
  for i, item in enumerate(fields.take("tools", list, [])):
    tool = fields.inside(item, f"tools[{i}]")
    kind = tool.take("type", str, "function")
    if kind != "function":
      raise Refusal(400, f"tools[{i}] is of type {kind!r}; send functions", param="tools")
    function = tool.inside(tool.need("function", dict), f"tools[{i}].function")
    found.append(tool_spec(function, "parameters"))
  return tuple(found)


def body_of(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
  """The reply of a request that is not streamed."""
  choices = []
  for i, reply in enumerate(replies):
    choice: dict[str, Any] = {
      "index": i,
      "message": _said(reply),
      "finish_reason": FINISH.get(reply.stop, reply.stop),
      "logprobs": _logprobs(reply) if asked.logprobs else None,
    }
    choices.append(choice | (_ids(reply) if asked.ids else {}))
  body = _head(asked, replies, "chat.completion") | {"choices": choices, "usage": counts(replies)}
  return body | ({"prompt_token_ids": replies[0].prompt.tolist()} if asked.ids else {})


class Stream:
  """The events of a stream: role, thought, content, calls, reason of the end, usage if asked."""

  def __init__(self, asked: Asked):
    self._asked = asked
    self._head: dict[str, Any] = {}
    self._sent: str | None = None  # of the content; None before the first event

  def more(self, partial: Reply) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """New content; what stands before it goes out with the first."""
    content = partial.message.content
    if len(content) <= len(self._sent or ""):
      return
    if self._sent is None:
      self._head = _head(self._asked, [partial], "chat.completion.chunk")
      yield self._chunk(0, {"role": "assistant", "content": ""})
      if partial.message.reasoning:
        yield self._chunk(0, {"reasoning_content": partial.message.reasoning})
    yield self._chunk(0, {"content": content[len(self._sent or "") :]})
    self._sent = content

  def end(self, replies: Sequence[Reply]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """All that did not go out yet."""
    asked = self._asked
    self._head = self._head or _head(asked, replies, "chat.completion.chunk")
    for i, reply in enumerate(replies):
      message = reply.message
      if self._sent is None:
        yield from self._opened(i, reply)
      elif rest := rest_of(message, self._sent):
        yield self._chunk(i, {"content": rest})
      for j, call in enumerate(_calls(message)):
        opened = {**call, "function": {**call["function"], "arguments": ""}}
        yield self._chunk(i, {"tool_calls": [{"index": j, **opened}]})
        arguments = {"arguments": call["function"]["arguments"]}
        yield self._chunk(i, {"tool_calls": [{"index": j, "function": arguments}]})
      ids = _ids(reply) if asked.ids else {}
      yield self._chunk(i, {}, finish_reason=FINISH.get(reply.stop, reply.stop), **ids)
    if asked.usage:
      yield "", self._head | {"choices": [], "usage": counts(replies)}
    yield "", "[DONE]"

  def _opened(self, i: int, reply: Reply) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Role, thought and content."""
    message = reply.message
    told = {"logprobs": _logprobs(reply)} if self._asked.logprobs else {}
    begun = {} if message.content else told
    role = {"role": "assistant", "content": "" if message.content else None}
    kind, opened = self._chunk(i, role, **begun)
    prompt = {"prompt_token_ids": reply.prompt.tolist()} if self._asked.ids else {}
    yield kind, opened | prompt
    if message.reasoning:
      yield self._chunk(i, {"reasoning_content": message.reasoning})
    if message.content:
      yield self._chunk(i, {"content": message.content}, **told)

  def _chunk(self, i: int, delta: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    choice = {"index": i, "delta": delta, "finish_reason": None, "logprobs": None, **more}
    return "", self._head | {"choices": [choice]}


def counts(replies: Sequence[Reply]) -> dict[str, Any]:
  """Numbers of tokens."""
  sampled = sum(len(reply.generation.tokens) for reply in replies)
  prompt = len(replies[0].prompt)
  return {
    "prompt_tokens": prompt,
    "completion_tokens": sampled,
    "total_tokens": prompt + sampled,
  }


def _head(asked: Asked, replies: Sequence[Reply], kind: str) -> dict[str, Any]:
  return {
    "id": f"chatcmpl-{replies[0].id}",
    "object": kind,
    "created": int(time.time()),
    "model": asked.model,
    "system_fingerprint": f"v{max(reply.version for reply in replies)}",
  }


def _said(reply: Reply) -> dict[str, Any]:
  message = reply.message
  said: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
  if message.tool_calls:
    said |= {"content": message.content or None, "tool_calls": _calls(message)}
  if message.reasoning:
    said["reasoning_content"] = message.reasoning
  return said


def _calls(message: Message) -> list[dict[str, Any]]:
  return [
    {
      "id": call.id,
      "type": "function",
      "function": {"name": call.name, "arguments": arguments_of(call)},
    }
    for call in message.tool_calls
  ]


def _logprobs(reply: Reply) -> dict[str, Any]:
  """Each sampled token by its id, as text may hold parts of characters."""
  pairs = zip(reply.generation.tokens, reply.generation.logprobs, strict=True)
  content: list[dict[str, Any]] = [
    {"token": f"token_id:{token}", "logprob": float(logprob), "bytes": None, "top_logprobs": []}
    for token, logprob in pairs
  ]
  return {"content": content, "refusal": None}


def _ids(reply: Reply) -> dict[str, Any]:
  generation = reply.generation
  return {"token_ids": generation.tokens.tolist(), "versions": generation.versions.tolist()}
