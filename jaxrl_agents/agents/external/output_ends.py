"""Keeps the end of what a command writes, however much it writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

KEPT_BYTES = 64 << 10
"""Bytes that are kept of the ends of standard output and of standard error."""

READ_BYTES = 64 << 10
LAST_READS = 8
"""A pipe holds one of them, and who did not end with the command may write meanwhile."""

PAUSE_S = 0.002
"""Seconds until more is read after a full read: a command that writes without end is slowed down to
30 MB/s, and leaves the event loop to others."""


class OutputEnd:
  """The last KEPT_BYTES of a pipe that a command writes into.

  Invariant: nothing else of it is held, in memory or on the disk.

  Args:
    read: the end to read from, which does not block.
  """

  def __init__(self, read: int):
    self._read, self._loop = read, asyncio.get_running_loop()
    self._kept = bytearray()
    self._later: asyncio.TimerHandle | None = None
    self._watch()

  def text(self) -> str:
    """What is kept, with what the pipe holds now. Nothing is read after it."""
    self.stop()
    for _ in range(LAST_READS):
      if self._take() < READ_BYTES:
        break
    return self._kept.decode("utf-8", "replace")

  def stop(self) -> None:
    """Reads no more."""
    if self._later:
      self._later.cancel()
    self._loop.remove_reader(self._read)

  def _watch(self) -> None:
    self._later = None
    self._loop.add_reader(self._read, self._ready)

  def _ready(self) -> None:
    if (size := self._take()) == READ_BYTES:
      self._loop.remove_reader(self._read)
      self._later = self._loop.call_later(PAUSE_S, self._watch)
    elif not size:  # all who could write have closed it
      self._loop.remove_reader(self._read)

  def _take(self) -> int:
    """How many bytes there were to read, READ_BYTES at most."""
    try:
      found = os.read(self._read, READ_BYTES)
    except BlockingIOError:
      return 0
    self._kept += found
    del self._kept[:-KEPT_BYTES]
    return len(found)


@contextlib.contextmanager
def piped() -> Iterator[tuple[int, OutputEnd]]:
  """(the end of a new pipe for a command to write into, what is kept of it)."""
  read, write = os.pipe()
  os.set_blocking(read, False)
  try:
    end = OutputEnd(read)
    try:
      yield write, end
    finally:
      end.stop()
  finally:
    os.close(read)
    os.close(write)
