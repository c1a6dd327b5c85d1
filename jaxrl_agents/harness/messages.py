"""What worker processes send to the main process, checked against a schema on receipt.

A worker handles the text of a policy, so nothing that it sends is unpickled: unpickling runs code.
In the other direction messages are pickles: a worker trusts the main process.
"""

from __future__ import annotations

import typing
from typing import Any

import numpy as np

from jaxrl_agents.harness import schema
from jaxrl_agents.harness.schema import (
  Check,
  MessageError,
  array,
  fail,
  flag,
  integer,
  json_object,
  many,
  number,
  numbers,
  one_of,
  optional,
  record,
  text,
)
from jaxrl_agents.types import (
  Message,
  Role,
  SamplingLimits,
  Segment,
  ToolCall,
  Trajectory,
)

_MAX_GENERATIONS = 4
"""Trajectories, children of them, and so on: sub-agents have none so far."""


def decode(packed: bytes) -> tuple[Any, ...]:
  """The message of a worker that `schema.encode` made bytes of.

  Raises:
    MessageError: the bytes are not a message that a worker sends.
  """
  return schema.decode(packed, _KINDS)


LIMITS = record(
  SamplingLimits,
  {
    "max_new_tokens": integer(-(1 << 31)),  # an engine refuses what it cannot serve, with a reason
    "stop_tokens": many(integer(0)),
    "temperature": number,
    "top_p": number,
    "seed": integer(0, (1 << 31) - 1),
    "deadline_s": number,
    "policy": text,
    "routed_tokens": integer(0),
  },
)

_TOOL_CALL = record(
  ToolCall,
  {"id": text, "name": text, "arguments": json_object, "error": text, "label": text, "raw": text},
)

_MESSAGE = record(
  Message,
  {
    "role": one_of(*typing.get_args(Role)),
    "content": text,
    "tool_calls": many(_TOOL_CALL),
    "tool_call_id": text,
    "tokens": optional(array(np.int32)),
    "ephemeral": flag,
    "reasoning": text,
  },
)

_SEGMENT_FIELDS = record(
  Segment,
  {
    "tokens": array(np.int32),
    "loss_mask": array(np.bool_),
    "logprobs": array(np.float32),
    "versions": array(np.int32),
    "routing": optional(array(np.uint16, 3)),
    "began": integer(-1, (1 << 31) - 1),
    "kept": optional(array(np.bool_)),
  },
)


def _segment(found: Any, place: str) -> Segment:
  segment = _SEGMENT_FIELDS(found, place)
  for name in ("loss_mask", "logprobs", "versions", "routing", "kept"):
    array = getattr(segment, name)
    if array is not None and len(array) != len(segment.tokens):
      fail(f"{place}.{name}", f"a length of {len(segment.tokens)}, as of its tokens", len(array))
  return segment


def _trajectory(generations: int) -> Check:
  """A trajectory with at most so many generations of children."""
  return record(
    Trajectory,
    {
      "task_id": text,
      "segments": many(_segment),
      "log": many(_MESSAGE),
      "rewards": numbers,
      "stop": text,
      "metrics": numbers,
      "children": many(_trajectory(generations - 1) if generations else _childless),
      "error": text,
    },
  )


def _childless(found: Any, place: str) -> typing.NoReturn:
  raise MessageError(f"{place}: more than {_MAX_GENERATIONS} generations of sub-agents")


TRAJECTORY = _trajectory(_MAX_GENERATIONS)

_KINDS: dict[str, tuple[Check, ...]] = {
  "ready": (),
  # request id, prompt int32 [P], limits, id of the group
  "generate": (integer(0), array(np.int32), LIMITS, text),
  "cancel": (integer(0),),  # id of a request
  "playing": (integer(-(1 << 31)),),
  "group": (text, many(TRAJECTORY)),  # its id, the rollouts
  "error": (text,),
}
