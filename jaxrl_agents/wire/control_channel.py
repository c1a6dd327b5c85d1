"""Control channel between the processes of one run, with heartbeats.

The first process has a connection to each of the others. It sends messages and they receive; in the
other direction they only send a request to stop. Device programs over all devices wait for every
process, even for one that died. Therefore each end watches the other, and if one is gone, the
others end too and name it.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from jaxrl_agents.wire.listener import BEAT_S, SILENCE_S

GONE = 1
"""Exit status of a process that ends because another process is gone."""
_GRACE_S = 10.0
_NOTICE_S = 2.0
"""If another process is gone, a device program may fail before the channel notices; this is how
long it waits.
"""
_BEAT, _STOP, _BYE = (pickle.dumps(name) for name in ("beat", "stop", "bye"))


class LostError(RuntimeError):
  """Another process of the run is gone; the message says which and how."""


class ControlChannel:
  """One process's end of the connections of a run. Use it as a context manager.

  Invariant: a message of the first process reaches every other process whole and in order, or both
  ends know that it did not.

  Args:
    connections: {number of the process: connection}: for the first process to all others, for each
      other process to the first (0); empty for a single process.
    is_first: whether this is the first process.
    silence_s: seconds of silence after which another process counts as gone; each sends a heartbeat
      every BEAT_S.
  """

  def __init__(
    self, connections: Mapping[int, Connection], *, is_first: bool, silence_s: float = SILENCE_S
  ):
    self.is_first, self._silence_s = is_first, silence_s
    self.on_stop: Callable[[], None] = lambda: None
    self._closed = False
    self._left: set[int] = set()
    self._lost = ""
    self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    self._outboxes: list[queue.SimpleQueue[bytes]] = []
    self._writers: list[threading.Thread] = []
    for number, connection in connections.items():
      outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
      self._outboxes.append(outbox)
      self._writers.append(self._start(self._write, number, connection, outbox))
      self._start(self._read, number, connection)

  def __enter__(self) -> ControlChannel:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, *_: object
  ) -> None:
    """Says goodbye. After an error it says nothing, so that the others end too.

    Raises:
      LostError: from an error that the loss of another process may have caused.
    """
    failed = kind is not None and not issubclass(kind, KeyboardInterrupt | LostError)
    deadline = time.monotonic() + (_NOTICE_S if failed and self.several else 0)
    while not self._lost and time.monotonic() < deadline:
      time.sleep(0.05)
    self._closed = True
    if failed and self._lost:
      raise LostError(self._lost) from error
    if kind is None or issubclass(kind, KeyboardInterrupt):
      for outbox in self._outboxes:
        outbox.put(_BYE)
      for writer in self._writers:
        writer.join(self._silence_s)

  @property
  def several(self) -> bool:
    """Whether there are other processes."""
    return bool(self._outboxes)

  def broadcast(self, message: Any) -> None:
    """Sends a message from the first process to every other one.

    Raises:
      LostError: one of them is gone.
    """
    self._check()
    if self._outboxes:
      packed = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
      for outbox in self._outboxes:
        outbox.put(packed)

  def receive(self) -> Any:
    """The next message of the first process; waits for it as long as that process lives.

    Raises:
      LostError: it is gone, was silent for silence_s, or has ended the run.
    """
    while True:
      self._check()
      ended = bool(self._left)
      try:
        return pickle.loads(self._inbox.get(timeout=1.0))
      except queue.Empty:
        if ended:
          raise LostError("the first process has ended the run, others waited for it") from None

  def ask_to_stop(self, *_: Any) -> None:
    """Asks the first process to end the run as soon as possible; a signal handler may call this."""
    for outbox in self._outboxes:
      outbox.put(_STOP)

  def _check(self) -> None:
    if self._lost:
      raise LostError(self._lost)

  def _start(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread

  def _write(self, number: int, connection: Connection, outbox: queue.SimpleQueue[bytes]) -> None:
    while True:
      try:
        message = outbox.get(timeout=BEAT_S)
      except queue.Empty:
        message = _BEAT
      try:
        connection.send_bytes(message)
      except OSError as error:
        self._lose(number, str(error))
        return
      if message == _BYE:
        return

  def _read(self, number: int, connection: Connection) -> None:
    while True:
      try:
        if not connection.poll(self._silence_s):
          raise TimeoutError(f"it was silent for {self._silence_s:g} s")
        message = connection.recv_bytes()
      except (EOFError, OSError) as error:
        self._lose(number, str(error) or "its connection ended")
        return
      if message == _BYE:
        self._left.add(number)
        return
      if message == _STOP:
        self.on_stop()
      elif message != _BEAT:
        self._inbox.put(message)

  def _lose(self, number: int, how: str) -> None:
    """Records that another process is gone. The next call raises it; this process ends if it makes
    no call because it waits in a device program that will never return.
    """
    if self._closed or self._lost or number in self._left:
      return
    self._lost = (
      f"process {number} of the run is gone: {how}. All processes end; run the same commands again "
      "to continue from the last checkpoint"
    )
    # At once: jax may end this process first when it notices the loss.
    print(f"error: {self._lost}", file=sys.stderr, flush=True)
    time.sleep(_GRACE_S)
    if not self._closed:
      os._exit(GONE)
