"""The calls of one session as a tree of tokens, and the training segments that it holds.

An agent sends its whole history with every call, as text. The tree finds the replies in it that
this session sampled, so that their ids are used again and nothing is tokenised twice. A call whose
prompt extends the ids of an earlier call hangs below it; an edited, compacted or forked history
begins a new branch.

Pure: no clock, no network, no jax.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.harness.segments import Turn, segment_of
from jaxrl_agents.types import Message, Segment, ToolCall, ToolSpec

KINDS = ("main", "sub", "side")
"""Kinds of calls, see `kinds`."""


@dataclasses.dataclass(eq=False)
class Call:
  """One generation of a session.

  Attributes:
    id: of the call.
    history: the messages that the prompt was rendered from, see `TokenTree.with_ids`.
    tools: that the request offers.
    turn: the prompt as sampled from, and the generation.
    reply: as the agent got it; `tokens` are the sampled ids.
    trained: whether its tokens may be trained.
    delivered: whether the agent got the reply, as far as can be known.
    parent: the call whose prompt and reply this prompt extends, the longest one.
  """

  id: str
  history: tuple[Message, ...]
  tools: tuple[ToolSpec, ...]
  turn: Turn
  reply: Message
  trained: bool = True
  delivered: bool = True
  parent: Call | None = None
  tokens: np.ndarray = dataclasses.field(init=False, repr=False)

  def __post_init__(self) -> None:
    """Joins prompt and reply, once."""
    self.tokens = np.concatenate([self.turn.prompt, self.turn.generation.tokens])


class TokenTree:
  """The calls of a session.

  Invariant: `calls[i].parent` is the call with the most tokens of those whose tokens begin the
  prompt of call i, in whatever order the calls ended.
  """

  def __init__(self) -> None:
    self.calls: list[Call] = []
    self._by_history: dict[tuple[str, str], list[Call]] = {}
    self._histories: dict[str, str] = {}  # digests, by the ids of calls
    self._by_reply: dict[str, Call] = {}
    self._by_tool_call: dict[str, Call] = {}

  def with_ids(
    self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
  ) -> tuple[Message, ...]:
    """The messages of a request, its replies of this session with the ids as sampled.

    A reply is recognised by the history before it and its text and calls; else by its text and
    calls; else by the ids of its calls, where parts of it are missing but none has changed. A
    reply that came in several parts is put together again. One that was edited stays text.

    What stands before a reply whose history this is has the ids that the reply was sampled after:
    several replies may have the same text.
    """
    found: list[Message] = []
    history = _Digest()
    last: Call | None = None
    for message in messages:
      call = None
      if message.role == "assistant":
        same = self._by_history.get((history.text(), _words(message)))
        call = _likeliest(same, message, tuple(tools)) if same else self._match(message)
        if call is not None and self._histories[call.id] == history.text():
          found = list(call.history)
        if call is not None and call is last:
          continue  # the rest of the reply that came before
      found.append(message if call is None else call.reply)
      history.add(found[-1])
      last = call if call is not None or message.role != "tool" else last
    return tuple(found)

  def parent_of(self, prompt: np.ndarray) -> Call | None:
    """The call with the most tokens of those whose tokens begin `prompt`."""
    fitting = [call for call in self.calls if _begins(call.tokens, prompt)]
    return max(fitting, key=lambda call: len(call.tokens), default=None)

  def routed_tokens(self, prompt: np.ndarray) -> int:
    """How many leading tokens of `prompt` have experts that earlier calls recorded."""
    parent = self.parent_of(prompt)
    if parent is None or parent.turn.generation.routing is None:
      return 0
    return len(parent.tokens) - 1  # the last one was sampled, and never read

  def add(self, call: Call) -> None:
    """Adds a call that has ended. Calls that ended before and extend it now hang below it."""
    call.parent = self.parent_of(call.turn.prompt)
    for other in self.calls:
      longest = len(other.parent.tokens) if other.parent else -1
      if len(call.tokens) > longest and _begins(call.tokens, other.turn.prompt):
        other.parent = call
    self.calls.append(call)
    history = _Digest()
    for message in call.history:
      history.add(message)
    words = _words(call.reply)
    self._histories[call.id] = history.text()
    self._by_history.setdefault((history.text(), words), []).append(call)
    self._by_reply.setdefault(words, call)  # the first: a history has the same ids each time
    self._by_tool_call |= {each.id: call for each in call.reply.tool_calls}

  def used(self) -> set[int]:
    """The `id` of the calls whose reply the agent got, or sent back in a later history."""
    used = {id(call) for call in self.calls if call.delivered}
    for call in self.calls:
      while call.parent is not None and id(call.parent) not in used:
        used.add(id(call.parent))
        call = call.parent
    return used

  def segments(self, trains: Callable[[Call], bool] = lambda call: True) -> tuple[Segment, ...]:
    """Training segments: the paths from a root to each leaf, in the order of the calls.

    Each sampled token is trained in exactly one of them, the first that holds it. A reply that the
    agent never got is left out, as are calls that `trains` refuses; they remain as context.
    """
    used = self.used()
    parents = {id(call.parent) for call in self.calls if call.parent is not None}
    owned: set[int] = set()
    found = []
    for leaf in self.calls:
      if id(leaf) in parents:
        continue
      path: list[Call] = []
      step: Call | None = leaf
      while step is not None:
        path.append(step)
        step = step.parent
      path.reverse()
      mine = [
        call.trained and id(call) in used and id(call) not in owned and trains(call)
        for call in path
      ]
      owned |= {id(call) for call, trained in zip(path, mine, strict=True) if trained}
      while path and not mine[-1]:  # what nobody learns from needs no place in a row
        path.pop()
        mine.pop()
      if path:
        found.append(segment_of([(c.turn, m) for c, m in zip(path, mine, strict=True)]))
    return tuple(found)

  def _match(self, message: Message) -> Call | None:
    """The call whose reply an assistant message is, whatever was said before."""
    if call := self._by_reply.get(_words(message)):
      return call
    calls = {self._by_tool_call.get(each.id) for each in message.tool_calls}
    call = calls.pop() if len(calls) == 1 else None
    return call if call is not None and _is_part(message, call.reply) else None


def _likeliest(calls: Sequence[Call], message: Message, tools: tuple[ToolSpec, ...]) -> Call:
  """The call of several with the same history, text and calls whose reply a message is: one that
  was offered the same tools, of these one with the same thought, of these one whose reply the agent
  got, and of these the first."""

  def likeness(call: Call) -> tuple[bool, ...]:
    same_thought = call.reply.reasoning == message.reasoning
    return call.tools == tools, same_thought, call.delivered

  return max(calls, key=likeness)


class _Digest:
  """A digest of messages that grows with them."""

  def __init__(self) -> None:
    self._hash = hashlib.blake2b(digest_size=16)

  def add(self, message: Message) -> None:
    """Adds a message."""
    self._hash.update(f"{message.role}\0{message.tool_call_id}\0{_words(message)}\0".encode())

  def text(self) -> str:
    """The digest of the messages so far."""
    return self._hash.copy().hexdigest()


def _words(message: Message) -> str:
  """Text and calls of a message, whatever way they were written down; not its reasoning."""
  calls = [(each.id, each.name, _arguments(each)) for each in message.tool_calls]
  return json.dumps([message.content.strip(), calls])


def _arguments(call: ToolCall) -> str:
  """The arguments of a call in one form. The messages dialect has those that are no JSON object
  below "raw", where it cannot be told whether the policy wrote an object with that name.
  """
  arguments = {"raw": call.raw} if call.raw else dict(call.arguments)
  return json.dumps(_as_doubles(arguments), sort_keys=True)


def _as_doubles(value: Any) -> Any:
  """A JSON value with its numbers as JavaScript reads them, whose programs write 1.0 as 1 and have
  no whole numbers beyond 2^53."""
  if isinstance(value, dict):
    return {name: _as_doubles(each) for name, each in value.items()}
  if isinstance(value, list):
    return [_as_doubles(each) for each in value]
  if not isinstance(value, int) or isinstance(value, bool):
    return value
  try:
    return float(value)
  except OverflowError:  # beyond 1.8e308
    return None  # as JSON.stringify writes it


def _is_part(message: Message, reply: Message) -> bool:
  """Whether nothing in `message` differs from `reply`, of which parts may be missing."""
  text = message.content.strip()
  calls = collections.Counter((each.name, _arguments(each)) for each in message.tool_calls)
  whole = collections.Counter((each.name, _arguments(each)) for each in reply.tool_calls)
  return text in ("", reply.content.strip()) and calls <= whole


def _begins(tokens: np.ndarray, prompt: np.ndarray) -> bool:
  """Whether `prompt` begins with `tokens`; most others differ in the last one already."""
  n = len(tokens)
  return (
    0 < n <= len(prompt)
    and bool(tokens[-1] == prompt[n - 1])
    and bool(np.array_equal(tokens, prompt[:n]))
  )


def kinds(calls: Sequence[Call]) -> dict[int, str]:
  """{id of a call: kind}: "main", "sub" (other instructions or tools) or "side" (no tools where
  the main calls have some: titles, summaries of topics).

  The main calls are those with the system text and tools of which most tokens were sampled; calls
  without tools are main only if no call has any.
  """
  sampled: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
  for call in calls:
    sampled[_signature(call)] += len(call.turn.generation.tokens)
  with_tools = {signature: count for signature, count in sampled.items() if signature[1]}
  candidates = with_tools or sampled
  main = max(candidates, key=lambda signature: candidates[signature], default=None)

  def kind(call: Call) -> str:
    signature = _signature(call)
    if signature == main:
      return "main"
    return "side" if main and main[1] and not signature[1] else "sub"

  return {id(call): kind(call) for call in calls}


def _signature(call: Call) -> tuple[str, tuple[str, ...]]:
  system = "\n".join(m.content for m in call.history if m.role == "system")
  return system, tuple(sorted(tool.name for tool in call.tools))
