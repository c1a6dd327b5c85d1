"""The interface to tokenizer and chat format that environments, harness and runs use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from jaxrl_agents.chat.vocabulary import Vocabulary
from jaxrl_agents.types import Message, ToolSpec


class Format(Protocol):
  """How one family of models writes a conversation; made from a `Vocabulary`."""

  stop_tokens: tuple[int, ...]

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> np.ndarray: ...

  def encode_reply(self, reply: Message, earlier: Sequence[Message]) -> np.ndarray: ...

  def parse(self, tokens: np.ndarray) -> Message: ...

  def settled(self, tokens: np.ndarray) -> int: ...


class Chat:
  """One tokenizer with one format. Invariant: `render` only ever appends as a conversation grows.

  Attributes:
    name: of the format, as in `loading.FORMATS`.
    vocab_size: number of ids, control tokens included.
    stop_tokens: ids that end an assistant turn.
  """

  def __init__(self, name: str, vocabulary: Vocabulary, form: Format):
    self._vocabulary, self._form = vocabulary, form
    self.name = name
    self.vocab_size = vocabulary.size
    self.stop_tokens = form.stop_tokens

  def encode(self, text: str) -> np.ndarray:
    """Ids of plain text, int32 [T]; control tokens in the text are taken as characters."""
    return self._vocabulary.encode(text)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text view of ids, control tokens spelled out."""
    return self._vocabulary.decode(ids)

  def count(self, text: str) -> int:
    """Number of tokens of plain text."""
    return len(self._vocabulary.encode(text))

  def id_of(self, token: str) -> int | None:
    """The id of a control token or of another token that was added whole; None if there is none."""
    return self._vocabulary.id_of(token)

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> np.ndarray:
    """The prompt for the next assistant turn, int32 [P], its generation header included.

    The parts of a conversation need not render alone to what they are together (a system turn may
    hold the tools too, a result may quote its call): count a prompt by rendering it.

    Raises:
      ValueError: the format has results quote their call, and no message makes it.
    """
    return self._form.render(messages, tools)

  def encode_reply(self, reply: Message, earlier: Sequence[Message] = ()) -> np.ndarray:
    """The ids that a policy would have sampled to say `reply` after the messages `earlier`, int32
    [T], the stop token included.
    """
    return self._form.encode_reply(reply, earlier)

  def parse(self, ids: Sequence[int] | np.ndarray) -> Message:
    """The assistant message that `ids` spell. A malformed call carries its `error`; nothing
    raises.
    """
    return self._form.parse(np.asarray(ids, np.int32))

  def settled(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """The beginning of an unfinished reply, int32 [T], whose text and thought `parse` will find in
    the whole reply too, if that is well formed.
    """
    tokens = np.asarray(ids, np.int32)
    return tokens[: self._form.settled(tokens)]
