"""Work in a thread that ends soon after nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
Check = Callable[[], None]


class Interrupted(Exception):
  """Nobody waits for this work any more."""


async def run(
  work: Callable[[Check], Result], *, undo: Callable[[Result], object] = lambda result: None
) -> Result:
  """Runs `work(check)` in a thread of the event loop's pool.

  A thread cannot be cancelled: where this call is, `check` raises Interrupted in the thread, and a
  result that comes in spite of that is given to `undo`, in the event loop.
  """
  stop = threading.Event()

  def check() -> None:
    if stop.is_set():
      raise Interrupted

  def discard(done: asyncio.Future[Result]) -> None:
    if not done.cancelled() and done.exception() is None:
      undo(done.result())

  future = asyncio.ensure_future(asyncio.to_thread(work, check))
  try:
    return await asyncio.shield(future)
  except asyncio.CancelledError:
    stop.set()
    future.add_done_callback(discard)
    raise
