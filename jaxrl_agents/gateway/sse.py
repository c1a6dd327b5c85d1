"""Server-sent events: of a reply while it is sampled if the sampler tells, else of whole ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from jaxrl_agents.gateway.progress import Progress
from jaxrl_agents.gateway.requests import Refusal, Reply

GRACE_S = 2.0
"""Seconds for which the first tokens are waited for before the stream begins: until then a refusal
has a status of its own."""

KEEPALIVE_S = 3.0
"""Seconds between two comments that keep a silent connection open."""

KEEPALIVE = b": sampling\n"
"""A comment without the empty line that would end an event: clients decode empty events."""

PAUSES, LONGEST_PAUSE_S = 50, 1.0
"""Reading a reply takes the longer the longer it is; a stream then pauses so many times as long, a
second at most, so that long replies leave the event loop to others."""

Event = tuple[str, dict[str, Any] | str]


class Stream(Protocol):
  """The events of one stream in a dialect."""

  def more(self, partial: Reply) -> Iterator[Event]:
    """Those of a reply as far as it is known; of nothing new there are none."""

  def end(self, replies: Sequence[Reply]) -> Iterator[Event]:
    """Those of the complete replies, but for what went out before."""


async def begun(task: asyncio.Task[list[Reply]], progress: Progress | None) -> None:
  """Waits for the first tokens, for GRACE_S at most; raises what the task raised."""
  await _news(task, progress, GRACE_S)
  if task.done():
    task.result()


async def stream(
  task: asyncio.Task[list[Reply]],
  progress: Progress | None,
  events: Stream,
  refused: Callable[[Refusal], Iterable[Event]],
  delivered: Callable[[list[Reply]], None],
) -> AsyncIterator[bytes]:
  """The bytes of a stream.

  Args:
    task: samples the replies.
    progress: of the only one; None if nobody is to see it before it is complete.
    events: of the replies.
    refused: the events that tell of a refusal.
    delivered: called when all events were taken.
  """
  clock = asyncio.get_running_loop().time
  sent_s = clock()
  while not task.done():
    await _news(task, progress, max(0.0, sent_s + KEEPALIVE_S - clock()))
    new, pause_s = list[bytes](), 0.0
    if progress and progress.changed.is_set():
      began_s = time.thread_time()
      new = [encoded(event) for event in events.more(progress.take())]
      pause_s = min(LONGEST_PAUSE_S, PAUSES * (time.thread_time() - began_s))
    if not new and not task.done() and clock() >= sent_s + KEEPALIVE_S:
      new = [KEEPALIVE]  # a reply may grow for minutes by a thought or a call alone
    for each in new:
      yield each
      sent_s = clock()
    await asyncio.wait([task], timeout=pause_s)
  try:
    replies = task.result()
  except Refusal as problem:
    for event in refused(problem):
      yield encoded(event)
    return
  for event in events.end(replies):
    yield encoded(event)
  delivered(replies)


async def _news(
  task: asyncio.Task[list[Reply]], progress: Progress | None, timeout_s: float
) -> None:
  """Waits until the task is done or the reply has grown, for `timeout_s` at most."""
  grown = asyncio.create_task(progress.changed.wait()) if progress else None
  waits: list[asyncio.Task[Any]] = [task, grown] if grown else [task]
  try:
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
  finally:
    if grown:
      grown.cancel()


def encoded(event: Event) -> bytes:
  """One event."""
  kind, content = event
  # As ASCII: some clients end a line at U+2028 and its like.
  text = content if isinstance(content, str) else json.dumps(content)
  head = f"event: {kind}\n" if kind else ""
  return f"{head}data: {text}\n\n".encode()
