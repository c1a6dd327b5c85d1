"""A bash that lives as long as its sandbox, and the limits on what is run in it (agent side).

Commands go to bash as `eval 'text'` on a pipe; status and working directory come back on a pipe of
their own, which the command does not hold: an end is seen at once, whatever is left running in the
background. Working directory, variables and functions stay from one command to the next.

A command that outlives its time gets SIGINT; 0.4 s later SIGKILL; 0.4 s later, or when anything it
started is still there, everything in the sandbox is killed and a new shell starts where the old one
stood. A command can forge its own exit status; nothing may rest on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shlex
import signal
import time
from collections.abc import Callable
from typing import Any

from jaxrl_agents.sandbox import processes

BASH = "/usr/bin/bash"
GRACE_S = 0.4
TICK_S = 0.05
_READ_BYTES = 1 << 16
_OUT, _RESTORED, _STATUS = 7, 8, 9  # what bash calls two pipes and the state it begins with
_LOWEST_FD = 20  # of our own ends, so that none is where bash wants one
_MAX_STATUS_BYTES = 1 << 20
_STATE = "declare -p; declare -f; alias -p; shopt -p; set +o; trap -p; umask -p"


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
    if len(self._tail) > 4 * self._tail_bytes + _READ_BYTES:
      self._cut_tail()

  def _cut_tail(self) -> None:
    del self._tail[: max(0, len(self._tail) - self._tail_bytes)]

  def parts(self) -> tuple[bytes, bytes]:
    """Head and tail; what is missing between them is `total` less both."""
    self._cut_tail()
    return bytes(self._head), bytes(self._tail)


class Shell:
  """Invariant: `_pid` is a bash that waits for a command, or 0 and the next command starts one."""

  def __init__(self, folders: tuple[str, str], env: dict[str, str], state: str, bash: str):
    self._cwd, self._home = folders  # where to begin, and where if that is gone
    self._env, self._state, self._bash = dict(env), state, bash
    self._pid = 0
    self._command_fd = self._out_fd = self._status_fd = -1
    # Children that end wake the poll of a running command.
    self._wake_fd, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

  def run(
    self,
    command: str,
    timeout_s: float,
    *,
    max_bytes: int,
    max_drained_bytes: int,
    max_memory_bytes: int,
    host_fd: int,
    is_cancelled: Callable[[], bool],
  ) -> tuple[dict[str, Any], bytes]:
    """Runs `command`: the header and the body of the answer.

    The header has `code` (-1 where the shell did not live to tell), `why` it ended early ("" |
    timeout | cancelled | memory | output | shell_exit), `cwd`, `seconds`, `total` bytes of output
    and `head`, how many of the body were its beginning. `is_cancelled` is asked when `host_fd` has
    something to read.
    """
    start = time.monotonic()
    if not self._pid:
      self._start()
    before = processes.everyone()
    line = f"eval {shlex.quote(command)} </dev/null >&{_OUT} 2>&1 {_OUT}>&- {_STATUS}>&-"
    watch = _Watch(start + timeout_s, max_drained_bytes, max_memory_bytes)
    output = Output(max_bytes)
    status = self._converse(line, output, watch, before, (host_fd, is_cancelled))
    code = -1
    if status is None:
      self.stop()
      watch.why = watch.why or "shell_exit"
    else:
      code = self._note(status)
      if watch.why and not _clear(processes.everyone() - before):
        self.stop()
    head, tail = output.parts()
    answer = {
      "code": code,
      "why": watch.why,
      "cwd": self._cwd,
      "seconds": round(time.monotonic() - start, 6),
      "total": output.total,
      "head": len(head),
    }
    return answer, head + tail

  def state(self) -> str:
    """A script that gives another shell the variables, functions and options of this one."""
    if not self._pid:
      return self._state
    watch = _Watch(time.monotonic() + 5.0, _MAX_STATUS_BYTES, 1 << 62)
    line = f"{{ {_STATE}; }} >&{_STATUS} 2>/dev/null"
    status = self._converse(line, Output(0), watch, processes.everyone(), (-1, lambda: False))
    if status is None:
      self.stop()
      return self._state
    self._note(status)
    return os.fsdecode(status.rsplit(b"\0", 3)[0])

  @property
  def cwd(self) -> str:
    """Where the shell stood after the last command."""
    return self._cwd

  @property
  def is_alone(self) -> bool:
    """Whether no process but the shell is left."""
    return processes.everyone() <= {self._pid}

  def kill_all_but_shell(self) -> None:
    """What holds too much memory between commands is killed."""
    processes.send(processes.everyone() - {self._pid}, signal.SIGKILL)
    processes.reap()

  def stop(self) -> None:
    """Kills everything; the next command gets a new shell in the same directory."""
    processes.kill_everyone()
    for fd in (self._command_fd, self._out_fd, self._status_fd):
      if fd >= 0:
        os.close(fd)
    self._command_fd = self._out_fd = self._status_fd = -1
    self._pid = 0

  def _start(self) -> None:
    command_end, self._command_fd = _pipe()
    self._out_fd, out_end = _pipe()
    self._status_fd, status_end = _pipe()
    os.set_blocking(self._out_fd, False)
    state_fd = _file_of(self._state)
    dup = [(command_end, 0), (out_end, 1), (out_end, 2), (out_end, _OUT), (status_end, _STATUS)]
    dup.append((state_fd, _RESTORED))
    try:
      self._pid = os.posix_spawn(
        self._bash,
        ["bash", "--noprofile", "--norc"],
        self._env | {"PWD": self._cwd},
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in dup],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD],
      )
    finally:
      for fd in (command_end, out_end, status_end, state_fd):
        os.close(fd)
    quiet = f"</dev/null >/dev/null 2>&1 {_OUT}>&- {_STATUS}>&-"
    script = f". /dev/fd/{_RESTORED} {quiet}; " if self._state else ""
    script += f"exec {_RESTORED}<&-; "
    for folder in (self._cwd, self._home):
      script += f"cd -- {shlex.quote(folder)} 2>/dev/null || "
    self._write(script + "cd /\n")

  def _write(self, text: str) -> None:
    """To bash; raises nothing where it is gone already, which its pipes then tell."""
    with contextlib.suppress(BrokenPipeError):
      view = memoryview(os.fsencode(text))
      while view:
        view = view[os.write(self._command_fd, view) :]

  def _note(self, status: bytes) -> int:
    """Takes the working directory out of a status and returns the exit code."""
    _, code, cwd, _ = status.rsplit(b"\0", 3)
    self._cwd = os.fsdecode(cwd)
    return int(code)

  def _converse(
    self,
    line: str,
    output: Output,
    watch: _Watch,
    before: set[int],
    host: tuple[int, Callable[[], bool]],
  ) -> bytes | None:
    """Sends `line`, gathers until its status is whole; None when the shell is lost or given up."""
    end = f"\nbuiltin printf '\\0%s\\0%s\\0' \"$?\" \"$PWD\" >&{_STATUS}\n"
    pending = memoryview(os.fsencode(line + end))
    os.set_blocking(self._command_fd, False)
    poll = select.poll()
    for fd in (self._out_fd, self._status_fd, self._wake_fd, host[0]):
      if fd >= 0:
        poll.register(fd, select.POLLIN)
    poll.register(self._command_fd, select.POLLOUT)
    status, dead = bytearray(), False
    while True:
      ready = {fd for fd, _ in poll.poll(1e3 * max(0.0, min(TICK_S, watch.wait_s())))}
      if self._command_fd in ready:
        pending = _feed(self._command_fd, pending)
        if not pending:
          poll.unregister(self._command_fd)
      if self._out_fd in ready and not _drain(self._out_fd, output):
        poll.unregister(self._out_fd)
      if self._status_fd in ready:
        text = os.read(self._status_fd, _READ_BYTES)
        status += text
        dead = dead or not text or len(status) > _MAX_STATUS_BYTES
      if self._wake_fd in ready:
        with contextlib.suppress(BlockingIOError):
          os.read(self._wake_fd, _READ_BYTES)
        dead = self._pid in processes.reap() or dead
      if status.count(0) >= 3 and status.endswith(b"\0"):
        _drain(self._out_fd, output)
        return bytes(status)
      if dead:
        _drain(self._out_fd, output)
        return None
      if host[0] in ready and host[1]():
        watch.give_up("cancelled")
      if watch.check(output, before, self._pid):
        return None


class _Watch:
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


def _clear(survivors: set[int]) -> bool:
  """Kills what a command left running; whether that worked."""
  if not survivors:
    return True
  processes.send(survivors, signal.SIGKILL)
  time.sleep(0.005)
  processes.reap()
  return not processes.everyone() & survivors


def _pipe() -> tuple[int, int]:
  """Both ends of a pipe, out of the way of bash's numbers."""
  ends = os.pipe2(os.O_CLOEXEC)
  moved = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD) for fd in ends)
  for fd in ends:
    os.close(fd)
  return moved[0], moved[1]


def _file_of(text: str) -> int:
  """A file without a name that holds `text`."""
  fd = os.memfd_create("state")
  os.write(fd, os.fsencode(text))
  moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
  os.close(fd)
  return moved


def _feed(fd: int, pending: memoryview) -> memoryview:
  try:
    return pending[os.write(fd, pending) :]
  except BlockingIOError:
    return pending
  except BrokenPipeError:
    return pending[:0]


def _drain(fd: int, output: Output) -> bool:
  """Reads what is there, a megabyte at most; False at the end of the file."""
  for _ in range(16):
    try:
      text = os.read(fd, _READ_BYTES)
    except BlockingIOError:
      return True
    if not text:
      return False
    output.add(text)
    if len(text) < _READ_BYTES // 16:
      return True
  return True
