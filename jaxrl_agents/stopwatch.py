"""Seconds that named parts of this process took, for the summary of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_seconds: dict[str, float] = {}


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
