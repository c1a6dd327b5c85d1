"""What is known of a reply while it is sampled: text for its stream, and texts that end it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.requests import Reply, Request
from jaxrl_agents.gateway.sampling import first_stop, holds_any, spelled
from jaxrl_agents.types import Generation, Message, Watch

_CHARS_OF_A_TOKEN = 4
"""A character takes at most so many tokens, of a byte each."""

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class Progress:
  """The newest state of one reply, which the thread of the sampler sets and a stream takes.

  Attributes:
    changed: there is something that was not taken.
  """

  def __init__(self, chat: Chat, request: Request):
    self._chat, self._request = chat, request
    self._loop = asyncio.get_running_loop()
    self.changed = asyncio.Event()
    self._name, self._prompt = "", np.zeros(0, np.int32)
    self._tokens = self._versions = np.zeros(0, np.int32)

  def begin(self, name: str, prompt: np.ndarray) -> None:
    """Names the reply."""
    self._name, self._prompt = name, prompt

  def note(self, tokens: np.ndarray, versions: np.ndarray) -> None:
    """Sets the tokens that were sampled so far, from any thread."""
    try:
      self._loop.call_soon_threadsafe(self._set, tokens, versions)
    except RuntimeError:  # the loop has ended, and the stream with it
      return

  def take(self) -> Reply:
    """The reply so far, with as much of its thought and text as no later token changes; calls, log-
    probabilities and routing are left out.
    """
    self.changed.clear()
    said = text_so_far(self._chat, self._request, self._tokens)
    none = np.zeros(0, np.float32)
    generation = Generation(self._tokens, none, self._versions, None, "length")
    return Reply(self._name, self._prompt, generation, said, "length")

  def _set(self, tokens: np.ndarray, versions: np.ndarray) -> None:
    self._tokens, self._versions = tokens, versions
    self.changed.set()


def text_so_far(chat: Chat, request: Request, tokens: np.ndarray) -> Message:
  """The thought and text of an unfinished reply, without what may yet turn out to be something
  else: white space before a call, a part of a character, the beginning of a text that ends the
  reply. What was sampled after such a text, wherever it stands, is no part of the reply.
  """
  tokens = tokens[: first_stop(chat, tokens, request.stop)[0]]
  if request.text or request.prompt is not None:
    said = Message("assistant", spelled(chat, tokens))
  else:
    said = chat.parse(chat.settled(tokens))
  text = said.content.rstrip(_UNKNOWN)
  for stop in request.stop:
    text = text.split(stop)[0]
    longest = range(min(len(stop) - 1, len(text)), 0, -1)
    begun = next((n for n in longest if text.endswith(stop[:n])), 0)
    text = text[: len(text) - begun]
  return Message("assistant", text.rstrip(), reasoning=said.reasoning)


def rest_of(said: Message, sent: str) -> str:
  """What is left of a reply's text where `sent` went out before. A reply with a broken call is text
  in whole, in which what was sent stands after the thought; if it stands nowhere, all is left.
  """
  if said.content.startswith(sent):
    return said.content[len(sent) :]
  thought = said.reasoning if said.reasoning in said.content else ""
  place = said.content.find(sent, said.content.find(thought) + len(thought))
  return said.content[place + len(sent) :] if place >= 0 else said.content


def watch(chat: Chat, stop: Sequence[str], progress: Progress | None) -> Watch | None:
  """Notes the progress of a reply and ends it with the first of the texts `stop`; None if there is
  nothing to do.
  """
  if progress is None and not stop:
    return None
  longest = _CHARS_OF_A_TOKEN * max(map(len, stop), default=0)
  seen = 0

  def watched(tokens: np.ndarray, versions: np.ndarray) -> bool:
    nonlocal seen
    if progress:
      progress.note(tokens, versions)
    holds = lambda ids: holds_any(chat.decode(ids), stop)
    tail, seen = tokens[max(0, seen - longest) :], len(tokens)
    return bool(stop) and holds(tail) and holds(tokens)

  return watched
