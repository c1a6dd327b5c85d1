"""Server-sent events. A reply is sampled and recorded whole before its first event goes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from jaxrl_agents.gateway.requests import Refusal, Reply

GRACE_S = 2.0
"""Seconds for which the reply is waited for before the stream begins: until then a refusal has a
status of its own."""

KEEPALIVE_S = 3.0
"""Seconds between two comments that keep a silent connection open."""

KEEPALIVE = b": sampling\n"
"""A comment without the empty line that would end an event: clients decode empty events."""

Event = tuple[str, dict[str, Any] | str]


async def begun(task: asyncio.Task[list[Reply]]) -> None:
  """Waits for the replies, for GRACE_S at most; raises what the task raised."""
  done, _ = await asyncio.wait([task], timeout=GRACE_S)
  if done:
    task.result()


async def stream(
  task: asyncio.Task[list[Reply]],
  events: Callable[[list[Reply]], Iterable[Event]],
  refused: Callable[[Refusal], Iterable[Event]],
  delivered: Callable[[list[Reply]], None],
) -> AsyncIterator[bytes]:
  """The bytes of a stream.

  Args:
    task: samples the replies.
    events: of the replies.
    refused: the events that tell of a refusal.
    delivered: called when all events were taken.
  """
  while not task.done():
    await asyncio.wait([task], timeout=KEEPALIVE_S)
    if not task.done():
      yield KEEPALIVE
  try:
    replies = task.result()
  except Refusal as problem:
    for event in refused(problem):
      yield encoded(event)
    return
  for event in events(replies):
    yield encoded(event)
  delivered(replies)


def encoded(event: Event) -> bytes:
  """One event."""
  kind, content = event
  # As ASCII: some clients end a line at U+2028 and its like.
  text = content if isinstance(content, str) else json.dumps(content)
  head = f"event: {kind}\n" if kind else ""
  return f"{head}data: {text}\n\n".encode()
