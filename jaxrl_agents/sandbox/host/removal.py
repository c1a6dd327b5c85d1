"""Removes folders in a thread, so that large ones hold up nobody."""

from __future__ import annotations

import fcntl
import logging
import os
import pathlib
import queue
import stat
import threading
from collections.abc import Callable

from jaxrl_agents.sandbox import overlay

_TIMEOUT_S = 5.0
"""Seconds in which work that is under way may end by itself before `close` interrupts it."""
_END_S = 30.0
Check = Callable[[], None]


class _Interrupted(Exception):
  """The session ends."""


class Remover:
  """Does one job after another in a thread. Invariant: what a job raises ends that job alone."""

  def __init__(self) -> None:
    self._jobs: queue.SimpleQueue[Callable[[Check], None] | None] = queue.SimpleQueue()
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._run, name="sandbox removals", daemon=True)
    self._thread.start()

  def put(self, job: Callable[[Check], None]) -> None:
    """Adds a job, which calls what it is given now and then."""
    self._jobs.put(job)

  def remove(self, path: pathlib.Path) -> None:
    """Adds the removal of a file or a tree; what cannot be removed is logged."""

    def job(check: Check) -> None:
      report([removed(path, check)])

    self.put(job)

  def close(self) -> None:
    """Ends the thread; what is not done by then is left."""
    self._jobs.put(None)
    self._thread.join(_TIMEOUT_S)
    self._stop.set()
    self._thread.join(_END_S)

  def _check(self) -> None:
    if self._stop.is_set():
      raise _Interrupted

  def _run(self) -> None:
    while job := self._jobs.get():
      try:
        job(self._check)
      except _Interrupted:
        return
      except Exception as error:  # whatever a policy left there: the next job has its turn
        report([f"{type(error).__name__}: {error}"])


def removed(path: pathlib.Path, check: Check = lambda: None) -> str:
  """Removes what it can of `path`; the reason why something is left, else ""."""
  try:
    overlay.remove(str(path), check)
  except OSError as error:
    return f"{error.filename or str(path)!r}: {error.strerror}"
  return ""


def report(problems: list[str]) -> bool:
  """Logs once what was not removed; whether there was any."""
  problems = [problem for problem in problems if problem]
  if problems:
    logging.getLogger(__name__).warning(
      "%d old folders of sandboxes could not be removed, the first for this reason: %s; the next "
      "session tries again. If that fails too, unmount it or take its attributes away (chattr -ia)",
      len(problems),
      problems[0],
    )
  return bool(problems)


def sweep(live: pathlib.Path, own: str, check: Check) -> None:
  """Removes what sessions left that were killed: a session's lock is free when it has ended.

  A folder without a lock is of no session: the lock is made before the folder, and removed after.
  """
  names = sorted(os.listdir(live))
  problems = []
  for name in names:
    check()
    stem = name.removesuffix(".lock")
    if stem == own or name.endswith(".new"):
      continue
    if name != stem:
      problems += _sweep_session(live, stem, check)
    elif not os.path.lexists(live / f"{name}.lock"):
      problems.append(removed(live / name, check))
  report(problems)


def _sweep_session(live: pathlib.Path, stem: str, check: Check) -> list[str]:
  lock = live / f"{stem}.lock"
  try:
    fd = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
  except FileNotFoundError:  # its session ended after the folder was listed
    return []
  except OSError as error:
    is_link = os.path.islink(lock)  # no session makes such a lock
    return [removed(lock, check) if is_link else f"{lock}: {error.strerror}"]
  try:
    if stat.S_ISREG(os.fstat(fd).st_mode):
      fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:  # its session lives
    os.close(fd)
    return []
  try:
    # Of a name like "...lock" the rest would lead out.
    problem = removed(live / stem, check) if stem.strip(".") else ""
    return [problem or removed(lock, check)]
  finally:
    os.close(fd)
