"""The process inside a sandbox that does what the host asks: its process 1, where it has its own.

It answers one request at a time: exec, read, write, delta, find, reset, and start, exchange and
stop of programs. Everything it says is untrusted to the host. When the host is gone it ends, and
all of the sandbox with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Any, NamedTuple

from jaxrl_agents.sandbox import delta, kernel
from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.inside import confine, files, processes
from jaxrl_agents.sandbox.inside.programs import Programs
from jaxrl_agents.sandbox.inside.shell import BASH, Shell
from jaxrl_agents.sandbox.wire import Wire, WireError, encode

_IDLE_TICK_S = 0.25


class Place(NamedTuple):
  """Where a sandbox's files are, as the agent sees them.

  Attributes:
    root: an open directory with `work` and `tmp`: what changed, or all there is.
    is_whole: it holds all there is; what is not there is gone.
    prefix: in front of every path; "" where the sandbox has a root of its own.
  """

  root: int
  is_whole: bool = False
  prefix: str = ""


class Agent:
  """Invariant: the shell, the programs and all they started live in this process's care alone.

  Args:
    place: where the sandbox's files are.
    limits: the fields of `records.SandboxLimits`.
  """

  def __init__(
    self, wire: Wire, shell: Shell, programs: Programs, place: Place, limits: dict[str, Any]
  ):
    self._wire, self._shell, self._programs = wire, shell, programs
    self._place, self._limits = place, limits
    self._operations = {
      "exec": self._exec,
      "read": self._read,
      "write": self._write,
      "delta": self._delta,
      "find": self._find,
      "reset": self._reset,
      "start": self._start,
      "exchange": self._exchange,
      "stop": self._stop,
      "ping": lambda header, body: ({}, b""),
    }

  def serve(self) -> None:
    """Answers until the host is gone."""
    self._wire.send({"ready": True})
    while True:
      self._wait()
      header, body = self._wire.receive()
      operation = self._operations.get(header.get("op", ""))
      if operation is None:  # a late "cancel" of what has ended already
        continue
      try:
        answer = operation(header, body)
      except Refused as error:
        answer = {"refused": str(error)}, b""
      except WireError:  # a part of the answer may be out: the frames would not match any more
        raise
      except Exception as error:  # whatever a request makes fail costs the request alone
        answer = {"refused": f"the agent failed: {type(error).__name__}: {error}"}, b""
      if answer is not None:
        self._wire.send(*answer)

  def _wait(self) -> None:
    """Until a request comes; meanwhile ended children are collected and memory is watched."""
    poll = select.poll()
    poll.register(self._wire.read_fd, select.POLLIN)
    while not poll.poll(None if self._shell.is_alone else 1e3 * _IDLE_TICK_S):
      processes.reap()
      if processes.memory_bytes(processes.everyone()) > self._limits["memory_bytes"]:
        self._shell.kill_all_but_shell()

  def _exec(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    answer, output = self._shell.run(
      os.fsdecode(body),
      header["timeout_s"],
      max_bytes=header["max_bytes"],
      max_drained_bytes=self._limits["drained_bytes"],
      max_memory_bytes=self._limits["memory_bytes"],
      host_fd=self._wire.read_fd,
      is_cancelled=lambda: self._wire.receive()[0].get("op") == "cancel",
    )
    return answer | {"cwd": self._inner(answer["cwd"])}, output

  def _inner(self, path: str) -> str:
    return path.removeprefix(self._place.prefix) or "/"

  def _read(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    size, content = files.read(
      self._place.prefix + header["path"], header["offset"], header["limit"]
    )
    return {"size": size}, content

  def _write(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    files.write(self._place.prefix + header["path"], body, header["mode"])
    return {}, b""

  def _delta(self, header: dict[str, Any], body: bytes) -> None:
    """Sends the changes, with the shell's state if wanted, while all else stands still."""
    state = self._shell.state() if header["state"] else ""
    processes.stop_everyone()
    try:
      with _reading_everything():
        entries, total = delta.gather(
          self._place.root, header["max_bytes"], is_whole=self._place.is_whole
        )
        head = {"entries": entries, "state": state, "cwd": self._inner(self._shell.cwd)}
        self._wire.write(encode(head, total))
        try:
          delta.send_files(self._place.root, entries, self._wire.write_fd)
        except OSError as error:  # half a body is out: nothing can be said any more
          raise WireError(f"a file of the changes could not be read: {error}") from None
    finally:
      processes.continue_everyone()

  def _find(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    needles = [bytes.fromhex(text) for text in header["needles"]]
    found, searched = files.find(self._place.prefix or "/", needles, header["limit"])
    return {"found": found, "searched": searched}, b""

  def _reset(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    self._shell.stop()
    return {}, b""

  def _start(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    try:
      cwd = self._place.prefix + header["cwd"]
      return {"number": self._programs.start(header["command"], header["env"], cwd)}, b""
    except OSError as error:
      raise Refused(f"the program cannot be started: {error.strerror}") from None

  def _exchange(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    output, errors, has_ended = self._programs.exchange(
      header["number"], body, header["wait_s"], header["max_bytes"]
    )
    return {"output": len(output), "ended": has_ended}, output + errors

  def _stop(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    self._programs.stop(header["number"])
    return {}, b""


@contextlib.contextmanager
def _reading_everything():
  """Modes do not keep the agent from reading, where it holds the right to that."""
  right = 1 << kernel.CAP_DAC_READ_SEARCH
  held = True
  try:
    kernel.set_capabilities(permitted=right, effective=right)
  except OSError:
    held = False  # no namespace of our own: what may not be read is refused
  try:
    yield
  finally:
    if held:
      kernel.set_capabilities(permitted=right, effective=0)


def run(wire: Wire, place: Place, *, bash: str = BASH, is_filtered: bool = True) -> None:
  """Serves `wire` and ends the process. The first frame says how: env, state, cwd and limits.

  Args:
    is_filtered: system calls are, from the moment on when a policy could make any.
  """
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGPIPE, signal.SIG_IGN)
  os.umask(0o022)
  try:
    settings, _ = wire.receive()
    folders = (place.prefix + settings["cwd"], place.prefix + "/work")
    shell = Shell(folders, settings["env"], settings["state"], bash)
    if is_filtered:
      try:
        confine.filter_calls(wire.write_fd)
      except OSError as error:
        wire.send({"failed": str(error)})
        return
    limits = settings["limits"]
    programs = Programs(shell, bash, limits["memory_bytes"], wire.read_fd)
    Agent(wire, shell, programs, place, limits).serve()
  except (WireError, OSError):
    pass
  finally:
    processes.kill_everyone()
    os._exit(0)
