"""The control plane: opens sessions, attaches rewards, ends sessions, exports what they left."""

from __future__ import annotations

import base64
import collections
import dataclasses
import re
import time
from typing import Any

import numpy as np

from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.requests import Fields, Refusal
from jaxrl_agents.gateway.sessions import Limits, Served, Session
from jaxrl_agents.types import Message, Segment, Trajectory

MOST_REWARD = 1e9


def opened(body: Any, served: Served, limits: Limits) -> Session:
  """A new session. It may have less than `limits`, not more.

  The fields of the body: `session_id`, `task_id`, `group_id`, `split` and `metadata` are kept;
  `ttl_s`, `max_calls` and `max_tokens` bound the session; `trainable` (true by default) makes the
  sampling that of the server, or of the field `sampling` {"temperature", "top_p", "seed"},
  whatever its requests ask for.

  Raises:
    Refusal: 400, with the field that is wrong.
  """
  fields = Fields(body)
  asked = Fields(fields.take("sampling", dict, {}), "sampling")
  temperature = asked.number("temperature", least=0, most=2)
  top_p = asked.top_p()
  sampling = dataclasses.replace(
    served.sampling,
    temperature=served.sampling.temperature if temperature is None else temperature,
    top_p=served.sampling.top_p if top_p is None else top_p,
    seed=asked.whole("seed", least=0, default=served.sampling.seed),
  )
  own = dataclasses.replace(
    served, sampling=sampling, training=fields.take("trainable", bool, True)
  )
  bounds = dataclasses.replace(
    limits,
    ttl_s=min(fields.number("ttl_s", least=1, most=1e9) or limits.ttl_s, limits.ttl_s),
    calls=min(fields.whole("max_calls", least=1) or limits.calls, limits.calls),
    tokens=min(fields.whole("max_tokens", least=1) or limits.tokens, limits.tokens),
  )
  info = {
    name: fields.take(name, kind, default)
    for name, kind, default in (
      ("task_id", str, ""),
      ("group_id", str, ""),
      ("split", str, "train"),
      ("metadata", dict, {}),
    )
  }
  if name := fields.take("session_id", str, ""):
    check_id(name)
  _nothing_else(fields)
  return Session(own, bounds, id=name, info=info)


def check_watched(session: Session, served: Served) -> None:
  """Refuses the session of a user whose replies are not sampled as those of others: they would be
  trained on as if they were.

  Raises:
    Refusal: 400, with the field that is to be left out.
  """
  if session.info["metadata"].get("user"):
    own = session.served
    as_others = (own.sampling.temperature, own.sampling.top_p) == (
      served.sampling.temperature,
      served.sampling.top_p,
    )
    if not own.training or not as_others:
      field = "sampling" if own.training else "trainable"
      text = f"what a user is told is trained on, so it is sampled as all is; leave out {field}"
      raise Refusal(400, text, param=field, retry=False)


def check_id(name: str) -> None:
  """Refuses a session's id that no path and no header can carry.

  Raises:
    Refusal: 400.
  """
  if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}", name):
    raise Refusal(
      400,
      f"session id {name[:200]!r}; choose up to 128 letters, digits and . _ : @ + -, the "
      "first a letter or a digit",
      param="session_id",
    )


def rewarded(session: Session, body: Any) -> dict[str, Any]:
  """Attaches `parts` {name: value} of the reward. A repeated `event_id` changes nothing.

  Raises:
    Refusal: 400, with the field that is wrong; 409, it is too late.
  """
  fields = Fields(body)
  parts = fields.need("parts", dict)
  for name, value in parts.items():
    if not (isinstance(value, int | float) and abs(value) <= MOST_REWARD):
      raise Refusal(
        400, f"parts.{name}={value!r}; send a number up to {MOST_REWARD:g}", param=f"parts.{name}"
      )
  event = fields.take("event_id", str, "") or f"event {time.time_ns()}"
  _nothing_else(fields)
  new = session.reward({name: float(value) for name, value in parts.items()}, event)
  return {"attached": new, "rewards": dict(session.rewards)}


async def finished(session: Session, body: Any) -> None:
  """Ends a session: `stop` says why, `error` that it must not be trained."""
  fields = Fields(body)
  stop, error = fields.take("stop", str, "answer"), fields.take("error", str, "")
  _nothing_else(fields)
  await session.finish(stop, error)


def trajectory(session: Session) -> dict[str, Any]:
  """What a finished session left, as JSON.

  Raises:
    Refusal: 409, it is not finished.
  """
  if not session.finished.is_set():
    raise Refusal(409, f"session {session.id} is {session.state}; finish it first", retry=False)
  return as_json(session.trajectory(str(session.info.get("task_id", "")))) | {"info": session.info}


def as_json(trajectory: Trajectory) -> dict[str, Any]:
  """A trajectory as JSON: ids, masks, log-probabilities and versions of its segments."""
  return {
    "task_id": trajectory.task_id,
    "rewards": dict(trajectory.rewards),
    "stop": trajectory.stop,
    "error": trajectory.error,
    "metrics": dict(trajectory.metrics),
    "log": [_message(message) for message in trajectory.log],
    "segments": [_segment(segment) for segment in trajectory.segments],
  }


def _message(message: Message) -> dict[str, Any]:
  calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
  return {"role": message.role, "content": message.content, "tool_calls": calls}


def _segment(segment: Segment) -> dict[str, Any]:
  found: dict[str, Any] = {
    "tokens": segment.tokens.tolist(),
    "loss_mask": segment.loss_mask.tolist(),
    "logprobs": segment.logprobs.tolist(),
    "versions": segment.versions.tolist(),
  }
  if segment.routing is not None:
    rows = np.ascontiguousarray(segment.routing)
    data = base64.b64encode(rows.tobytes()).decode()
    found["routing"] = {"data": data, "shape": list(rows.shape), "dtype": str(rows.dtype)}
  return found


def model(served: Served) -> dict[str, Any]:
  """The policy as clients know models."""
  return {
    "id": served.model,
    "object": "model",
    "type": "model",
    "created": 0,
    "owned_by": "jaxrl_agents",
    "display_name": served.model,
    "max_model_len": served.max_context_tokens,
  }


def metrics(registry: Registry) -> str:
  """Counters of all sessions in the text format of Prometheus."""
  counts: collections.Counter[str] = collections.Counter()
  states: collections.Counter[str] = collections.Counter({"open": 0, "finished": 0, "expired": 0})
  for session in registry.sessions():
    row = session.counters()
    states[row["state"]] += 1
    counts["calls"] += row["calls"]
    counts["sampled_tokens"] += row["sampled_tokens"]
    counts["errors"] += bool(row["error"])
  lines = [f'gateway_sessions{{state="{state}"}} {n}' for state, n in states.items()]
  lines += [f"gateway_{name} {counts[name]}" for name in ("calls", "sampled_tokens", "errors")]
  return "\n".join(lines) + "\n"


def _nothing_else(fields: Fields) -> None:
  if rest := fields.rest():
    raise Refusal(400, f"there is no field {rest[0]!r} here", param=rest[0])
