"""The format of the policies that are trained here from scratch.

    <|tools|>search_corpus prune_chunks<|end|>
    <|system|>...<|end|><|user|>...<|end|>
    <|assistant|><|call|>search_corpus{"query": "..."}<|/call|><|end|>
    <|tool|>...<|end|>

It has no place for thought apart from the content: `Message.reasoning` is not rendered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl_agents.chat import replies
from jaxrl_agents.chat.vocabulary import Part, Vocabulary
from jaxrl_agents.types import Message, ToolCall, ToolSpec

CONTROL_TOKENS = (
  "<|pad|>",
  "<|end|>",
  "<|system|>",
  "<|user|>",
  "<|assistant|>",
  "<|tool|>",
  "<|tools|>",
  "<|call|>",
  "<|/call|>",
)
TEMPLATE_MARKS: tuple[str, ...] = ()


class OwnFormat:
  """Messages stand between the token of their role and `<|end|>`."""

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary = vocabulary
    self._id = vocabulary.ids_by_name(CONTROL_TOKENS)
    self.stop_tokens: tuple[int, ...] = (self._id["<|end|>"],)

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> np.ndarray:
    """See `Chat.render`."""
    parts: list[Part] = []
    if tools:
      parts += self._framed("tools", " ".join(tool.name for tool in tools))
    for message in messages:
      if message.role == "assistant":
        parts += self._assistant(message)
      else:
        parts += self._framed(message.role, message.content)
    return self._vocabulary.ids([*parts, self._id["<|assistant|>"]])

  def encode_reply(self, reply: Message, earlier: Sequence[Message]) -> np.ndarray:
    """See `Chat.encode_reply`."""
    del earlier
    parts: list[Part] = [reply.content]
    for call in reply.tool_calls:
      text = call.name + replies.json_text(dict(call.arguments))
      parts += [self._id["<|call|>"], text, self._id["<|/call|>"]]
    return self._vocabulary.ids([*parts, self._id["<|end|>"]])

  def parse(self, tokens: np.ndarray) -> Message:
    """See `Chat.parse`."""
    body = tokens.tolist()
    if body and body[-1] in self.stop_tokens:
      body.pop()
    content: list[int] = []
    found: list[ToolCall] = []
    start = 0
    while start < len(body):
      if body[start] != self._id["<|call|>"]:
        content.append(body[start])
        start += 1
        continue
      stop = next((i for i in range(start + 1, len(body)) if body[i] == self._id["<|/call|>"]), -1)
      inner = self._vocabulary.decode(body[start + 1 : stop if stop > 0 else len(body)])
      found.append(_parse_call(inner, f"call_{len(found)}", closed=stop > 0))
      start = stop + 1 if stop > 0 else len(body)
    text = self._vocabulary.decode(content).strip()
    return Message("assistant", text, tuple(found), tokens=tokens)

  def settled(self, tokens: np.ndarray) -> int:
    """See `Chat.settled`; the number of these ids."""
    return len(tokens)

  def _assistant(self, message: Message) -> list[Part]:
    reply = message.tokens if message.tokens is not None else self.encode_reply(message, ())
    ended = len(reply) and int(reply[-1]) in self.stop_tokens
    return [self._id["<|assistant|>"], reply, *(() if ended else self.stop_tokens)]

  def _framed(self, role: str, text: str) -> list[Part]:
    return [self._id[f"<|{role}|>"], text, self._id["<|end|>"]]


def _parse_call(text: str, call_id: str, closed: bool) -> ToolCall:
  """A call from its text `name{json}`; whatever is wrong is named in `error`."""
  name, brace, rest = text.partition("{")
  name = name.strip()
  if not closed:
    return replies.malformed(call_id, text, "is not closed with <|/call|>", name=name)
  if not brace:
    return replies.malformed(call_id, text, "has no JSON arguments", name=name)
  return replies.with_arguments(call_id, name, brace + rest)
