"""The format of Kimi K2 (Instruct and Thinking).

    <|im_system|>tool_declare<|im_middle|>[{"function":{...},"type":"function"}]<|im_end|>
    <|im_system|>system<|im_middle|>...<|im_end|>
    <|im_user|>user<|im_middle|>...<|im_end|>
    <|im_assistant|>assistant<|im_middle|><think>...</think>...<|tool_calls_section_begin|>
      <|tool_call_begin|>functions.search_corpus:0<|tool_call_argument_begin|>{"query": "..."}
      <|tool_call_end|><|tool_calls_section_end|><|im_end|>
    <|im_system|>tool<|im_middle|>## Return of functions.search_corpus:0
    ...<|im_end|>

without the line breaks but the one after "Return of". Calls are numbered through the conversation.
Only Thinking has the tokens of a thought, and it begins every turn with one, empty or not.

Sources: chat_template.jinja of https://huggingface.co/moonshotai/Kimi-K2-Thinking, whose tokenizer
sorts the keys of tools; https://github.com/MoonshotAI/Kimi-K2/blob/main/docs/tool_call_guidance.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np

from jaxrl_agents.chat import replies
from jaxrl_agents.chat.vocabulary import Part, Vocabulary
from jaxrl_agents.types import Message, ToolCall, ToolSpec

CONTROL_TOKENS = (
  "[EOS]",
  "<|im_end|>",
  "<|im_user|>",
  "<|im_assistant|>",
  "<|im_system|>",
  "<|im_middle|>",
  "<|tool_calls_section_begin|>",
  "<|tool_calls_section_end|>",
  "<|tool_call_begin|>",
  "<|tool_call_argument_begin|>",
  "<|tool_call_end|>",
)
THOUGHT_TOKENS = ("<think>", "</think>")
TEMPLATE_MARKS = ("tool_declare", "## Return of ")
DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."

ROLE_TOKENS = {
  "tool_declare": "<|im_system|>",
  "system": "<|im_system|>",
  "user": "<|im_user|>",
  "assistant": "<|im_assistant|>",
  "tool": "<|im_system|>",
}
LABEL = re.compile(r"functions\.(.+):\d+", re.DOTALL)


class KimiK2Format:
  """Turns between `<|im_...|>role<|im_middle|>` and `<|im_end|>`; a result names its call."""

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary = vocabulary
    self._id = vocabulary.ids_by_name(CONTROL_TOKENS)
    self._thought = tuple(vocabulary.ids_by_name(THOUGHT_TOKENS).values())
    self._opening = self._header("assistant")
    self.stop_tokens: tuple[int, ...] = (self._id["<|im_end|>"], self._id["[EOS]"])

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> np.ndarray:
    """See `Chat.render`. Without a system message, the published default is used."""
    parts: list[Part] = []
    if tools:
      parts += self._turn("tool_declare", self._declared(tools))
    if not messages or messages[0].role != "system":
      parts += self._turn("system", DEFAULT_SYSTEM)
    labels: dict[str, str] = {}
    for i, message in enumerate(messages):
      if message.role == "assistant":
        parts += self._assistant(message, messages[:i])
        ids = [call.id for call in message.tool_calls]
        labels |= zip(ids, _labels(message, messages[:i]), strict=True)
      elif message.role == "tool":
        label = replies.label_of(labels, message)
        parts += self._turn("tool", f"## Return of {label}\n{message.content}")
      else:
        parts += self._turn(message.role, message.content)
    return self._vocabulary.ids([*parts, *self._opening])

  def encode_reply(self, reply: Message, earlier: Sequence[Message]) -> np.ndarray:
    """See `Chat.encode_reply`. Calls without a label are numbered on from those of `earlier`."""
    parts = [*self._encoded_thought(reply.reasoning), reply.content]
    if reply.tool_calls:
      parts.append(self._id["<|tool_calls_section_begin|>"])
    for call, label in zip(reply.tool_calls, _labels(reply, earlier), strict=True):
      parts += [self._id["<|tool_call_begin|>"], label, self._id["<|tool_call_argument_begin|>"]]
      parts += [replies.json_text(dict(call.arguments)), self._id["<|tool_call_end|>"]]
    if reply.tool_calls:
      parts.append(self._id["<|tool_calls_section_end|>"])
    return self._vocabulary.ids([*parts, self._id["<|im_end|>"]])

  def parse(self, tokens: np.ndarray) -> Message:
    """See `Chat.parse`. A call counts only after the token that begins the section of calls."""
    body = tokens.tolist()
    if body and body[-1] in self.stop_tokens:
      body.pop()
    thought, body = self._split_thought(body)
    content, *pieces = self._cut_at_calls(body)
    in_section = self._id["<|tool_calls_section_begin|>"] in content
    found: list[ToolCall] = []
    for piece in pieces:
      end = self._id["<|tool_call_end|>"]
      stop = piece.index(end) if end in piece else len(piece)
      call = self._parse_call(piece[:stop], f"call_{len(found)}", stop < len(piece), in_section)
      found.append(call)
      content += piece[stop + 1 :]
      in_section = in_section or self._id["<|tool_calls_section_begin|>"] in piece[stop:]
    sections = (self._id["<|tool_calls_section_begin|>"], self._id["<|tool_calls_section_end|>"])
    content = [i for i in content if i not in sections]
    return replies.said(self._vocabulary, tokens, content=content, calls=found, thought=thought)

  def settled(self, tokens: np.ndarray) -> int:
    """See `Chat.settled`; the number of these ids."""
    return len(tokens)

  def _declared(self, tools: Sequence[ToolSpec]) -> str:
    declared = [replies.declaration(tool) for tool in tools]
    return json.dumps(declared, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

  def _encoded_thought(self, text: str) -> list[Part]:
    """What stands before the content of a reply."""
    return [self._thought[0], text, self._thought[1]] if self._thought else []

  def _split_thought(self, body: list[int]) -> tuple[list[int], list[int]]:
    """The ids of the thought, and those after it."""
    return replies.split_thought(body, *self._thought) if self._thought else ([], body)

  def _cut_at_calls(self, body: list[int]) -> list[list[int]]:
    """The ids before the first token that begins a call, and those after each."""
    pieces: list[list[int]] = [[]]
    for token in body:
      if token == self._id["<|tool_call_begin|>"]:
        pieces.append([])
      else:
        pieces[-1].append(token)
    return pieces

  def _parse_call(self, ids: list[int], call_id: str, closed: bool, in_section: bool) -> ToolCall:
    """A call from `label <|tool_call_argument_begin|> json`; `error` says what is wrong."""
    text = self._vocabulary.decode(ids)
    split = self._id["<|tool_call_argument_begin|>"]
    cut = ids.index(split) if split in ids else len(ids)
    label = self._vocabulary.decode(ids[:cut]).strip()
    named = LABEL.fullmatch(label)
    name = named[1] if named else ""
    problem = ""
    if not in_section:
      problem = "stands before <|tool_calls_section_begin|>"
    elif not closed:
      problem = "is not closed with <|tool_call_end|>"
    elif cut == len(ids):
      problem = "has no <|tool_call_argument_begin|>"
    elif not named:
      problem = "is not named functions.NAME:NUMBER"
    label = replies.clipped(label)
    if problem:
      return replies.malformed(call_id, text, problem, name=name, label=label)
    arguments = self._vocabulary.decode(ids[cut + 1 :])
    return replies.with_arguments(call_id, name, arguments, label)

  def _assistant(self, message: Message, earlier: Sequence[Message]) -> list[Part]:
    reply = message.tokens if message.tokens is not None else self.encode_reply(message, earlier)
    end = self._id["<|im_end|>"]
    ended = len(reply) and int(reply[-1]) == end
    return [*self._opening, reply, *(() if ended else (end,))]

  def _turn(self, role: str, text: str) -> list[Part]:
    return [*self._header(role), text, self._id["<|im_end|>"]]

  def _header(self, role: str) -> list[Part]:
    return [self._id[ROLE_TOKENS[role]], role, self._id["<|im_middle|>"]]


def _labels(message: Message, earlier: Sequence[Message]) -> list[str]:
  """The label of each call of a turn: as the policy wrote it, or else by its number."""
  first = sum(len(before.tool_calls) for before in earlier)
  numbered = (f"functions.{c.name}:{first + i}" for i, c in enumerate(message.tool_calls))
  return [c.label or number for c, number in zip(message.tool_calls, numbered, strict=True)]
