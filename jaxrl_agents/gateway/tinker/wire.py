"""The wire format of Protocol Buffers, as far as Tinker's messages need it.

A message is a sequence of fields; each begins with the varint `number * 8 + kind`. Kind 0 is a
varint, 1 eight bytes, 2 a length and so many bytes (text, bytes, messages, packed numbers), 5 four
bytes. Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5

Value = int | bytes
"""The value of a field: a number for VARINT; the bytes themselves for all other kinds."""

_MAX_VARINT_BYTES = 10


def fields(raw: bytes | memoryview) -> Iterator[tuple[int, Value]]:
  """The fields of a message, (number, value), in their order.

  Raises:
    ValueError: the bytes are no message: they end inside a field, or a field has another kind.
  """
  view, at = memoryview(raw), 0
  while at < len(view):
    tag, at = _varint(view, at)
    number, kind = tag >> 3, tag & 7
    if kind == VARINT:
      value, at = _varint(view, at)
      yield number, value
      continue
    if kind == BYTES:
      size, at = _varint(view, at)
    elif kind in (EIGHT_BYTES, FOUR_BYTES):
      size = 8 if kind == EIGHT_BYTES else 4
    else:
      raise ValueError(f"field {number} has kind {kind}, which no message of Tinker's has")
    if at + size > len(view):
      raise ValueError(f"field {number} ends {at + size - len(view)} bytes after the message")
    yield number, bytes(view[at : at + size])
    at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
  """(the number that begins at a place, the place after it)."""
  value = 0
  for i in range(_MAX_VARINT_BYTES):
    if at + i >= len(view):
      raise ValueError("the message ends inside a number")
    byte = view[at + i]
    value |= (byte & 0x7F) << (7 * i)
    if byte < 0x80:
      return value & 0xFFFF_FFFF_FFFF_FFFF, at + i + 1
  raise ValueError(f"a number has more than {_MAX_VARINT_BYTES} bytes")


def signed(value: int) -> int:
  """An int32 or int64 of its varint, which is that of its two's complement in 64 bits."""
  return value - (1 << 64) if value >> 63 else value


def numbers(value: Value) -> list[int]:
  """The values of a repeated integer field, packed or a single one."""
  if isinstance(value, int):
    return [signed(value)]
  found, at, view = [], 0, memoryview(value)
  while at < len(view):
    number, at = _varint(view, at)
    found.append(signed(number))
  return found


def double(value: Value) -> float:
  """A double of its eight bytes.

  Raises:
    ValueError: there are not eight.
  """
  if isinstance(value, int) or len(value) != 8:
    raise ValueError("a field that holds a double has another kind")
  return float(struct.unpack("<d", value)[0])


def blob(value: Value) -> bytes:
  """The bytes of a field that holds bytes, text or a message.

  Raises:
    ValueError: it holds a number.
  """
  if isinstance(value, int):
    raise ValueError("a field that holds bytes, text or a message is a number")
  return value


def write_varint(value: int) -> bytes:
  """A number, which may be negative, as a varint."""
  value &= 0xFFFF_FFFF_FFFF_FFFF
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


def write(number: int, value: int | float | str | bytes) -> bytes:
  """A field: an int as a varint, a float as a double, text and bytes by their length."""
  if isinstance(value, int):
    return write_varint(number << 3 | VARINT) + write_varint(value)
  if isinstance(value, float):
    return write_varint(number << 3 | EIGHT_BYTES) + struct.pack("<d", value)
  raw = value.encode() if isinstance(value, str) else value
  return write_varint(number << 3 | BYTES) + write_varint(len(raw)) + raw
