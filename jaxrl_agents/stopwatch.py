"""Seconds that named parts of this process took, for the summary of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_seconds: dict[str, float] = {}


class Stages:
  """Seconds of stages that follow one another without a gap; the first begins with the object.

  Attributes:
    seconds: of each stage that has ended, in their order.
  """

  def __init__(self):
    self._began = time.monotonic()
    self.seconds: dict[str, float] = {}

  def end(self, stage: str) -> None:
    """The stage that lasts now has this name and ends; the next begins."""
    now = time.monotonic()
    self.seconds[stage], self._began = now - self._began, now


def add(part: str, seconds: float) -> None:
  """Adds to the seconds of a part."""
  _seconds[part] = _seconds.get(part, 0.0) + seconds


@contextlib.contextmanager
def timed(part: str) -> Iterator[None]:
  """Adds the seconds that the context lasts to those of a part."""
  began = time.monotonic()
  try:
    yield
  finally:
    add(part, time.monotonic() - began)


def seconds() -> dict[str, float]:
  """The seconds of each part so far, in the order in which they were first added to."""
  return dict(_seconds)
