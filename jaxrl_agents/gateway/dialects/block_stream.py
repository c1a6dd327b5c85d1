"""Streams of blocks: a thought, a text, calls. The text goes out while it grows, all else whole."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

from jaxrl_agents.gateway.progress import rest_of
from jaxrl_agents.gateway.requests import Asked, Reply

Event = tuple[str, dict[str, Any]]
Block = dict[str, Any]


class BlockStream(abc.ABC):
  """The events of a stream (`sse.Stream`), in the order of the blocks.

  Attributes:
    text: the type of the block with the text.
    thought: of that with the thought.
  """

  text: str
  thought: str

  def __init__(self, asked: Asked):
    self._asked, self._sent = asked, ""
    self._open: tuple[int, Block] | None = None  # place and block of the text, as it stands now

  def more(self, partial: Reply) -> Iterator[Event]:
    """New text; what stands before it goes out with the first."""
    content = partial.message.content
    if len(content) <= len(self._sent):
      return
    *before, block = self._blocks(partial)
    if self._open is None:
      yield from self._begun(partial)
      for i, each in enumerate(before):
        yield from self._whole(i, each)
      yield from self._opened(len(before), block)
    place = self._open[0] if self._open else len(before)
    self._open = place, block
    yield self._grown(place, block, content[len(self._sent) :])
    self._sent = content

  def end(self, replies: Sequence[Reply]) -> Iterator[Event]:
    """All that did not go out yet."""
    reply, first = replies[0], 0
    blocks = self._blocks(reply)
    if self._open is None:
      yield from self._begun(reply)
    else:
      place, block = self._open
      if rest := rest_of(reply.message, self._sent):
        yield self._grown(place, block, rest)
      whole = next((each for each in blocks if each["type"] == self.text), block)
      yield from self._closed(place, whole)
      blocks = [each for each in blocks if each["type"] not in (self.thought, self.text)]
      first = place + 1
    for place, block in enumerate(blocks, first):
      yield from self._whole(place, block)
    yield from self._ended(reply)

  @abc.abstractmethod
  def _blocks(self, reply: Reply) -> list[Block]:
    """What a reply consists of: at most one thought, then at most one text, then calls."""

  @abc.abstractmethod
  def _begun(self, reply: Reply) -> Iterator[Event]:
    """The events before the first block."""

  @abc.abstractmethod
  def _opened(self, place: int, block: Block) -> Iterator[Event]:
    """The events before the text of a block."""

  @abc.abstractmethod
  def _grown(self, place: int, block: Block, text: str) -> Event:
    """The event that adds text to a block."""

  @abc.abstractmethod
  def _closed(self, place: int, block: Block) -> Iterator[Event]:
    """The events after the text of a block."""

  @abc.abstractmethod
  def _whole(self, place: int, block: Block) -> Iterator[Event]:
    """The events of a block that is complete."""

  @abc.abstractmethod
  def _ended(self, reply: Reply) -> Iterator[Event]:
    """The events after the last block."""
