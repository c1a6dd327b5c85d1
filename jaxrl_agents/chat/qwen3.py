"""The format of Qwen3: ChatML turns, calls as Hermes writes them.

    <|im_start|>system
    ...

    # Tools
    ... {"type": "function", ...} ...<|im_end|>
    <|im_start|>user
    ...<|im_end|>
    <|im_start|>assistant
    <think>
    ...
    </think>

    ...
    <tool_call>
    {"name": "search_corpus", "arguments": {"query": "..."}}
    </tool_call><|im_end|>
    <|im_start|>user
    <tool_response>
    ...
    </tool_response><|im_end|>

A turn that was not sampled has a thought only where `Message.reasoning` is set; the empty one that
the template writes into the last turn of a conversation is not rendered. Without thinking every
turn begins with an empty thought, as the template writes it with enable_thinking=False; it is of
the prompt, and the reply begins after it. With thinking "on" the prompt opens a thought, in which
the reply begins: models that always think (Qwen3-4B-Thinking-2507) were trained so.

Source: chat_template of https://huggingface.co/Qwen/Qwen3-8B/blob/main/tokenizer_config.json and of
https://huggingface.co/Qwen/Qwen3-4B-Thinking-2507/blob/main/tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_agents.chat import replies
from jaxrl_agents.chat.vocabulary import Part, Vocabulary
from jaxrl_agents.types import Message, ToolCall, ToolSpec

CONTROL_TOKENS = (
  "<|endoftext|>",
  "<|im_start|>",
  "<|im_end|>",
  "<tool_call>",
  "</tool_call>",
  "<tool_response>",
  "</tool_response>",
  "<think>",
  "</think>",
)
TEMPLATE_MARKS = ("<args-json-object>", "<tool_response>")
MODEL, THINKING, UNTHINKING = "model", "on", "off"
"""Values of `thinking` (see `chat.load`): policies think as they like, always or not at all."""

ALWAYS_THINKS = r"<|im_start|>assistant\n<think>\n"
"""What the template of a model that always thinks has, and those of others do not."""

TOOLS_HEAD = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
TOOLS_CALL = """
</tools>

