"""An MCP server that is a program in the sandbox of an episode.

A policy may have taken it over, by what else runs in that sandbox: what it writes is bounded as
with other programs, and the schemas that it gives for its results, by which the client would check
them, are not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import anyio
from mcp import types
from mcp.shared.message import SessionMessage

from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.mcp_tools.process import named_values
from jaxrl_agents.harness.mcp_tools.written import (
  LONG_LINE,
  MAX_LINE_BYTES,
  Written,
  line_of,
  message_of,
)

EXCHANGE_S = 0.1
"""A sandbox waits so long for an answer of a server before it does what else it is asked."""
STOP_S = 5.0


class Program(Protocol):
  """A program in a sandbox; see `sandbox.host.program`."""

  @property
  def is_gone(self) -> bool: ...

  async def exchange(self, text: bytes, wait_s: float) -> tuple[bytes, bytes, bool]: ...

  async def stop(self) -> None: ...


class Sandbox(Protocol):
  """What a server needs of a sandbox; see `sandbox.host.sandbox`."""

  @property
  def is_gone(self) -> bool: ...

  async def start_program(
    self, command: Sequence[str], *, env: Mapping[str, str], cwd: str = "/work"
  ) -> Program: ...


class SandboxedProcess:
  """The transport to a program in a sandbox, for `mcp.Client`, as `process.ServerProcess` is.

  Attributes:
    hurry: without effect: it is killed, and writes no more once its calls are answered.
  """

  def __init__(self, server: McpServer, box: Sandbox):
    self._server, self._box = server, box
    self._why = ""
    self.hurry = True
    self._program: Program | None = None
    self._written = Written()
    self._line = bytearray()
    self._unanswered: set[Any] = set()

  @property
  def ended(self) -> str:
    """Why it gives no more messages; "" while it does."""
    return self._why or ("its sandbox ended" if self._box.is_gone else "")

  async def __aenter__(self) -> tuple[object, object]:
    """Starts the program.

    Raises:
      Exception: of the sandbox, which cannot start it.
    """
    server = self._server
    self._program = await self._box.start_program(
      [server.command, *server.args],
      env=named_values(server.name, server.env, "="),
      cwd=server.cwd or "/work",
    )
    self._to_client, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, self._from_client = anyio.create_memory_object_stream[SessionMessage](0)
    self._streams = (read, write)
    self._task = asyncio.create_task(self._converse(self._program))
    return self._streams

  async def __aexit__(self, *_: object) -> None:
    self._task.cancel()
    await asyncio.gather(self._task, return_exceptions=True)
    for stream in (*self._streams, self._to_client, self._from_client):
      await stream.aclose()
    if self._program is not None and not self._box.is_gone:
      with contextlib.suppress(Exception):  # a sandbox that cannot do it has ended or will
        async with asyncio.timeout(STOP_S):
          await self._program.stop()

  def allow(self) -> None:
    """Begins to count anew what the server writes."""
    self._written.allow()

  async def _converse(self, program: Program) -> None:
    """Passes messages to and fro; closes the streams, by which waiting calls fail, at the end.

    The sandbox is busy with the server only while an answer is due.
    """
    async with self._to_client, self._from_client:
      while not self.ended:
        try:
          messages = [] if self._unanswered else [await self._from_client.receive()]
          with contextlib.suppress(anyio.WouldBlock):
            while True:
              messages.append(self._from_client.receive_nowait())
        except anyio.EndOfStream:
          return
        for each in messages:
          if isinstance(each.message, types.JSONRPCRequest):
            self._unanswered.add(each.message.id)
        try:
          text = b"".join(map(line_of, messages))
          output, errors, has_ended = await program.exchange(
            text, EXCHANGE_S if self._unanswered else 0.0
          )
        except Exception as error:  # whatever a sandbox raises
          self._why = f"its sandbox failed: {error}"
          return
        try:
          await self._take(output, errors)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
          return
        if has_ended:
          self._why = self._why or f"it ended{self._written.last_words()}"

  async def _take(self, output: bytes, errors: bytes) -> None:
    """Hands the messages of `output` on."""
    lines = output.split(b"\n")
    size = len(output) + len(errors)
    self._why = self._written.add(size, lines=len(lines) - 1, errors=errors)
    for i, part in enumerate(lines):
      self._line += part
      if len(self._line) > MAX_LINE_BYTES:
        self._why = self._why or LONG_LINE
      if self._why:
        return
      if i < len(lines) - 1:
        line, self._line = bytes(self._line), bytearray()
        await self._hand_on(line)

  async def _hand_on(self, line: bytes) -> None:
    found = message_of(line)
    if found is None:
      return
    message = found.message
    if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
      self._unanswered.discard(message.id)
    if isinstance(message, types.JSONRPCResponse):
      tools = message.result.get("tools")
      for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
          tool.pop("outputSchema", None)
          tool.pop("output_schema", None)
    await self._to_client.send(found)
