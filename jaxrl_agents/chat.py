"""Messages to token ids and back, for the project's own chat template.

    <|tools|>search_corpus prune_chunks<|end|>
    <|system|>...<|end|><|user|>...<|end|>
    <|assistant|><|call|>search_corpus{"query": "..."}<|/call|><|end|>
    <|tool|>...<|end|>

A conversation is rendered message by message and the pieces are concatenated, so a conversation
that only grew renders to an extension of its earlier ids. A sampled turn is emitted as it was
sampled (`Message.tokens`), never re-tokenised. Control tokens enter by id alone: a document that
contains the characters `<|end|>` is encoded as plain text.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Sequence

import numpy as np
import tokenizers

from jaxrl_agents.types import Message, ToolCall, ToolSpec

ASSETS = pathlib.Path(__file__).parent / "assets"
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
DOCUMENT_MARKS = (
  "\n# DOCUMENT ID: ",
  "<Document id=",
  '{"chunk_ids": ["',
  '{"doc_id": "',
  '", "',
)
"""Fixed strings after which the number of a document stands."""


class Chat:
  """One tokenizer with one template. Invariant: `render` only ever appends as a conversation grows.

  Attributes:
    vocab_size: number of ids, control tokens included.
    pad_id: id of padding, never rendered.
    stop_tokens: ids that end an assistant turn.
    document_mark_ids: ids after which the number of a document stands, int32 [n].
    number_ids: ids of the numbers 0 to 999, one token each, ascending int32 [1000].
    chunk_number_ids: those of "_0" to "_999", which end the id of a chunk; ascending int32 [n].
  """

  def __init__(self, tokenizer: tokenizers.Tokenizer):
    found = {t: tokenizer.token_to_id(t) for t in CONTROL_TOKENS}
    missing = [t for t, i in found.items() if i is None]
    if missing:
      raise ValueError(f"the tokenizer lacks {missing}; make one with scripts/train_tokenizer.py")
    tokenizer.encode_special_tokens = True
    self._tokenizer = tokenizer
    self._id = {t: i for t, i in found.items() if i is not None}
    self.vocab_size = tokenizer.get_vocab_size()
    self.pad_id = self._id["<|pad|>"]
    self.stop_tokens = (self._id["<|end|>"],)
    known = lambda texts: [i for i in map(tokenizer.token_to_id, texts) if i is not None]
    self.number_ids = np.array(sorted(known(str(n) for n in range(1000))), np.int32)
    self.chunk_number_ids = np.array(sorted(known(f"_{n}" for n in range(1000))), np.int32)
    self.document_mark_ids = np.array(known(DOCUMENT_MARKS), np.int32)

  def encode(self, text: str) -> np.ndarray:
    """Ids of plain text, int32 [T]; control tokens in the text are taken as characters."""
    return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text view of ids, control tokens spelled out."""
    return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

  def count(self, text: str) -> int:
    """Number of tokens of plain text."""
    return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> np.ndarray:
    """The prompt for the next assistant turn, int32 [P], its generation header included."""
    pieces = [self._framed("<|tools|>", " ".join(tool.name for tool in tools))] if tools else []
    pieces += [self._render_message(message) for message in messages]
    return np.concatenate([*pieces, np.asarray([self._id["<|assistant|>"]], np.int32)])

  def encode_reply(self, reply: Message) -> np.ndarray:
    """The ids that a policy would have sampled to say `reply`, int32 [T], the stop token
    included.
    """
    pieces = [self.encode(reply.content)] if reply.content else []
    for call in reply.tool_calls:
      text = call.name + json.dumps(dict(call.arguments), ensure_ascii=False)
      pieces.append(
        np.asarray([self._id["<|call|>"], *self.encode(text), self._id["<|/call|>"]], np.int32)
      )
    return np.concatenate([*pieces, np.asarray(self.stop_tokens, np.int32)])

  def parse(self, ids: Sequence[int] | np.ndarray) -> Message:
    """The assistant message that `ids` spell. A malformed call carries its `error`; nothing
    raises.
    """
    tokens = np.asarray(ids, np.int32)
    body = [int(i) for i in tokens]
    if body and body[-1] in self.stop_tokens:
      body.pop()
    content: list[int] = []
    calls: list[ToolCall] = []
    start = 0
    while start < len(body):
      if body[start] != self._id["<|call|>"]:
        content.append(body[start])
        start += 1
        continue
      stop = next((i for i in range(start + 1, len(body)) if body[i] == self._id["<|/call|>"]), -1)
      inner = body[start + 1 : stop if stop > 0 else len(body)]
      calls.append(_parse_call(self.decode(inner), f"call_{len(calls)}", closed=stop > 0))
      start = stop + 1 if stop > 0 else len(body)
    return Message("assistant", self.decode(content).strip(), tuple(calls), tokens=tokens)

  def document_number_places(self, tokens: np.ndarray) -> np.ndarray:
    """Indices of the tokens that are the number of a document, int64 [n]; `tokens` int32 [T]."""
    marked = np.isin(tokens[:-1], self.document_mark_ids) & np.isin(tokens[1:], self.number_ids)
    return 1 + np.flatnonzero(marked)

  def chunk_number_places(self, tokens: np.ndarray) -> np.ndarray:
    """Indices of the tokens after those: the number of a chunk in its document, int64 [n]."""
    after = self.document_number_places(tokens[:-1]) + 1  # of the last token nothing follows
    return after[np.isin(tokens[after], self.chunk_number_ids)]

  def _render_message(self, message: Message) -> np.ndarray:
    if message.role != "assistant":
      return self._framed(f"<|{message.role}|>", message.content)
    reply = message.tokens if message.tokens is not None else self.encode_reply(message)
    end = () if len(reply) and int(reply[-1]) in self.stop_tokens else self.stop_tokens
    return np.asarray([self._id["<|assistant|>"], *reply, *end], np.int32)

  def _framed(self, header: str, text: str) -> np.ndarray:
    return np.asarray([self._id[header], *self.encode(text), self._id["<|end|>"]], np.int32)


def _parse_call(text: str, call_id: str, closed: bool) -> ToolCall:
  """A call from its text `name{json}`; whatever is wrong is named in `error`."""
  name, brace, arguments_text = text.partition("{")
  name = name.strip()
  if not closed:
    return ToolCall(call_id, name, {}, f"the call {text[:80]!r} is not closed with <|/call|>")
  if not brace:
    return ToolCall(call_id, name, {}, f"the call {text[:80]!r} has no JSON arguments")
  try:
    arguments = json.loads(brace + arguments_text)
  except (ValueError, RecursionError) as error:
    return ToolCall(call_id, name, {}, f"the arguments of {name!r} are not valid JSON: {error}")
  return ToolCall(call_id, name, arguments)


@functools.cache
def load(path: str = "base") -> Chat:
  """The chat of a `tokenizer.json` file or of a folder holding one; "base" is the shipped one.

  Raises:
    ValueError: there is no readable tokenizer at `path`.
  """
  place = ASSETS / "base" if path == "base" else pathlib.Path(path)
  file = place / "tokenizer.json" if place.is_dir() else place
  if not file.is_file():
    raise ValueError(f"no tokenizer at {file}; pass 'base' or the folder of a tokenizer.json")
  try:
    return Chat(tokenizers.Tokenizer.from_file(str(file)))
  except Exception as error:  # the Rust side raises plain Exception
    raise ValueError(f"{file} cannot be read as a tokenizer: {error}") from error
