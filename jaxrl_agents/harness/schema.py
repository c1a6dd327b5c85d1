"""msgpack with schemas: what comes from another process is checked, and never unpickled.

A message is an array whose first element names its kind. A record is the array of its fields in
order, and a numpy array is [dtype, shape, bytes]. What was parsed from JSON (arguments of a tool
call, facts of a task) is JSON text, since msgpack has no large integers.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import reprlib
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np

from jaxrl_agents.types import Task, ToolCall

MAX_BYTES = 1 << 30
"""Most bytes of a message. The routing of a group is the largest part of the largest message."""

Check = Callable[[Any, str], Any]
"""(what msgpack read, its place in the message) -> the value; raises MessageError."""

_FROM_JSON: Mapping[type, str] = {ToolCall: "arguments", Task: "facts"}
"""The field of a record that is sent as JSON text."""


class MessageError(ValueError):
  """A message that does not fit its schema; the text names the place and what was found there."""


def encode(message: tuple[Any, ...]) -> bytes:
  """The bytes of a message.

  Raises:
    MessageError: it holds what no message can, such as tool arguments that are not JSON, or is
      longer than MAX_BYTES.
  """
  try:
    packed = msgpack.packb(message, default=_plain, unicode_errors="surrogatepass")
  except (TypeError, ValueError, OverflowError, RecursionError) as error:
    raise MessageError(f"a {message[0]!r} message cannot be sent: {error}") from error
  if len(packed) > MAX_BYTES:
    raise MessageError(
      f"a {message[0]!r} message of {len(packed)} bytes cannot be sent, at most {MAX_BYTES}; have "
      "fewer rollouts in a group (learner.group_size), or shorter ones"
    )
  return packed


def decode(packed: bytes, kinds: Mapping[str, tuple[Check, ...]]) -> tuple[Any, ...]:
  """The message that `encode` made bytes of. Its arrays are read-only.

  Args:
    packed: its bytes.
    kinds: {kind: a check for each of the parts that follow its name}.

  Raises:
    MessageError: the bytes are not a message of these kinds.
  """
  try:
    found = msgpack.unpackb(packed, use_list=False, unicode_errors="surrogatepass")
  except Exception as error:  # msgpack raises its own errors, ValueError, TypeError and others
    raise MessageError(
      f"{len(packed)} bytes that are not msgpack ({type(error).__name__}: {error})"
    ) from None
  if not isinstance(found, tuple) or not found or not isinstance(found[0], str):
    raise MessageError(f"{_shown(found)} where a message begins with the name of its kind")
  kind, *content = found
  if kind not in kinds:
    raise MessageError(f"a message of the kind {_shown(kind)}; known are {sorted(kinds)}")
  checks = kinds[kind]
  if len(content) != len(checks):
    raise MessageError(f"{kind}: {len(content)} parts where it has {len(checks)}")
  places = (f"{kind}[{i}]" for i in range(len(checks)))
  return (kind, *(check(c, p) for check, c, p in zip(checks, content, places, strict=True)))


def _plain(value: Any) -> Any:
  """What msgpack can pack in the place of a record, an array or a number of numpy."""
  if isinstance(value, np.ndarray):
    return [_name(value.dtype), value.shape, value.tobytes()]
  if name := _FROM_JSON.get(type(value)):
    value = dataclasses.replace(value, **{name: json.dumps(dict(getattr(value, name)))})
  if dataclasses.is_dataclass(value):
    kind: Any = type(value)
    return [getattr(value, name) for name in _fields(kind)]
  if isinstance(value, np.generic):
    return value.item()
  if isinstance(value, Mapping):
    return dict(value)
  raise TypeError(f"it has no place for a {type(value).__name__}")


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
  """The names of the fields of a dataclass, in order."""
  return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _name(dtype: np.dtype) -> str:
  """The name of a dtype, which numpy makes anew each time."""
  return dtype.name


def fail(place: str, wanted: str, found: Any) -> typing.NoReturn:
  """Raises MessageError for what was found at a place."""
  raise MessageError(f"{place}: {wanted} is needed, not {_shown(found)}")


def _shown(found: Any) -> str:
  """The beginning of a value; of a long text no more is looked at."""
  if isinstance(found, str | bytes):
    return repr(found[:40]) + "..." * (len(found) > 40)
  return reprlib.repr(found)


def text(found: Any, place: str) -> str:
  """A text."""
  return found if isinstance(found, str) else fail(place, "text", found)


def flag(found: Any, place: str) -> bool:
  """True or false."""
  return found if isinstance(found, bool) else fail(place, "true or false", found)


def number(found: Any, place: str) -> float:
  """A number, as a float."""
  if isinstance(found, int | float):  # a flag counts as 0 or 1, as in Python
    return float(found)
  fail(place, "a number", found)


def integer(low: int, high: int = (1 << 63) - 1) -> Check:
  """A check for an integer from `low` to `high`."""

  def check(found: Any, place: str) -> int:
    if isinstance(found, int) and not isinstance(found, bool) and low <= found <= high:
      return found
    fail(place, f"an integer from {low} to {high}", found)

  return check


def one_of(*names: str) -> Check:
  """A check for one of these texts."""
  return lambda found, place: found if found in names else fail(place, " or ".join(names), found)


def many(each: Check) -> Check:
  """A check for an array, each element of which passes a check."""

  def check(found: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(found, tuple):
      fail(place, "an array", found)
    return tuple(each(item, f"{place}[{i}]") for i, item in enumerate(found))

  return check


def numbers(found: Any, place: str) -> dict[str, float]:
  """A map from texts to numbers, as floats."""
  if not isinstance(found, dict):
    fail(place, "a map of numbers", found)
  return {text(k, place): number(v, f"{place}[{_shown(k)}]") for k, v in found.items()}


def json_object(found: Any, place: str) -> dict[str, Any]:
  """The object of a JSON text."""
  try:
    value = json.loads(text(found, place))
  except (ValueError, RecursionError) as error:
    raise MessageError(f"{place}: not JSON ({error})") from None
  return value if isinstance(value, dict) else fail(place, "a JSON object", value)


def array(dtype: type[np.generic], dimensions: int = 1) -> Check:
  """A numpy array of this dtype and number of dimensions."""
  wanted = np.dtype(dtype)

  def check(found: Any, place: str) -> np.ndarray:
    if not isinstance(found, tuple) or len(found) != 3:
      fail(place, "[dtype, shape, bytes]", found)
    name, shape, data = found
    if name != wanted.name:
      fail(f"{place}.dtype", wanted.name, name)
    if not isinstance(shape, tuple) or len(shape) != dimensions:
      fail(f"{place}.shape", f"{dimensions} lengths", shape)
    size = wanted.itemsize
    for length in shape:
      size *= integer(0, MAX_BYTES)(length, f"{place}.shape")
    if not isinstance(data, bytes) or len(data) != size:
      fail(f"{place}.bytes", f"{size} bytes for the shape {shape}", data)
    array = np.frombuffer(data, wanted).reshape(shape)
    if wanted.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
      raise MessageError(f"{place}.bytes: flags other than 0 and 1")
    return array

  return check


def optional(check: Check) -> Check:
  """A check for nothing, or what passes a check."""
  return lambda found, place: None if found is None else check(found, place)


def record(kind: type, checks: Mapping[str, Check]) -> Check:
  """A dataclass, with a check for each of its fields."""
  names = [field.name for field in dataclasses.fields(kind)]
  assert names == list(checks), (kind, names)  # a new field needs a check

  def check(found: Any, place: str) -> Any:
    if not isinstance(found, tuple) or len(found) != len(names):
      fail(place, f"a {kind.__name__} of {len(names)} fields", found)
    pairs = zip(checks.items(), found, strict=True)
    return kind(**{name: one(value, f"{place}.{name}") for (name, one), value in pairs})

  return check
