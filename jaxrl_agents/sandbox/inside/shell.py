"""A bash that lives as long as its sandbox, and the limits on what is run in it (agent side).

Commands go to bash on a pipe; status and working directory come back on a pipe of
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

from jaxrl_agents.sandbox.inside import processes
from jaxrl_agents.sandbox.inside.output import READ_BYTES, TICK_S, Output, Watch, drain

BASH = "/usr/bin/bash"
_OUT, _RESTORED, _STATUS = 7, 8, 9  # what bash calls two pipes and the state it begins with
_LOWEST_FD = 20  # of our own ends, so that none is where bash wants one
_MAX_STATUS_BYTES = 1 << 20
_MAX_PATH_BYTES = 4_096
_NOTICE_S = 1.0  # for bash to say what has ended
_STATE = "declare -p; declare -f; alias -p; shopt -p; set +o; trap -p; umask -p"
# Evaluates each text up to a NUL, and tells its state for an empty one. All of it is one line, so
# that messages name the same line numbers whatever went before.
_LOOP = (
  'while IFS= builtin read -r -d "" _line; do if [ "$_line" ]; then '
  f'eval "$_line" </dev/null >&{_OUT} 2>&1 {_OUT}>&- {_STATUS}>&-; '
  f"else {{ {_STATE}; }} >&{_STATUS} 2>/dev/null; fi; "
  f'builtin printf \'\\0%s\\0%s\\0\' "$?" "$PWD" >&{_STATUS}; done'
)


class Shell:
  """Invariant: `_pid` is a bash that waits for a command, or 0 and the next command starts one."""

  def __init__(self, folders: tuple[str, str], env: dict[str, str], state: str, bash: str):
    self._cwd, self._home = folders  # where to begin, and where if that is gone
    self._env, self._state, self._bash = dict(env), state, bash
    # Made before the filter is there, which lets nobody have memory that no process owns.
    self._state_fd = _file_of(state) if state else -1
    self._pid, self._exit_code = 0, -1
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

    The header has `code` (of the shell where it ended, -1 where it was killed), `why` it ended
    early ("" | timeout | cancelled | memory | output | shell_exit), `cwd`, `seconds`, `total` bytes
    of output and `head`, how many of the body were its beginning. `is_cancelled` is asked when
    `host_fd` has something to read.
    """
    start = time.monotonic()
    if not self._pid:
      self._start()
    self._exit_code = -1
    before = processes.everyone()
    watch = Watch(start + timeout_s, max_drained_bytes, max_memory_bytes)
    output = Output(max_bytes)
    status = self._converse(command or ":", output, watch, before, (host_fd, is_cancelled))
    code = self._exit_code
    if status is None:
      self.stop()
      watch.why = watch.why or "shell_exit"
    else:
      code = self._note(status)
      if watch.why and not (_clear(processes.everyone() - before) and self._tells_of_ends(output)):
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
    watch = Watch(time.monotonic() + 5.0, _MAX_STATUS_BYTES, 1 << 62)
    status = self._converse("", Output(0), watch, processes.everyone(), (-1, lambda: False))
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

  def _tells_of_ends(self, output: Output) -> bool:
    """Has bash say now, and not in the next command, which jobs were killed; whether it could."""
    watch = Watch(time.monotonic() + _NOTICE_S, _MAX_STATUS_BYTES, 1 << 62)
    return self._converse(":", output, watch, processes.everyone(), (-1, lambda: False)) is not None

  def _start(self) -> None:
    command_end, self._command_fd = pipe()
    self._out_fd, out_end = pipe()
    self._status_fd, status_end = pipe()
    os.set_blocking(self._out_fd, False)
    dup = [(command_end, 0), (out_end, 1), (out_end, 2), (out_end, _OUT), (status_end, _STATUS)]
    if self._state:
      dup.append((self._state_fd, _RESTORED))
    try:
      self._pid = os.posix_spawn(
        self._bash,
        ["bash", "--noprofile", "--norc", "-c", self._script(), "bash"],
        self._env | {"PWD": self._cwd},
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in dup],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD],
      )
    finally:
      for fd in (command_end, out_end, status_end):
        os.close(fd)
      if self._state:
        os.close(self._state_fd)
      self._state = ""  # once: a shell that is lost is followed by a fresh one

  def _script(self) -> str:
    """What bash does for life: restores the state, then evaluates what comes."""
    quiet = f"</dev/null >/dev/null 2>&1 {_OUT}>&- {_STATUS}>&-"
    script = f". /dev/fd/{_RESTORED} {quiet}; exec {_RESTORED}<&-; " if self._state else ""
    for folder in (self._cwd, self._home):
      script += f"cd -- {shlex.quote(folder)} 2>/dev/null || "
    return script + f"cd /; {_LOOP}"

  def _note(self, status: bytes) -> int:
    """Takes the working directory out of a status and returns the exit code.

    A command can write a status of its own. What no bash would write changes nothing: the directory
    stays, and the code is -1.
    """
    _, code, cwd, _ = status.rsplit(b"\0", 3)
    if cwd.startswith(b"/") and len(cwd) <= _MAX_PATH_BYTES:
      self._cwd = os.fsdecode(cwd)
    return int(code) if code.isdigit() and len(code) <= 3 else -1

  def _converse(
    self,
    line: str,
    output: Output,
    watch: Watch,
    before: set[int],
    host: tuple[int, Callable[[], bool]],
  ) -> bytes | None:
    """Sends `line`, gathers until its status is whole; None when the shell is lost or given up."""
    pending = memoryview(os.fsencode(line) + b"\0")
    os.set_blocking(self._command_fd, False)
    poll = select.poll()
    for fd in (self._out_fd, self._status_fd, self._wake_fd, host[0]):
      if fd >= 0:
        poll.register(fd, select.POLLIN)
    poll.register(self._command_fd, select.POLLOUT)
    status = bytearray()
    while True:
      ready = {fd for fd, _ in poll.poll(1e3 * max(0.0, min(TICK_S, watch.wait_s())))}
      if self._command_fd in ready:
        pending = _feed(self._command_fd, pending)
        if not pending:
          poll.unregister(self._command_fd)
      if self._out_fd in ready and not drain(self._out_fd, output):
        poll.unregister(self._out_fd)
      if self._status_fd in ready:
        text = os.read(self._status_fd, READ_BYTES)
        status += text
        if not text:  # `exec program`: the shell has become something that will end
          poll.unregister(self._status_fd)
      is_whole = status.count(0) >= 3 and status.endswith(b"\0")
      if is_whole or self._has_ended(ready) or len(status) > _MAX_STATUS_BYTES:
        drain(self._out_fd, output)
        return bytes(status) if is_whole else None
      if host[0] in ready and host[1]():
        watch.give_up("cancelled")
      if watch.check(output, before, self._pid):
        return None

  def _has_ended(self, ready: set[int]) -> bool:
    """Whether the shell is no more; collects children where one has ended."""
    if self._wake_fd not in ready:
      return False
    with contextlib.suppress(BlockingIOError):
      os.read(self._wake_fd, READ_BYTES)
    ended = processes.reap()
    self._exit_code = ended.get(self._pid, -1)
    return self._pid in ended


def _clear(survivors: set[int]) -> bool:
  """Kills what a command left running; whether that worked."""
  if not survivors:
    return True
  processes.send(survivors, signal.SIGKILL)
  time.sleep(0.005)
  processes.reap()
  return not processes.everyone() & survivors


def pipe() -> tuple[int, int]:
  """Both ends of a pipe, (read, write), out of the way of bash's numbers."""
  ends = os.pipe2(os.O_CLOEXEC)
  moved = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD) for fd in ends)
  for fd in ends:
    os.close(fd)
  return moved[0], moved[1]


def _file_of(text: str) -> int:
  """A file without a name that holds `text` and can neither grow nor change."""
  fd = os.memfd_create("state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
  view = memoryview(os.fsencode(text))
  while view:
    view = view[os.write(fd, view) :]
  seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
  fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
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
