"""An MCP server that is a program of this machine: its pipes, its limits and its end.

The program is started with a small environment and a folder of its own, and dies with the process
that started it. One that writes too much is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence

import anyio
from mcp.shared.message import SessionMessage

from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.mcp_tools.written import (
  LONG_LINE,
  MAX_LINE_BYTES,
  Written,
  line_of,
  message_of,
)

GRACE_S = 2.0
"""A server ends this soon after its input was closed, or is killed."""
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ")
_BOOT = (
  "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
  "os.getppid() == int(sys.argv[1]) or sys.exit(); os.execv(sys.argv[2], sys.argv[3:])"
)
"""PR_SET_PDEATHSIG, SIGKILL: a worker that is killed leaves no server behind."""


class ServerProcess:
  """The transport to a program, for `mcp.Client`: enter it to start the program, leave it to end
  it.

  Attributes:
    ended: why it gives no more messages; "" while it does.
    hurry: whether it is killed at the end without a time to finish.
  """

  def __init__(self, server: McpServer):
    self._server = server
    self.ended = ""
    self.hurry = True  # until it has answered once
    self._folder: tempfile.TemporaryDirectory[str] | None = None
    self._tasks: list[asyncio.Task[None]] = []
    self._written = Written()

  async def __aenter__(self) -> tuple[object, object]:
    """Starts the program.

    Raises:
      ValueError: it cannot be started; says why.
    """
    server = self._server
    self._folder = tempfile.TemporaryDirectory(prefix="mcp_", ignore_cleanup_errors=True)
    environment = environment_of(server, self._folder.name)
    path = shutil.which(server.command, path=environment.get("PATH"))
    if path is None:
      self._folder.cleanup()
      raise ValueError(
        f"MCP server {server.name!r}: there is no program {server.command!r} on the PATH; install "
        "it, or give its path as command"
      )
    begin = [sys.executable, "-ISc", _BOOT, str(os.getpid())]
    command = [*begin, os.path.abspath(path), server.command, *server.args]
    try:
      self._process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
        env=environment,
        cwd=server.cwd or self._folder.name,
        start_new_session=True,
      )
    except (OSError, ValueError) as error:
      self._folder.cleanup()
      raise ValueError(f"MCP server {server.name!r} cannot be started: {error}") from error
    self._to_client, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, self._from_client = anyio.create_memory_object_stream[SessionMessage](0)
    self._streams = (read, write)
    works = (self._read(), self._read_errors(), self._write())
    self._tasks = [asyncio.create_task(work) for work in works]
    return self._streams

  async def __aexit__(self, *_: object) -> None:
    process = self._process
    if process.stdin is not None:
      process.stdin.close()
    for task in self._tasks:
      task.cancel()
    if self.hurry or not await _ended(process, GRACE_S):
      _kill(process.pid, signal.SIGTERM if not self.hurry else signal.SIGKILL)
      if not await _ended(process, GRACE_S):
        _kill(process.pid, signal.SIGKILL)
        await _ended(process, GRACE_S)
    _kill(process.pid, signal.SIGKILL)  # what it has started and left behind
    await asyncio.gather(*self._tasks, return_exceptions=True)
    for stream in (*self._streams, self._to_client, self._from_client):
      await stream.aclose()
    process._transport.close()  # type: ignore[attr-defined]  # a descendant may hold the pipes
    if self._folder is not None:
      self._folder.cleanup()

  def allow(self) -> None:
    """Begins to count anew what the server writes."""
    self._written.allow()

  async def _read(self) -> None:
    """Hands on the messages; closes the stream, by which waiting calls fail, when they end."""
    assert self._process.stdout is not None
    async with self._to_client:
      while not self.ended:
        try:
          line = await self._process.stdout.readuntil(b"\n")
        except asyncio.LimitOverrunError:
          return self._flooded(LONG_LINE)
        except (asyncio.IncompleteReadError, OSError):
          return await self._gone()
        if not self._counts(len(line), lines=1):
          return None
        message = message_of(line)
        if message is None:
          continue
        try:
          await self._to_client.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
          return None

  async def _read_errors(self) -> None:
    assert self._process.stderr is not None
    while chunk := await self._process.stderr.read(1 << 16):
      if not self._counts(len(chunk), errors=chunk):
        return

  async def _write(self) -> None:
    assert self._process.stdin is not None
    async with self._from_client:
      async for message in self._from_client:
        try:
          self._process.stdin.write(line_of(message))
          await self._process.stdin.drain()
        except (OSError, RuntimeError):
          return await self._gone()

  def _counts(self, size: int, *, lines: int = 0, errors: bytes = b"") -> bool:
    """Counts what was written; False if that is too much."""
    if problem := self._written.add(size, lines=lines, errors=errors):
      self._flooded(problem)
    return not self.ended

  def _flooded(self, why: str) -> None:
    self.ended = self.ended or why
    self.hurry = True
    _kill(self._process.pid, signal.SIGKILL)

  async def _gone(self) -> None:
    await _ended(self._process, GRACE_S)
    code = self._process.returncode
    how = "closed its output" if code is None else f"ended with exit status {code}"
    await asyncio.wait(self._tasks[1:2], timeout=GRACE_S)  # the rest of its standard error
    self.ended = self.ended or f"it {how}{self._written.last_words()}"


def environment_of(server: McpServer, folder: str) -> dict[str, str]:
  """The variables of a server's program: few of this process, a home in `folder`, and its own.

  Raises:
    ValueError: a variable that they refer to is not set.
  """
  own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
  own |= {"HOME": folder, "TMPDIR": folder}
  return own | named_values(server.name, server.env, "=")


def named_values(server: str, entries: Sequence[str], separator: str) -> dict[str, str]:
  """{name: value} of entries "name<separator>value", with each ${NAME} in a value replaced by the
  variable of this process.

  Raises:
    ValueError: it is not set.
  """
  found = {}
  for entry in entries:
    name, _, value = entry.partition(separator)
    found[name.strip()] = _filled(server, value.strip() if separator == ":" else value)
  return found


def _filled(server: str, value: str) -> str:
  head, begins, rest = value.partition("${")
  name, ends, tail = rest.partition("}")
  if not begins or not ends:
    return value
  if name not in os.environ:
    raise ValueError(
      f"MCP server {server!r} needs the variable {name!r}, which is not set in the process that "
      "connects to it; export it before the run and its workers start"
    )
  return head + os.environ[name] + _filled(server, tail)


async def _ended(process: asyncio.subprocess.Process, within_s: float) -> bool:
  """Whether the program ends in time; its children may hold its pipes for longer."""
  deadline = asyncio.get_running_loop().time() + within_s
  while process.returncode is None and asyncio.get_running_loop().time() < deadline:
    await asyncio.sleep(0.005)
  return process.returncode is not None


def _kill(pid: int, number: int) -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(pid, number)
