"""Turns SIGTERM into an exception at a moment when the run can be saved, for preempted machines.

The rollouts in progress are lost, but never a finished optimizer step. A signal that arrives during
a learner step waits for its end, because the state that the step began from is donated. A signal
that arrives while rollouts are played interrupts at once, and steps that are in no checkpoint yet
are saved. This takes at most the time of one learner step and one save. If the machine grants less,
the run continues from the last checkpoint, at most `learner.save_every` steps back.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Preempted(KeyboardInterrupt):
  """The process was asked to end."""


class Notice:
  """Tells whether SIGTERM has arrived. Invariant: `Preempted` is never raised inside `held`."""

  def __init__(self) -> None:
    self._arrived = False
    self._depth = 0

  @property
  def arrived(self) -> bool:
    """Whether the signal has arrived and was not raised yet."""
    return self._arrived

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """The block is not interrupted; a signal that arrives during it is raised at its end."""
    self._depth += 1
    try:
      yield
    finally:
      self._depth -= 1
    self._check()

  @contextlib.contextmanager
  def released(self) -> Iterator[None]:
    """The block may be interrupted, even inside `held`."""
    depth, self._depth = self._depth, 0
    try:
      self._check()
      yield
    finally:
      self._depth = depth

  def arrive(self, *_: Any) -> None:
    """The signal handler."""
    self._arrived = True
    self._check()

  def _check(self) -> None:
    if self._arrived and not self._depth:
      self._arrived = False  # once: the blocks that it unwinds may enter `held` again
      raise Preempted("SIGTERM")


@contextlib.contextmanager
def watched(
  signals: Sequence[signal.Signals] = (signal.SIGTERM,),
  instead: Callable[..., None] | None = None,
) -> Iterator[Notice]:
  """Inside the block the signals raise `Preempted`, or do what `instead` says; the old handlers are
  restored afterwards. Only in the main thread are they watched: others get no signals.
  """
  notice = Notice()
  if threading.current_thread() is not threading.main_thread():
    yield notice
    return
  before = {number: signal.signal(number, instead or notice.arrive) for number in signals}
  try:
    yield notice
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
