"""Tinker's binary messages and the records that they stand for.

The numbers of the fields are those of `tinker.proto.tinker_public_pb2` of the client library (read
in 0.38.0); tests compare what is written here with its classes. Tensors are little-endian bytes.

Alphabet: N tokens of a sequence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.gateway.tinker import wire
from jaxrl_agents.types import Generation

FLOAT32, INT64 = 1, 2
_DTYPES: dict[int, np.dtype[Any]] = {
  FLOAT32: np.dtype("<f4"),
  INT64: np.dtype("<i8"),
  3: np.dtype("<i4"),
}

STOP, LENGTH = 0, 1


@dataclasses.dataclass(frozen=True)
class Datum:
  """A sequence of a request, int32 [N] tokens, and the inputs of the loss by name."""

  tokens: np.ndarray
  inputs: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ForwardBackward:
  """A request for log-probabilities and, unless `forward_only`, gradients."""

  model_id: str
  seq_id: int
  data: tuple[Datum, ...]
  loss: str
  options: Mapping[str, float | str]
  forward_only: bool


def read_forward_backward(raw: bytes) -> ForwardBackward:
  """The request of its bytes.

  Raises:
    ValueError: they are no such message, or a sequence holds something other than tokens.
  """
  model_id, loss, seq_id, forward_only = "", "", 0, False
  data: list[Datum] = []
  options: dict[str, float | str] = {}
  newer: dict[str, float | str] = {}
  for number, value in wire.fields(raw):
    if number == 1:
      model_id = _text(value)
    elif number == 2 and isinstance(value, int):
      seq_id = wire.signed(value)
    elif number == 3:
      data.append(_datum(wire.blob(value)))
    elif number == 4:
      loss = _text(value)
    elif number == 5:
      key, content = _entry(wire.blob(value))
      options[key] = wire.double(content) if content else 0.0
    elif number == 6:
      forward_only = bool(value)
    elif number == 7:
      key, content = _entry(wire.blob(value))
      for which, one in wire.fields(wire.blob(content)):
        newer[key] = wire.double(one) if which == 1 else _text(one)
  return ForwardBackward(model_id, seq_id, tuple(data), loss, newer or options, forward_only)


def _datum(raw: bytes) -> Datum:
  chunks, inputs = [], {}
  for number, value in wire.fields(raw):
    if number == 1:
      chunks.append(_chunk(wire.blob(value)))
    elif number == 2:
      key, content = _entry(wire.blob(value))
      inputs[key] = _tensor(key, wire.blob(content))
  tokens = np.concatenate([np.zeros(0, np.int32), *chunks])
  return Datum(tokens, inputs)


def _chunk(raw: bytes) -> np.ndarray:
  """The tokens of a part of a sequence, int32 [n]."""
  tokens = np.zeros(0, np.int32)
  for number, value in wire.fields(raw):
    if number != 1:
      raise ValueError("a sequence holds an image or sound; this policy reads tokens only")
    for inner, content in wire.fields(wire.blob(value)):
      if inner == 1:
        tokens = _array(wire.blob(content), np.dtype("<i4"), "tokens").astype(np.int32)
  return tokens


def _tensor(name: str, raw: bytes) -> np.ndarray:
  """A dense tensor, in its shape, float32 or int64."""
  dense, dtype, shape, has_shape = b"", 0, [], False
  for number, value in wire.fields(raw):
    if number == 1:
      dense = wire.blob(value)
    elif number == 2:
      raise ValueError(f"{name} is sparse; send a dense tensor")
    elif number == 3 and isinstance(value, int):
      dtype = value
    elif number == 4:
      shape += wire.numbers(value)
      has_shape = True
  if dtype not in _DTYPES:
    raise ValueError(f"{name} has type {dtype}; send float32 ({FLOAT32}) or int64 ({INT64})")
  flat = _array(dense, _DTYPES[dtype], name)
  if has_shape and (min(shape) < 0 or math.prod(shape) != flat.size):
    raise ValueError(f"{name} has shape {shape} and {flat.size} numbers")
  return flat.reshape(shape) if has_shape else flat


def _array(raw: bytes, dtype: np.dtype[Any], name: str) -> np.ndarray:
  if len(raw) % dtype.itemsize:
    raise ValueError(f"{name} has {len(raw)} bytes, of numbers of {dtype.itemsize}")
  return np.frombuffer(raw, dtype)


def _entry(raw: bytes) -> tuple[str, wire.Value]:
  """Key and value of an entry of a map; b"" for a value that is left out."""
  key, content = "", b""
  for number, value in wire.fields(raw):
    if number == 1:
      key = _text(value)
    elif number == 2:
      content = wire.blob(value)
  return key, content


def _text(value: wire.Value) -> str:
  return wire.blob(value).decode()


def write_output(metrics: Mapping[str, float], logprobs: Sequence[np.ndarray]) -> bytes:
  """The reply to `forward_backward`: metrics, and log-probabilities of each sequence.

  Args:
    metrics: by names that end with how those of chunks combine, such as "loss:sum".
    logprobs: float32 [N] for each sequence.
  """
  offsets = np.cumsum([0, *(4 * len(each) for each in logprobs)]).astype("<i8")
  flat = np.concatenate([np.zeros(0, np.float32), *logprobs]).astype("<f4")
  tensor = wire.write(1, flat.tobytes()) + wire.write(2, offsets.tobytes()) + wire.write(3, FLOAT32)
  record = (
    wire.write(1, "ArrayRecord")
    + wire.write(2, wire.write(1, "logprobs") + wire.write(2, tensor))
    + wire.write(3, len(logprobs))
  )
  entries = (wire.write(1, name) + wire.write(2, float(value)) for name, value in metrics.items())
  return (
    wire.write(1, "ArrayRecord")
    + wire.write(2, record)
    + b"".join(wire.write(3, entry) for entry in entries)
  )


def write_samples(
  samples: Sequence[tuple[Generation, bool]], prompt_logprobs: np.ndarray | None
) -> bytes:
  """The reply to `asample`.

  Args:
    samples: generations, and whether each ended before its limit.
    prompt_logprobs: float32 [P], NaN where there is none (the first token); None if not asked for.
  """
  out = b""
  for generation, stopped in samples:
    sequence = (
      wire.write(1, STOP if stopped else LENGTH)
      + wire.write(2, generation.tokens.astype("<i4").tobytes())
      + wire.write(3, generation.logprobs.astype("<f4").tobytes())
    )
    out += wire.write(1, sequence)
  if prompt_logprobs is not None:
    out += wire.write(2, prompt_logprobs.astype("<f4").tobytes())
  return out
