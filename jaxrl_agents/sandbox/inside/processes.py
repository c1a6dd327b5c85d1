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

_REAP_TIMEOUT_S = 2.0
_OF_A_PROCESS = (b"\nRssAnon:", b"\nVmSwap:", b"\nVmPTE:")
FILE_BYTES = 64 << 10
"""Bytes that are reckoned for an open file: what a pipe holds at most."""
_PLAIN_BUFFER_BYTES = 212_992


def _buffer_bytes(name: str) -> int:
  try:
    with open(f"/proc/sys/net/core/{name}", "rb") as file:
      return max(_PLAIN_BUFFER_BYTES, int(file.read()))
  except (OSError, ValueError):
    return _PLAIN_BUFFER_BYTES


SOCKET_BYTES = _buffer_bytes("rmem_default") + _buffer_bytes("wmem_default")
"""Bytes that are reckoned for a socket: what waits in it, unread and unsent. Read before a network
namespace is entered, in which some kernels do not tell them."""


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
  """Bytes of memory that these processes hold, and cannot hide.

  Their own pages and page tables are counted as they are. What the kernel keeps for them in pipes
  and sockets cannot be asked for at a bearable price, so that each open file and each socket of the
  namespace counts as full. Sockets in a namespace of others (no process 1) do not count.
  """
  total = _sockets() * SOCKET_BYTES if os.getpid() == 1 else 0
  for pid in pids:
    total += _held_bytes(f"/proc/{pid}")
  return total


def _sockets() -> int:
  """How many this network namespace has, those in flight and not yet accepted included."""
  try:
    with open("/proc/net/sockstat", "rb") as file:
      return int(file.readline().split()[2])
  except (OSError, ValueError, IndexError):
    return 0


def _held_bytes(folder: str) -> int:
  """What the process with this folder in /proc holds; 0 where it has ended."""
  with contextlib.suppress(OSError, ValueError, IndexError):
    text = _status(folder)
    if _OF_A_PROCESS[0] not in text:  # its first thread has ended, perhaps not the others
      for name in os.listdir(f"{folder}/task"):
        text = _status(f"{folder}/task/{name}")
        if _OF_A_PROCESS[0] in text:
          folder = f"{folder}/task/{name}"
          break
    kilobytes = sum(int(text.partition(name)[2].split(None, 1)[0]) for name in _OF_A_PROCESS)
    return 1024 * kilobytes + os.stat(f"{folder}/fd").st_size * FILE_BYTES
  return 0


def _status(folder: str) -> bytes:
  with open(f"{folder}/status", "rb") as file:
    return file.read(1 << 14)
