"""Calls of one MCP server, each within its deadline; a connection that fails is replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST, REQUEST_TIMEOUT, CallToolResult

from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.argument_check import clipped
from jaxrl_agents.harness.mcp_tools import results
from jaxrl_agents.harness.mcp_tools.connection import CLOSE_S, CannotConnect, Connection, opened
from jaxrl_agents.harness.mcp_tools.listing import Listed, digest_of, listed_tools
from jaxrl_agents.harness.mcp_tools.sandboxed import Sandbox
from jaxrl_agents.harness.tools import Tool, ToolError

PAUSE_S = 5.0
"""For so long after a failed start, no other one is tried."""
LATE_CALLS = 8
"""A shared server that lets so many calls in a row be late does its work no more."""
MAX_ARGUMENT_CHARS = 300_000
MAX_CAUSE_CHARS = 400
_LOST = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INVALID_REQUEST)
"""Errors after which a connection is of no use: closed, silent, or of an ended HTTP session."""


class Session:
  """A server and the tools that the run has of it. Invariant: at most one connection is open.

  Args:
    server: to connect to.
    tools: of the run's listing.
    starts: how many servers of this process may start at the same time.
    box: the present sandbox of the episode, in which a sandboxed server runs.
  """

  def __init__(
    self,
    server: McpServer,
    tools: Sequence[Listed],
    starts: asyncio.Semaphore,
    box: Callable[[], Sandbox | None] = lambda: None,
  ):
    self._server, self._listed, self._starts, self._box = server, tools, starts, box
    self._connection: Connection | None = None
    self._opening = asyncio.Lock()
    self._failed_at, self._failure = -PAUSE_S, ""
    self._closing: set[asyncio.Task[None]] = set()

  @property
  def tools(self) -> list[Tool]:
    """The tools, to be run by `harness.tools.run_call`."""
    # A lost connection may be found twice, and a start may wait for others.
    deadline_s = 2 * (self._server.start_s + self._server.deadline_s) + 4 * CLOSE_S
    return [
      Tool(each.spec, self._runs(each), deadline_s, MAX_ARGUMENT_CHARS, strict=False)
      for each in self._listed
    ]

  async def connect(self) -> Connection:
    """The open connection, or a new one.

    Raises:
      CannotConnect: the server cannot be started or reached, or its tools are not those of the run.
    """
    async with self._opening:
      if self._connection is not None and not self._connection.ended:
        return self._connection
      self._drop(self._connection)
      if time.monotonic() - self._failed_at < PAUSE_S:
        raise CannotConnect(self._failure)
      box = self._box()
      try:
        async with self._starts:
          made = await opened(self._server, box)
        await self._check(made)
      except CannotConnect as error:
        if box is not None and box.is_gone:  # another one may take its place at once
          raise
        self._failed_at, self._failure = time.monotonic(), str(error)
        raise
      self._connection = made
      return made

  async def close(self) -> None:
    """Ends the connection, and those that were replaced."""
    connection, self._connection = self._connection, None
    if connection is not None:
      await connection.close()
    await asyncio.gather(*self._closing, return_exceptions=True)

  def _runs(self, listed: Listed) -> Any:
    async def run(**arguments: Any) -> str:
      result = await self._call(listed, arguments)
      text = results.text_of(result)
      if result.is_error:
        raise ToolError(text)
      return text

    return run

  async def _call(self, listed: Listed, arguments: Mapping[str, Any]) -> CallToolResult:
    """The result of a call.

    Raises:
      ToolError: there is none; says why, and what became of the server.
    """
    name, server = listed.spec.name, self._server
    for is_last in (not listed.repeatable, True):
      try:
        connection = await self.connect()
      except CannotConnect as error:
        raise ToolError(f"{name} cannot be used now: {_short(error)}.") from error
      try:
        async with asyncio.timeout(server.deadline_s):
          return await connection.call(listed.name, arguments)
      except TimeoutError as error:
        outcome = await self._gave_up(connection)
        raise ToolError(
          f"{name} took longer than {server.deadline_s:g} s. {outcome} Ask for something simpler."
        ) from error
      except MCPError as error:
        if error.code not in _LOST and not connection.ended:
          raise ToolError(f"{name} was refused: {_short(error)}.") from error
        cause = await self._cause(connection, error)
        self._drop(connection)
        if is_last:
          raise ToolError(f"{name} failed: {cause}. {self._anew()}") from error
      except Exception as error:  # a result that breaks the protocol
        raise ToolError(f"{name} returned what cannot be read: {_short(error)}.") from error
    raise AssertionError("the last try returns or raises")

  async def _gave_up(self, connection: Connection) -> str:
    """What became of the server after a late call, which was cancelled there.

    Others have calls on the connection to a shared server: it stays unless the server is dead.
    """
    connection.late += 1
    if not self._server.stateful and connection.late < LATE_CALLS and await connection.answers():
      return "The call was cancelled."
    self._drop(connection)
    return self._anew()

  def _anew(self) -> str:
    lost = " and what it held is lost" if self._server.stateful else ""
    how = "The connection to its server is made" if self._server.url else "Its server is started"
    return f"{how} anew{lost}."

  async def _cause(self, connection: Connection, error: MCPError) -> str:
    """Why a connection was lost. The end of a program may be known a moment after its pipe's."""
    for _ in range(20):
      if connection.ended:
        break
      await asyncio.sleep(0.05)
    return _short(connection.ended or error)

  async def _check(self, made: Connection) -> None:
    """Raises CannotConnect where the server's tools are not those of the run's listing."""
    try:
      found = listed_tools(self._server, made.tools, checks=False)
      is_same = digest_of(found) == digest_of(self._listed)
      why = "" if is_same else "it offers other tools than when the run began"
    except ValueError as error:
      why = str(error)
    if why:
      await made.close(hurry=True)
      raise CannotConnect(f"{why}; let it offer the same, or begin another run")

  def _drop(self, connection: Connection | None) -> None:
    """Forgets a connection; a task of its own ends it, so that nobody waits."""
    if connection is None:
      return
    if self._connection is connection:
      self._connection = None
    task = asyncio.create_task(connection.close(hurry=True))
    self._closing.add(task)
    task.add_done_callback(self._closing.discard)


def _short(error: object) -> str:
  return clipped(str(error), MAX_CAUSE_CHARS).rstrip(".")
