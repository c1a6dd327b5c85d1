"""What a server that is a program has written: counted, and read as messages.

The client of the package `mcp` reads lines of any length and any number of messages. Here a server
that writes too much is given up, with a reason that the policy reads.
"""

from __future__ import annotations

from mcp import types
from mcp.shared.message import SessionMessage

MAX_LINE_BYTES = 8 << 20
"""Longest message. An image of 6 MB fits, in base64."""
MAX_BYTES = 16 << 20
MAX_MESSAGES = 10_000
"""Most that a server may write, also on its standard error, from one call to the next."""
LONG_LINE = f"it wrote a line of more than {MAX_LINE_BYTES >> 20} MiB"
_KEPT_ERROR_CHARS = 300


class Written:
  """Counts what a server writes, and keeps the end of what it wrote to its standard error."""

  def __init__(self) -> None:
    self._bytes, self._lines, self._errors = 0, 0, b""

  def allow(self) -> None:
    """Begins to count anew."""
    self._bytes = self._lines = 0

  def add(self, size: int, *, lines: int = 0, errors: bytes = b"") -> str:
    """Counts `size` bytes with `lines` ends of lines; says what is too much, else ""."""
    self._bytes, self._lines = self._bytes + size, self._lines + lines
    self._errors = (self._errors + errors)[-4 * _KEPT_ERROR_CHARS :]
    if self._bytes > MAX_BYTES:
      return f"it wrote more than {MAX_BYTES >> 20} MiB without being asked again"
    if self._lines > MAX_MESSAGES:
      return f"it wrote more than {MAX_MESSAGES} lines without being asked again"
    return ""

  def last_words(self) -> str:
    """What it wrote to its standard error at last, as the end of a sentence; "" for nothing."""
    said = " ".join(self._errors.decode(errors="replace").split())[-_KEPT_ERROR_CHARS:]
    return f", and wrote: {said}" if said else ""


def message_of(line: bytes) -> SessionMessage | None:
  """The message in a line; None for a banner, for what a library has printed, and for progress and
  logs, which nobody reads.
  """
  try:
    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
  except ValueError:
    return None
  return None if isinstance(message, types.JSONRPCNotification) else SessionMessage(message)


def line_of(message: SessionMessage) -> bytes:
  """A message as the line that a server reads."""
  text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
  return text.encode() + b"\n"
