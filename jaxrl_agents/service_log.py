"""What each service of a run does, and which other one it waits for: a line at each change.

    W/services/learner.jsonl
    {"service": "learner", "time": 1763.5, "does": "waits", "on": "sampler", "step": 3, ...}

A state lasts until the next line of the file. Only one process writes a file, any number read it,
also from other machines that share the disk. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

Tell = Callable[..., None]
"""`ServiceLog.now`, or `silent`."""

STARTS, ENDED, STOPPED = "starts", "ended", "stopped"
TAIL_BYTES = 4_000_000
"""Readers take at most so much of the end of a file."""

_FIELDS = ("service", "time", "does", "on", "host", "pid")


@dataclasses.dataclass(frozen=True)
class State:
  """What a service does from a moment on.

  Attributes:
    service: its name, "learner".
    time: of the change, seconds since the epoch.
    does: in a word or two, "learns".
    on: the service that it waits for; "" if it waits for none.
    facts: what else was told, {"step": 3}.
    host, pid: of its process.
  """

  service: str
  time: float
  does: str
  on: str
  facts: dict[str, Any]
  host: str
  pid: int

  @property
  def is_over(self) -> bool:
    """Whether the service does nothing any more, as far as is known here."""
    if self.does in (ENDED, STOPPED):
      return True
    return self.host == socket.gethostname() and not _is_alive(self.pid)


class ServiceLog:
  """Writes the states of one service. A full disk costs lines, and never the run.

  Args:
    folder: of the services of the run; made if missing.
    service: name, which no other process of the run may have.
  """

  def __init__(self, folder: pathlib.Path, service: str):
    self._path, self._service = folder / f"{service}.jsonl", service
    self._who = {"host": socket.gethostname(), "pid": os.getpid()}
    self._last: tuple[str, str, dict[str, Any]] | None = None
    with contextlib.suppress(OSError):
      folder.mkdir(parents=True, exist_ok=True)

  def now(self, does: str, on: str = "", **facts: Any) -> None:
    """From now on the service does this; nothing is written if it did so already."""
    if self._last == (does, on, facts):
      return
    self._last = does, on, facts
    record = {"service": self._service, "time": time.time(), "does": does, "on": on}
    line = json.dumps(facts | record | self._who) + "\n"
    with contextlib.suppress(OSError), self._path.open("ab+") as file:
      if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
        line = "\n" + line  # what a crash cut off ends there
      file.write(line.encode())


def silent(does: str, on: str = "", **facts: Any) -> None:
  """Writes nothing."""


@contextlib.contextmanager
def opened(folder: pathlib.Path, service: str) -> Iterator[Tell]:
  """Tells that a service starts, and at the end whether it ended or was stopped by an exception."""
  log = ServiceLog(folder, service)
  log.now(STARTS)
  try:
    yield log.now
  except BaseException:
    log.now(STOPPED)
    raise
  log.now(ENDED)


def read(folder: pathlib.Path) -> dict[str, list[State]]:
  """{service: its states, oldest first} of all files of a folder; lines that are damaged or not
  complete yet are left out.
  """
  found = {path.stem: _states(path) for path in sorted(folder.glob("*.jsonl"))}
  return {service: states for service, states in found.items() if states}


def newest(folder: pathlib.Path, service: str) -> State | None:
  """What a service did last; None if it never told."""
  states = map(_state, reversed(tail(folder / f"{service}.jsonl")))
  return next((state for state in states if state is not None), None)


def tail(path: pathlib.Path) -> list[bytes]:
  """The complete lines in the last TAIL_BYTES of a file that may be growing; none without it."""
  try:
    with path.open("rb") as file:
      start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
      file.seek(start)
      content = file.read()
  except OSError:
    return []
  lines = content.split(b"\n")[:-1]  # what follows the last end of a line is not complete
  return lines[1:] if start else lines


def _states(path: pathlib.Path) -> list[State]:
  return [state for line in tail(path) if (state := _state(line)) is not None]


def _state(line: bytes) -> State | None:
  try:
    record = json.loads(line)
    service, when, does, on, host, pid = (record.pop(name) for name in _FIELDS)
    texts = all(isinstance(each, str) for each in (service, does, on, host))
    if not texts or not isinstance(pid, int) or not math.isfinite(when):
      return None
    return State(service, float(when), does, on, record, host, pid)
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
    return None


def _is_alive(pid: int) -> bool:
  try:
    os.kill(pid, 0)
  except PermissionError:
    return True
  except (OSError, OverflowError):
    return False
  return True
