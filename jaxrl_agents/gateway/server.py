"""Serves a gateway over HTTP in the running event loop (uvicorn, of the extra `gateway`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

START_S = 30.0
STOP_S = 5.0
MISSING = "the gateway needs starlette and uvicorn: pip install 'jaxrl_agents[gateway]'"


class Server:
  """One HTTP server. Invariant: between `start` and `stop` it answers at `url`.

  Args:
    app: an ASGI application.
    host: address to listen at; 127.0.0.1 is reached from this machine alone.
    port: 0 for any free one.
  """

  def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0):
    self._app, self._host, self._port = app, host, port
    self._task: asyncio.Task[None] | None = None
    self.url = ""

  async def start(self) -> None:
    """Listens.

    Raises:
      ValueError: uvicorn is not installed.
      OSError: the address is taken.
      TimeoutError: the server did not start within START_S.
    """
    try:
      import uvicorn

      from jaxrl_agents.gateway.connections import Connection
    except ModuleNotFoundError:
      raise ValueError(MISSING) from None
    family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off, which costs 40 ms a reply.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((self._host, self._port))
    config = uvicorn.Config(
      self._app,
      http=Connection,
      ws="none",
      log_level="warning",
      lifespan="off",
      timeout_graceful_shutdown=int(STOP_S),
    )
    self._server = uvicorn.Server(config)
    # Signals are for the process that this server is a part of.
    self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    self._task = asyncio.create_task(self._server.serve([listening]))
    async with asyncio.timeout(START_S):
      while not self._server.started:
        if self._task.done():
          self._task.result()
          raise OSError("the HTTP server ended while it started")
        await asyncio.sleep(0.01)
    port = listening.getsockname()[1]
    self.url = f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}"

  async def stop(self) -> None:
    """Ends, within about STOP_S."""
    if self._task is None:
      return
    self._server.should_exit = True
    done, _ = await asyncio.wait([self._task], timeout=2 * STOP_S)
    if not done:
      self._task.cancel()
    self._task = None
