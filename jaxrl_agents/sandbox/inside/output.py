"""What a command writes, and when a command has had enough (agent side)."""

from __future__ import annotations

import os
import signal
import time

from jaxrl_agents.sandbox.inside import processes

GRACE_S = 0.4
"""Seconds between one signal and the next stronger one."""
TICK_S = 0.05
"""Seconds between two looks at the memory."""
READ_BYTES = 1 << 16


class Output:
  """Head and tail of a stream. Invariant: at most `limit` bytes are kept; `total` counts all."""

  def __init__(self, limit: int):
    self._head_bytes = limit - limit // 2
    self._tail_bytes = limit // 2
    self._head, self._tail = bytearray(), bytearray()
    self.total = 0

  def add(self, text: bytes) -> None:
    self.total += len(text)
    room = self._head_bytes - len(self._head)
    self._head += text[:room]
    self._tail += text[room:]
    if len(self._tail) > 4 * self._tail_bytes + READ_BYTES:
      self._cut_tail()

  def _cut_tail(self) -> None:
    del self._tail[: max(0, len(self._tail) - self._tail_bytes)]

  def parts(self) -> tuple[bytes, bytes]:
    """Head and tail; what is missing between them is `total` less both."""
    self._cut_tail()
    return bytes(self._head), bytes(self._tail)


class Watch:
  """When to stop a command, and how hard. Invariant: `why` is set once the ladder has begun."""

  def __init__(self, deadline: float, max_drained_bytes: int, max_memory_bytes: int):
    self.why = ""
    self._next = deadline  # of the next rung
    self._rung = 0
    self._drained_bytes, self._memory_bytes = max_drained_bytes, max_memory_bytes
    self._memory_at = time.monotonic() + TICK_S

  def wait_s(self) -> float:
    """Seconds to the next rung."""
    return self._next - time.monotonic()

  def give_up(self, why: str, rung: int = 0) -> None:
    """Begins the ladder now."""
    if not self.why:
      self.why, self._rung, self._next = why, rung, 0.0

  def check(self, output: Output, before: set[int], shell: int) -> bool:
    """Looks at the limits and signals what breaks them; True when the shell must go as well."""
    now = time.monotonic()
    if output.total > self._drained_bytes:
      self.give_up("output", rung=1)
    if now >= self._memory_at:
      self._memory_at = now + TICK_S
      if processes.memory_bytes(processes.everyone()) > self._memory_bytes:
        self.give_up("memory", rung=1)
    if now < self._next:
      return False
    self.why = self.why or "timeout"
    if self._rung > 1:
      return True
    spared = {shell} if self.why == "memory" else before | {shell}
    processes.send(processes.everyone() - spared, (signal.SIGINT, signal.SIGKILL)[self._rung])
    self._rung, self._next = self._rung + 1, now + GRACE_S
    return False


def drain(fd: int, output: Output) -> bool:
  """Reads what is there, a megabyte at most; False at the end of the file."""
  for _ in range(16):
    try:
      text = os.read(fd, READ_BYTES)
    except BlockingIOError:
      return True
    if not text:
      return False
    output.add(text)
    if len(text) < READ_BYTES // 16:
      return True
  return True