For each function call, return a json object with function name and arguments within """
TOOLS_EXAMPLE = '\n{"name": <function-name>, "arguments": <args-json-object>}\n'


class Qwen3Format:
  """Turns between `<|im_start|>role` and `<|im_end|>`; results of one turn share a user turn."""

  def __init__(self, vocabulary: Vocabulary, thinking: str = MODEL):
    self._vocabulary = vocabulary
    self._id = vocabulary.ids_by_name(CONTROL_TOKENS)
    self._thinking = thinking
    thought: dict[str, list[Part]] = {
      MODEL: [],
      THINKING: [self._id["<think>"], "\n"],
      UNTHINKING: [self._id["<think>"], "\n\n", self._id["</think>"], "\n\n"],
    }
    self._opening: list[Part] = [self._id["<|im_start|>"], "assistant\n", *thought[thinking]]
    self.stop_tokens: tuple[int, ...] = (self._id["<|im_end|>"], self._id["<|endoftext|>"])

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> np.ndarray:
    """See `Chat.render`. The tools are in the system turn, after its content."""
    with_system = bool(messages) and messages[0].role == "system"
    parts: list[Part] = []
    if tools:
      said = [messages[0].content, "\n\n"] if with_system else []
      parts += self._turn("system", [*said, *self._declared(tools)])
    elif with_system:
      parts += self._turn("system", [messages[0].content])
    rest = messages[1:] if with_system else messages
    for i, message in enumerate(rest):
      if message.role == "assistant":
        parts += self._assistant(message)
      elif message.role == "tool":
        first = i == 0 or rest[i - 1].role != "tool"
        last = i + 1 == len(rest) or rest[i + 1].role != "tool"
        parts += self._result(message.content, first, last)
      else:
        parts += self._turn(message.role, [message.content])
    return self._vocabulary.ids([*parts, *self._opening])

  def encode_reply(self, reply: Message, earlier: Sequence[Message]) -> np.ndarray:
    """See `Chat.encode_reply`. Without thinking, the reasoning is left out."""
    del earlier
    parts: list[Part] = []
    thought, close = f"{reply.reasoning.strip(chr(10))}\n", self._id["</think>"]
    if self._thinking == THINKING:  # the prompt has opened it
      parts += [thought, close, "\n\n"]
    elif reply.reasoning and self._thinking == MODEL:
      parts += [self._id["<think>"], f"\n{thought}", close, "\n\n"]
    parts.append(reply.content)
    for i, call in enumerate(reply.tool_calls):
      record = {"name": call.name, "arguments": dict(call.arguments)}
      parts += ["\n"] if i or reply.content else []
      parts += [
        self._id["<tool_call>"],
        f"\n{replies.json_text(record)}\n",
        self._id["</tool_call>"],
      ]
    return self._vocabulary.ids([*parts, self._id["<|im_end|>"]])

  def parse(self, tokens: np.ndarray) -> Message:
    """See `Chat.parse`. A thought that is not closed takes the rest of the reply; calls inside a
    thought are ignored.
    """
    body = tokens.tolist()
    if body and body[-1] in self.stop_tokens:
      body.pop()
    opening, closing = self._id["<think>"], self._id["</think>"]
    if self._thinking == THINKING and opening not in body:
      body.insert(0, opening)  # so that a thought that is not closed is one
    thought, body = replies.split_thought(body, opening, closing)
    content: list[int] = []
    found: list[ToolCall] = []
    inner: list[int] | None = None  # of the open call
    opening, closing = self._id["<tool_call>"], self._id["</tool_call>"]
    for token in [*body, opening]:  # a call that is still open at the end is not closed
      if inner is not None and token in (opening, closing):
        text = self._vocabulary.decode(inner)
        found.append(_parse_call(text, f"call_{len(found)}", closed=token == closing))
        inner = None
      elif token != opening:
        (content if inner is None else inner).append(token)
      if token == opening:
        inner = []
    return replies.said(self._vocabulary, tokens, content=content, calls=found, thought=thought)

  def settled(self, tokens: np.ndarray) -> int:
    """See `Chat.settled`; the number of these ids."""
    return len(tokens)

  def _declared(self, tools: Sequence[ToolSpec]) -> list[Part]:
    listed = "".join("\n" + replies.json_text(replies.declaration(tool)) for tool in tools)
    opened, closed = self._id["<tool_call>"], self._id["</tool_call>"]
    named: list[Part] = [opened, closed, " XML tags:\n", opened, TOOLS_EXAMPLE, closed]
    return [TOOLS_HEAD, listed, TOOLS_CALL, *named]

  def _turn(self, role: str, parts: Sequence[Part]) -> list[Part]:
    return [self._id["<|im_start|>"], f"{role}\n", *parts, self._id["<|im_end|>"], "\n"]

  def _assistant(self, message: Message) -> list[Part]:
    reply = message.tokens if message.tokens is not None else self.encode_reply(message, ())
    end = self._id["<|im_end|>"]
    ended = len(reply) and int(reply[-1]) == end
    return [*self._opening, reply, *(() if ended else (end,)), "\n"]

  def _result(self, text: str, first: bool, last: bool) -> list[Part]:
    opened, closed = self._id["<tool_response>"], self._id["</tool_response>"]
    head: list[Part] = [self._id["<|im_start|>"], "user"] if first else []
    tail: list[Part] = [self._id["<|im_end|>"], "\n"] if last else []
    return [*head, "\n", opened, f"\n{text}\n", closed, *tail]


def _parse_call(text: str, call_id: str, closed: bool) -> ToolCall:
  """A call from the JSON between its tags; `error` names what is wrong with it."""
  record: Any = None
  problem = "" if closed else "is not closed with </tool_call>"
  try:
    record = replies.parsed(text)
  except ValueError as error:
    problem = problem or f"is not valid JSON: {error}"
  name = record.get("name", "") if isinstance(record, dict) else ""
  name = name if isinstance(name, str) else ""
  if not problem and not name:
    problem = 'is no JSON object with "name" and "arguments"'
  if not problem and "arguments" not in record:
    problem = 'has no "arguments"'
  if problem:
    return replies.malformed(call_id, text.strip(), problem, name=name)
  return replies.with_object(call_id, name, record["arguments"])
