"""SIGTERM as an exception at a moment when the run can be saved: how clouds take machines back.

What is lost: the rollouts in play, never a finished optimizer step. A signal that arrives while a
step is learnt waits for its end, since the state it began from is donated; one that arrives while
rollouts are played stops at once, and the steps that no checkpoint holds yet are saved. The time
that takes is at most that of one learner step and one save. A machine that grants less is as one
that was pulled out of the wall: the run goes on from the last checkpoint, `learner.save_every`
steps back at most.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Preempted(KeyboardInterrupt):
  """The process was asked to end."""


class Notice:
  """Whether SIGTERM has arrived. Invariant: `Preempted` is never raised inside `held`."""

  def __init__(self) -> None:
    self._arrived = False
    self._depth = 0

  @property
  def arrived(self) -> bool:
    """Whether the signal has come and was not raised yet."""
    return self._arrived

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """What is inside is not cut; a signal that arrives meanwhile is raised at its end."""
    self._depth += 1
    try:
      yield
    finally:
      self._depth -= 1
    self._check()

  @contextlib.contextmanager
  def released(self) -> Iterator[None]:
    """What is inside may be cut, though it stands inside `held`."""
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
      self._arrived = False  # once: what it unwinds through may hold again
      raise Preempted("SIGTERM")


@contextlib.contextmanager
def watched(
  signals: Sequence[signal.Signals] = (signal.SIGTERM,),
  instead: Callable[..., None] | None = None,
) -> Iterator[Notice]:
  """The signals raise `Preempted` inside, or do what `instead` says; afterwards, what they did
  before.
  """
  notice = Notice()
  before = {number: signal.signal(number, instead or notice.arrive) for number in signals}
  try:
    yield notice
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
