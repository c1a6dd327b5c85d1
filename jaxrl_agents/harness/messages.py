"""What worker processes send to the main process: msgpack, checked against a schema on receipt.

A worker handles the text of a policy, so nothing that it sends is unpickled: unpickling runs code.
A message is an array whose first element names its kind; `_KINDS` has the schema of the rest. A
record is the array of its fields in order, and a numpy array is [dtype, shape, bytes]. The
arguments of a tool call are JSON text, as the policy wrote them, since msgpack has no large
integers. In the other direction messages are pickles: a worker trusts the main process.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np

from jaxrl_agents.types import (
  Message,
  Role,
  SamplingLimits,
  Segment,
  ToolCall,
  Trajectory,
)

MAX_BYTES = 1 << 30
"""Of a message. The routing of a group is the largest part of the largest message."""
_MAX_GENERATIONS = 4
"""Trajectories, children of them, and so on: sub-agents have none so far."""

Check = Callable[[Any, str], Any]
"""(what msgpack read, its place in the message) -> the value; raises MessageError."""


class MessageError(ValueError):
  """A message that does not fit its schema; the text names the place and what was found there."""


def encode(message: tuple[Any, ...]) -> bytes:
  """The bytes of a message.

  Raises:
    MessageError: it holds what no message can, such as tool arguments that are not JSON.
  """
  try:
    return msgpack.packb(message, default=_plain, unicode_errors="surrogatepass")
  except (TypeError, ValueError, OverflowError, RecursionError) as error:
    raise MessageError(f"a {message[0]!r} message cannot be sent: {error}") from error


def decode(packed: bytes) -> tuple[Any, ...]:
  """The message that `encode` made bytes of. Its arrays are read-only.

  Raises:
    MessageError: the bytes are not a message that a worker sends.
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
  if kind not in _KINDS:
    raise MessageError(f"a message of the kind {_shown(kind)}; a worker sends {sorted(_KINDS)}")
  checks = _KINDS[kind]
  if len(content) != len(checks):
    raise MessageError(f"{kind}: {len(content)} parts where it has {len(checks)}")
  places = (f"{kind}[{i}]" for i in range(len(checks)))
  return (kind, *(check(c, p) for check, c, p in zip(checks, content, places, strict=True)))


def _plain(value: Any) -> Any:
  """What msgpack can pack in the place of a record, an array or a number of numpy."""
  if isinstance(value, ToolCall):
    value = dataclasses.replace(value, arguments=json.dumps(dict(value.arguments)))  # type: ignore[arg-type]
  if dataclasses.is_dataclass(value):
    return [getattr(value, field.name) for field in dataclasses.fields(value)]
  if isinstance(value, np.ndarray):
    return [value.dtype.name, value.shape, value.tobytes()]
  if isinstance(value, np.generic):
    return value.item()
  if isinstance(value, Mapping):
    return dict(value)
  raise TypeError(f"it has no place for a {type(value).__name__}")


def _fail(place: str, wanted: str, found: Any) -> typing.NoReturn:
  raise MessageError(f"{place}: {wanted} is needed, not {_shown(found)}")


def _shown(found: Any) -> str:
  """The beginning of a value; of a long text no more is looked at."""
  if isinstance(found, str | bytes):
    return repr(found[:40]) + "..." * (len(found) > 40)
  return reprlib.repr(found)


def _text(found: Any, place: str) -> str:
  return found if isinstance(found, str) else _fail(place, "text", found)


def _flag(found: Any, place: str) -> bool:
  return found if isinstance(found, bool) else _fail(place, "true or false", found)


def _number(found: Any, place: str) -> float:
  if isinstance(found, int | float):  # a flag counts as 0 or 1, as in Python
    return float(found)
  _fail(place, "a number", found)


def _integer(low: int, high: int = (1 << 63) - 1) -> Check:
  def check(found: Any, place: str) -> int:
    if isinstance(found, int) and not isinstance(found, bool) and low <= found <= high:
      return found
    _fail(place, f"an integer from {low} to {high}", found)

  return check


def _one_of(*names: str) -> Check:
  return lambda found, place: found if found in names else _fail(place, " or ".join(names), found)


