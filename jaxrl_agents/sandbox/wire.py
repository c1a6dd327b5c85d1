"""What host and agent say to one another: frames of a JSON header and raw bytes, over a pipe pair.

A frame is the length of the header and of the body (two big-endian uint32), then both. The host
asks, the agent answers; the agent's answers are untrusted and are checked by whoever reads them.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

LENGTHS = struct.Struct("!II")
MAX_HEADER_BYTES = 1 << 26
MAX_BODY_BYTES = 1 << 31


class WireError(Exception):
  """The other end is gone or does not speak this protocol."""


def encode(header: dict[str, Any], body_bytes: int) -> bytes:
  """All of a frame but its body. Raises WireError for what is too long."""
  text = json.dumps(header, separators=(",", ":")).encode()
  if len(text) > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
    raise WireError(f"a frame of {len(text)} + {body_bytes} bytes is too long")
  return LENGTHS.pack(len(text), body_bytes) + text


def decode(text: bytes) -> dict[str, Any]:
  """The header of a frame. Raises WireError where it is no JSON object."""
  try:
    header = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise WireError(f"a header of {len(text)} bytes is not JSON: {error}") from None
  if not isinstance(header, dict):
    raise WireError(f"a header is {type(header).__name__}, not an object")
  return header


class Wire:
  """The agent's end, blocking. Invariant: between calls both ways stand at a frame's start."""

  def __init__(self, read_fd: int, write_fd: int):
    self.read_fd, self.write_fd = read_fd, write_fd

  def receive(self) -> tuple[dict[str, Any], bytes]:
    """The next frame. Raises WireError when the host is gone."""
    header_bytes, body_bytes = LENGTHS.unpack(self._read(LENGTHS.size))
    if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
      raise WireError(f"a frame of {header_bytes} + {body_bytes} bytes is too long")
    header = decode(self._read(header_bytes))
    return header, self._read(body_bytes)

  def send(self, header: dict[str, Any], body: bytes = b"") -> None:
    """Sends one frame. Raises OSError when the host is gone."""
    self.write(encode(header, len(body)) + body)

  def write(self, text: bytes) -> None:
    """Sends a part of a frame."""
    view = memoryview(text)
    while view:
      view = view[os.write(self.write_fd, view) :]

  def _read(self, count: int) -> bytes:
    parts = []
    while count:
      part = os.read(self.read_fd, min(count, 1 << 20))
      if not part:
        raise WireError("the host is gone")
      parts.append(part)
      count -= len(part)
    return b"".join(parts)
