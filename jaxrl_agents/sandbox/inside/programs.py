"""Programs whose standard input and output the host uses, beside the shell (agent side).

A program lives until it ends, the host stops it, or everything in the sandbox is killed: by the
limit on memory, or because a command of the shell could not be stopped otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time

from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.inside import processes
from jaxrl_agents.sandbox.inside.output import READ_BYTES, TICK_S
from jaxrl_agents.sandbox.inside.shell import Shell, pipe

_SCRIPT = 'cd -- "$1" && shift && exec -- "$@"'


@dataclasses.dataclass
class _Program:
  """A program's process group, our ends of its pipes (-1 once closed), and input that waits."""

  pid: int
  input: int
  output: int
  errors: int
  waiting: bytearray = dataclasses.field(default_factory=bytearray)


class Programs:
  """Invariant: `_running` has the programs whose output has not ended.

  Args:
    shell: kills what holds too much memory.
    bash: changes to the folder of a program and looks it up.
    host_fd: where the host's next request would come.
  """

  def __init__(self, shell: Shell, bash: str, memory_bytes: int, host_fd: int):
    self._shell, self._bash = shell, bash
    self._memory_bytes, self._host_fd = memory_bytes, host_fd
    self._running: dict[int, _Program] = {}
    self._started = 0

  def start(self, command: list[str], env: dict[str, str], cwd: str) -> int:
    """Starts a program in the folder `cwd`; the number by which it is called from then on."""
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
      ends = []  # of its input, output and errors: (read, write)
      for reader, writer in ((theirs, ours), (ours, theirs), (ours, theirs)):
        ends.append(pipe())
        reader.callback(os.close, ends[-1][0])
        writer.callback(os.close, ends[-1][1])
      dup = [(ends[0][0], 0), (ends[1][1], 1), (ends[2][1], 2)]
      pid = os.posix_spawn(
        self._bash,
        ["bash", "--noprofile", "--norc", "-c", _SCRIPT, "bash", cwd, *command],
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in dup],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD],
      )
      ours.pop_all()
    program = _Program(pid, ends[0][1], ends[1][0], ends[2][0])
    for fd in (program.input, program.output, program.errors):
      os.set_blocking(fd, False)
    self._started += 1
    self._running[self._started] = program
    return self._started

  def exchange(
    self, number: int, text: bytes, wait_s: float, max_bytes: int
  ) -> tuple[bytes, bytes, bool]:
    """Writes `text` to a program's input: (its output, its errors, whether its output has ended).

    Waits for the end of a line, for `wait_s` seconds at most, and reads at most `max_bytes` of
    either. What a program does not read now is written at the next exchange.
    """
    program = self._running.get(number)
    if program is None:
      raise Refused("this program has ended")
    program.waiting += text
    output, errors = bytearray(), bytearray()
    deadline = time.monotonic() + wait_s
    look_at = time.monotonic() + TICK_S
    while program.output >= 0 and max(len(output), len(errors)) < max_bytes:
      left_s, has_line = deadline - time.monotonic(), b"\n" in output
      ready = self._ready(program, 0.0 if has_line else max(0.0, min(left_s, TICK_S)))
      if program.input in ready:
        _write(program)
      if program.output in ready and not _read(program.output, output, max_bytes):
        os.close(program.output)
        program.output = -1
      if program.errors in ready and not _read(program.errors, errors, max_bytes):
        os.close(program.errors)
        program.errors = -1
      if self._host_fd in ready or (not ready and (has_line or left_s <= 0)):
        break
      if time.monotonic() >= look_at:
        look_at = time.monotonic() + TICK_S
        if processes.memory_bytes(processes.everyone()) > self._memory_bytes:
          self._shell.kill_all_but_shell()
    has_ended = program.output < 0
    if has_ended:
      if program.errors >= 0:
        _read(program.errors, errors, max_bytes)
      self.stop(number)
    return bytes(output), bytes(errors), has_ended

  def stop(self, number: int) -> None:
    """Kills a program and what it has started in its process group, if it still runs."""
    program = self._running.pop(number, None)
    if program is None:
      return
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(program.pid, signal.SIGKILL)
    for fd in (program.input, program.output, program.errors):
      if fd >= 0:
        os.close(fd)
    processes.reap()

  def _ready(self, program: _Program, wait_s: float) -> set[int]:
    """The descriptors of a program, and the host's, that something can be done with."""
    poll = select.poll()
    for fd in (program.output, program.errors, self._host_fd):
      if fd >= 0:
        poll.register(fd, select.POLLIN)
    if program.waiting and program.input >= 0:
      poll.register(program.input, select.POLLOUT)
    return {fd for fd, _ in poll.poll(1e3 * wait_s)}


def _write(program: _Program) -> None:
  try:
    del program.waiting[: os.write(program.input, program.waiting)]
  except BlockingIOError:
    pass
  except OSError:  # nobody will read it
    os.close(program.input)
    program.input = -1
    program.waiting.clear()


def _read(fd: int, into: bytearray, max_bytes: int) -> bool:
  """Adds what there is, up to `max_bytes` of all; False at the end of the file."""
  try:
    part = os.read(fd, min(READ_BYTES, max_bytes - len(into)))
  except BlockingIOError:
    return True
  into += part
  return bool(part) or len(into) >= max_bytes
