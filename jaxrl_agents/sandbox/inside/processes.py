"""The processes that an agent answers for: all of its namespace, or all of its descendants.

An agent that is process 1 of a namespace may signal everything in it at once. Anywhere else
`kill(-1)` would reach the user's other programs, so descendants are looked up one by one; the agent
adopts orphans, so that none of them gets away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

_PAGE = os.sysconf("SC_PAGE_SIZE")
_REAP_TIMEOUT_S = 2.0


def everyone() -> set[int]:
  """Process ids of all but this process."""
  me = os.getpid()
  pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {me}
  return pids if me == 1 else _descendants(me, pids)


def _descendants(root: int, pids: set[int]) -> set[int]:
  parents = {pid: parent for pid in pids if (parent := _parent(pid))}
  found, grew = {root}, True
  while grew:
    new = {pid for pid, parent in parents.items() if parent in found} - found
    found |= new
    grew = bool(new)
  return found - {root}


def _parent(pid: int) -> int:
  try:
    with open(f"/proc/{pid}/stat", "rb") as file:
      return int(file.read().rpartition(b")")[2].split()[1])
  except (OSError, IndexError, ValueError):
    return 0


def send(pids: set[int], number: int) -> None:
  """Sends a signal to each of `pids` that still lives."""
  for pid in pids:
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.kill(pid, number)


def stop_everyone() -> None:
  """SIGSTOP to all but this process."""
  _send_all(signal.SIGSTOP)


def continue_everyone() -> None:
  """SIGCONT to all but this process."""
  _send_all(signal.SIGCONT)


def _send_all(number: int) -> None:
  if os.getpid() == 1:
    with contextlib.suppress(ProcessLookupError):
      os.kill(-1, number)
  else:
    send(everyone(), number)


def kill_everyone() -> bool:
  """SIGKILL to all but this process until none is left; False if some are after two seconds.

  One pass is not enough where a process forks faster than signals are sent one by one.
  """
  deadline = time.monotonic() + _REAP_TIMEOUT_S
  while time.monotonic() < deadline:
    _send_all(signal.SIGKILL)
    reap()
    if not everyone():
      return True
    time.sleep(0.001)
  return False


def reap() -> dict[int, int]:
  """Collects children that have ended, adopted ones too: {process id: exit code, or -signal}."""
  ended: dict[int, int] = {}
  while True:
    try:
      pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
      return ended
    if not pid:
      return ended
    ended[pid] = os.waitstatus_to_exitcode(status)


def memory_bytes(pids: set[int]) -> int:
  """Bytes of memory that belong to these processes alone: resident, and of no file."""
  total = 0
  for pid in pids:
    with contextlib.suppress(OSError, ValueError, IndexError):
      with open(f"/proc/{pid}/statm", "rb") as file:
        fields = file.read(200).split()
      total += (int(fields[1]) - int(fields[2])) * _PAGE
  return total