def _many(each: Check) -> Check:
  def check(found: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(found, tuple):
      _fail(place, "an array", found)
    return tuple(each(item, f"{place}[{i}]") for i, item in enumerate(found))

  return check


def _numbers(found: Any, place: str) -> dict[str, float]:
  if not isinstance(found, dict):
    _fail(place, "a map of numbers", found)
  return {_text(k, place): _number(v, f"{place}[{_shown(k)}]") for k, v in found.items()}


def _arguments(found: Any, place: str) -> dict[str, Any]:
  try:
    value = json.loads(_text(found, place))
  except (ValueError, RecursionError) as error:
    raise MessageError(f"{place}: not JSON ({error})") from None
  return value if isinstance(value, dict) else _fail(place, "a JSON object", value)


def _array(dtype: type[np.generic], dimensions: int = 1) -> Check:
  """A numpy array of this dtype and number of dimensions."""
  wanted = np.dtype(dtype)

  def check(found: Any, place: str) -> np.ndarray:
    if not isinstance(found, tuple) or len(found) != 3:
      _fail(place, "[dtype, shape, bytes]", found)
    name, shape, data = found
    if name != wanted.name:
      _fail(f"{place}.dtype", wanted.name, name)
    if not isinstance(shape, tuple) or len(shape) != dimensions:
      _fail(f"{place}.shape", f"{dimensions} lengths", shape)
    size = wanted.itemsize
    for length in shape:
      size *= _integer(0, MAX_BYTES)(length, f"{place}.shape")
    if not isinstance(data, bytes) or len(data) != size:
      _fail(f"{place}.bytes", f"{size} bytes for the shape {shape}", data)
    array = np.frombuffer(data, wanted).reshape(shape)
    if wanted.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
      raise MessageError(f"{place}.bytes: flags other than 0 and 1")
    return array

  return check


def _optional(check: Check) -> Check:
  return lambda found, place: None if found is None else check(found, place)


def _record(record: type, checks: Mapping[str, Check]) -> Check:
  """A dataclass, with a check for each of its fields."""
  names = [field.name for field in dataclasses.fields(record)]
  assert names == list(checks), (record, names)  # a new field needs a check

  def check(found: Any, place: str) -> Any:
    if not isinstance(found, tuple) or len(found) != len(names):
      _fail(place, f"a {record.__name__} of {len(names)} fields", found)
    pairs = zip(checks.items(), found, strict=True)
    return record(**{name: one(value, f"{place}.{name}") for (name, one), value in pairs})

  return check


_LIMITS = _record(
  SamplingLimits,
  {
    "max_new_tokens": _integer(-(1 << 31)),  # an engine refuses what it cannot serve, with a reason
    "stop_tokens": _many(_integer(0)),
    "temperature": _number,
    "top_p": _number,
    "seed": _integer(0, (1 << 31) - 1),
    "deadline_s": _number,
    "policy": _text,
    "routed_tokens": _integer(0),
  },
)

_TOOL_CALL = _record(
  ToolCall,
  {"id": _text, "name": _text, "arguments": _arguments, "error": _text, "label": _text},
)

_MESSAGE = _record(
  Message,
  {
    "role": _one_of(*typing.get_args(Role)),
    "content": _text,
    "tool_calls": _many(_TOOL_CALL),
    "tool_call_id": _text,
    "tokens": _optional(_array(np.int32)),
    "ephemeral": _flag,
    "reasoning": _text,
  },
)

_SEGMENT_FIELDS = _record(
  Segment,
  {
    "tokens": _array(np.int32),
    "loss_mask": _array(np.bool_),
    "logprobs": _array(np.float32),
    "versions": _array(np.int32),
    "routing": _optional(_array(np.uint16, 3)),
    "began": _integer(-1, (1 << 31) - 1),
  },
)


def _segment(found: Any, place: str) -> Segment:
  segment = _SEGMENT_FIELDS(found, place)
  for name in ("loss_mask", "logprobs", "versions", "routing"):
    array = getattr(segment, name)
    if array is not None and len(array) != len(segment.tokens):
      _fail(f"{place}.{name}", f"a length of {len(segment.tokens)}, as of its tokens", len(array))
  return segment


def _trajectory(generations: int) -> Check:
  """A trajectory with at most so many generations of children."""
  return _record(
    Trajectory,
    {
      "task_id": _text,
      "segments": _many(_segment),
      "log": _many(_MESSAGE),
      "rewards": _numbers,
      "stop": _text,
      "metrics": _numbers,
      "children": _many(_trajectory(generations - 1) if generations else _childless),
      "error": _text,
    },
  )


def _childless(found: Any, place: str) -> typing.NoReturn:
  raise MessageError(f"{place}: more than {_MAX_GENERATIONS} generations of sub-agents")


_KINDS: dict[str, tuple[Check, ...]] = {
  "ready": (),
  "alive": (),
  "generate": (_integer(0), _array(np.int32), _LIMITS),  # request id, prompt int32 [P], limits
  "playing": (_integer(-(1 << 31)),),
  "group": (_text, _many(_trajectory(_MAX_GENERATIONS))),  # its id, the rollouts
  "error": (_text,),
}
