"""One connection to an MCP server, entered and left by a task of its own.

The scopes of anyio, which the client consists of, must be left by the task that entered them, while
episodes come and go in tasks of their own. So a task for each connection does nothing but open it,
wait, and close it; calls run in the tasks of those who make them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult
from mcp.types import Tool as Offered

from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.mcp_tools.process import ServerProcess, named_values
from jaxrl_agents.harness.mcp_tools.sandboxed import Sandbox, SandboxedProcess
from jaxrl_agents.harness.mcp_tools.written import MAX_BYTES

logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it would repeat what servers send
CLOSE_S = 8.0
"""A connection is closed within this time, or its task is cancelled."""
PROBE_S = 5.0
"""A server that does not even list its tools within this time after a late call is dead."""
MAX_TOOLS = 1_000
MAX_PAGES = 100


class CannotConnect(Exception):
  """A server cannot be started or reached, or does not speak the protocol."""


class Connection:
  """An open connection. Make it by `opened`, and `close` it.

  Attributes:
    tools: what the server offers.
    late: calls that passed their deadline since the last one that was answered.
  """

  def __init__(self, server: McpServer, box: Sandbox | None):
    self._server = server
    self._process: ServerProcess | SandboxedProcess | None = None
    if server.command:
      self._process = SandboxedProcess(server, box) if box is not None else ServerProcess(server)
    self._leave = asyncio.Event()
    self._client: Client | None = None
    self._failure = ""
    self.tools: tuple[Offered, ...] = ()
    self.late = 0

  @property
  def ended(self) -> str:
    """Why the server gives no more answers; "" while it does."""
    return (self._process.ended if self._process else "") or self._failure

  async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
    """Calls a tool; the caller sets the deadline. Raises what the client raises.

    A call that is cancelled here is cancelled at the server, by the notification of the protocol.
    """
    assert self._client is not None  # `opened` returns none without
    if self._process is not None:
      self._process.allow()
    result = await self._client.call_tool(name, dict(arguments))
    self.late = 0
    return result

  async def answers(self) -> bool:
    """Whether the server lists its tools within PROBE_S; newer versions of MCP have no ping."""
    if self.ended or self._client is None:
      return False
    try:
      async with asyncio.timeout(PROBE_S):
        await self._client.list_tools()
    except Exception:  # whatever the client raises
      return False
    return not self.ended

  async def close(self, *, hurry: bool = False) -> None:
    """Ends the connection, and the server if it is a program; at once if in a `hurry`."""
    if self._process is not None:
      self._process.hurry |= hurry
    self._leave.set()
    await asyncio.wait([self._task], timeout=CLOSE_S)
    if not self._task.done():
      self._task.cancel()
      await asyncio.wait([self._task], timeout=CLOSE_S)

  def _begin(self) -> asyncio.Future[None]:
    ready = asyncio.get_running_loop().create_future()
    self._task = asyncio.create_task(self._own(ready))
    return ready

  async def _own(self, ready: asyncio.Future[None]) -> None:
    """The life of the connection."""
    try:
      async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(self._server.start_s):
          self._client = await stack.enter_async_context(await self._made(stack))
          self.tools = await _listed(self._client)
        if self._process is not None:
          self._process.hurry = False
        ready.set_result(None)
        await self._leave.wait()
    except (Exception, asyncio.CancelledError) as error:
      self._failure = self._failure or self._cause(error)
      if not ready.done():
        ready.set_exception(CannotConnect(self._failure))
    else:
      self._failure = self._failure or "it was closed"

  async def _made(self, stack: contextlib.AsyncExitStack) -> Client:
    server = self._server
    transport: Any = self._process
    if transport is None:
      timeout = httpx2.Timeout(server.deadline_s, read=server.deadline_s + server.start_s)
      headers = named_values(server.name, server.headers, ":")
      http = httpx2.AsyncClient(
        headers=headers, timeout=timeout, event_hooks={"response": [_limit]}
      )
      await stack.enter_async_context(http)
      transport = streamable_http_client(server.url, http_client=http)
    return Client(transport, cache=None)

  def _cause(self, error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
      error = error.exceptions[0]
    if self._process is not None and self._process.ended:
      return self._process.ended
    if isinstance(error, TimeoutError):
      return f"it was not ready within start_s={self._server.start_s:g}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


class _Limited(httpx2.AsyncByteStream):
  """The body of an answer, which ends with an error where it is longer than MAX_BYTES."""

  def __init__(self, inner: httpx2.AsyncByteStream):
    self._inner = inner

  async def __aiter__(self) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in self._inner:
      size += len(chunk)
      if size > MAX_BYTES:
        raise httpx2.ReadError(f"an answer of more than {MAX_BYTES >> 20} MiB")
      yield chunk

  async def aclose(self) -> None:
    await self._inner.aclose()


async def _limit(response: httpx2.Response) -> None:
  response.stream = _Limited(response.stream)  # type: ignore[arg-type]


async def opened(server: McpServer, box: Sandbox | None = None) -> Connection:
  """A new connection to `server`, with its list of tools.

  Args:
    box: in which a sandboxed server runs.

  Raises:
    CannotConnect: there is none within `server.start_s`; says why.
  """
  if server.sandboxed != (box is not None):
    raise CannotConnect(f"there is {'no' if box is None else 'a'} sandbox for it")
  connection = Connection(server, box)
  ready = connection._begin()
  try:
    await asyncio.wait_for(asyncio.shield(ready), server.start_s + CLOSE_S)
  except TimeoutError as error:
    await connection.close(hurry=True)
    raise CannotConnect(f"it was not ready within start_s={server.start_s:g}") from error
  except asyncio.CancelledError:
    ready.cancel()
    await connection.close(hurry=True)
    raise
  return connection


async def _listed(client: Client) -> tuple[Offered, ...]:
  found: list[Offered] = []
  cursor: str | None = None
  for _ in range(MAX_PAGES):
    page = await client.list_tools(cursor=cursor)
    found += page.tools
    cursor = page.next_cursor
    if len(found) > MAX_TOOLS:
      break
    if cursor is None:
      return tuple(found)
  raise ValueError(
    f"its list of tools has no end (more than {MAX_TOOLS} tools or {MAX_PAGES} pages)"
  )
