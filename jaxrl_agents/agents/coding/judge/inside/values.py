"""Values on the connection between the process that runs tests and the one that runs tested code.

Plain data (numbers, strings, bytes, None, and containers of exactly the types list, tuple, set,
frozenset and dict) is copied. Anything else, also an instance of a subclass of these, travels as a
reference to an object that stays in its process. Dictionaries of `collections` are copied out of
the tested code, but not into it, where their changes would be lost. A frame is the length of a JSON
text (big-endian uint32), then the text.
"""

from __future__ import annotations

import collections
import json
import math
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

MAX_FRAME_BYTES = 8 << 20
MAX_DEPTH = 24
_LENGTH = struct.Struct("!I")
_MAX_JSON_INTEGER = 1 << 60
_CONTAINERS: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z"}
_BUILDERS: dict[str, Callable[[Iterable[Any]], Any]] = {"l": list, "t": tuple, "s": set,
                                                        "z": frozenset}  # fmt: skip
DICTIONARIES: dict[type, str] = {
  collections.Counter: "Counter",
  collections.OrderedDict: "OrderedDict",
  collections.defaultdict: "defaultdict",
}
_BUILDERS_OF_DICTIONARIES: dict[str, Callable[[dict[Any, Any]], Any]] = {
  "Counter": collections.Counter,
  "OrderedDict": collections.OrderedDict,
  "defaultdict": lambda content: collections.defaultdict(None, content),
}
_SINGLETONS: dict[str, Any] = {"...": Ellipsis, "NotImplemented": NotImplemented}


class Broken(Exception):
  """The other process has ended, or sent what this protocol does not know."""


def encode(value: Any, refer: Callable[[Any], list[Any]], depth: int = 0) -> Any:
  """The JSON form of a value; `refer` gives that of an object that is not plain data.

  Raises:
    ValueError: containers are nested deeper than MAX_DEPTH, as those are that contain themselves.
  """
  kind = type(value)
  if value is None or kind is bool or kind is str:
    return value
  if kind is int:
    return value if abs(value) < _MAX_JSON_INTEGER else ["i", hex(value)]
  if kind is float:
    return value if math.isfinite(value) else ["f", repr(value)]
  if depth > MAX_DEPTH:
    raise ValueError(f"a value is nested deeper than {MAX_DEPTH}")
  inner = lambda item: encode(item, refer, depth + 1)
  if kind in _CONTAINERS:
    return [_CONTAINERS[kind], [inner(item) for item in value]]
  if kind is dict:
    return ["d", [[inner(key), inner(item)] for key, item in value.items()]]
  if kind is bytes or kind is bytearray:
    return ["b" if kind is bytes else "y", value.hex()]
  if kind is complex:
    return ["c", repr(value.real), repr(value.imag)]
  if kind is range or kind is slice:
    return ["r" if kind is range else "x", *map(inner, (value.start, value.stop, value.step))]
  for name, singleton in _SINGLETONS.items():
    if value is singleton:
      return ["n", name]
  return refer(value)


def decode(sent: Any, resolve: Callable[[list[Any]], Any], depth: int = 0) -> Any:
  """The value of a JSON form; `resolve` finds the object of a reference.

  Raises:
    Broken: `encode` writes no such form.
  """
  if sent is None or isinstance(sent, (bool, int, float, str)):
    return sent
  inner = lambda item: decode(item, resolve, depth + 1)
  try:
    if not isinstance(sent, list) or depth > MAX_DEPTH + 1:
      raise TypeError
    tag, rest = sent[0], sent[1:]
    if tag in _BUILDERS:
      return _BUILDERS[tag](map(inner, rest[0]))
    if tag == "d":
      return {inner(key): inner(item) for key, item in rest[0]}
    if tag in _BUILDERS_OF_DICTIONARIES:
      return _BUILDERS_OF_DICTIONARIES[tag]({inner(key): inner(item) for key, item in rest[0]})
    if tag == "i":
      return int(rest[0], 16)
    if tag == "f":
      return float(rest[0])
    if tag == "c":
      return complex(float(rest[0]), float(rest[1]))
    if tag in ("b", "y"):
      return (bytes if tag == "b" else bytearray).fromhex(rest[0])
    if tag in ("r", "x"):
      return (range if tag == "r" else slice)(*map(inner, rest))
    if tag == "n":
      return _SINGLETONS[rest[0]]
    return resolve(sent)
  except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
    raise Broken(f"a value has no known form: {str(sent)[:200]}") from error


def send(fd: int, message: Any) -> None:
  """Writes one frame. Raises Broken if it is too long or the other process has ended."""
  text = json.dumps(message, separators=(",", ":")).encode()
  if len(text) > MAX_FRAME_BYTES:
    raise Broken(f"a value of {len(text)} bytes is more than {MAX_FRAME_BYTES}")
  view = memoryview(_LENGTH.pack(len(text)) + text)
  try:
    while view:
      view = view[os.write(fd, view) :]
  except OSError as error:
    raise Broken(f"the other process has ended: {error}") from None


def receive(fd: int) -> list[Any]:
  """Reads one frame. Raises Broken if there is none, or it is no list."""
  (length,) = _LENGTH.unpack(_read(fd, _LENGTH.size))
  if length > MAX_FRAME_BYTES:
    raise Broken(f"a value of {length} bytes is more than {MAX_FRAME_BYTES}")
  try:
    message = json.loads(_read(fd, length))
  except (ValueError, RecursionError) as error:
    raise Broken(f"a frame is not JSON: {error}") from None
  if not isinstance(message, list) or not message:
    raise Broken("a frame is no list")
  return message


def _read(fd: int, count: int) -> bytes:
  parts = []
  while count:
    try:
      part = os.read(fd, min(count, 1 << 20))
    except OSError as error:
      raise Broken(f"the other process has ended: {error}") from None
    if not part:
      raise Broken("the other process has ended")
    parts.append(part)
    count -= len(part)
  return b"".join(parts)
