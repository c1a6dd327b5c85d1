"""Deadlines of a connection that uvicorn does not have: until a request has begun, and until what
was sent is read. Needs uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_S = 30.0
"""Seconds that a client has for the line and the headers of a request. Bodies have a deadline of
their own (`http_requests.BODY_S`), and between two requests uvicorn waits for five seconds."""

UNREAD_S = 300.0
"""Seconds after which a client is given up that has read nothing of a reply beyond what the buffers
of the system hold, a few megabytes."""


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
  """One connection of uvicorn. Invariant: it waits for its client with a deadline."""

  _until_request: asyncio.TimerHandle | None = None
  _until_read: asyncio.TimerHandle | None = None

  def connection_made(self, transport: Any) -> None:
    """Waits for a request."""
    super().connection_made(transport)
    self._expect_request()

  def data_received(self, data: bytes) -> None:
    """Takes data. Part of a head does not prolong the wait for the whole of it."""
    super().data_received(data)
    if self.cycle is None or self.cycle.response_complete:
      self._expect_request()
    elif self._until_request:
      self._until_request.cancel()
      self._until_request = None

  def pause_writing(self) -> None:
    """Waits until the client has read."""
    super().pause_writing()
    self._expect_reading()

  def resume_writing(self) -> None:
    """The client has read."""
    super().resume_writing()
    self._no_timers(self._until_read)

  def connection_lost(self, exc: Exception | None) -> None:
    """Waits for nothing more."""
    super().connection_lost(exc)
    self._no_timers(self._until_request, self._until_read)

  def _no_timers(self, *timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
      if timer:
        timer.cancel()

  def _expect_request(self) -> None:
    if self._until_request is None:
      self._until_request = self.loop.call_later(HEAD_S, self.transport.abort)

  def _expect_reading(self) -> None:
    left = self.transport.get_write_buffer_size()

    def check() -> None:
      if self.transport.get_write_buffer_size() >= left:
        self.transport.abort()
      else:
        self._expect_reading()

    self._until_read = self.loop.call_later(UNREAD_S, check)
