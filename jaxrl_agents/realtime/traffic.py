"""Users behind a gateway: gives each session its arm, logs its calls, takes feedback.

A session is one of a user if it was opened with `metadata` {"user": name, "features": {name:
number}}; `features` are what the baseline of the reward may know. Other sessions are served by the
stable policy and not logged.
"""

from __future__ import annotations

import base64
import dataclasses
import hmac
import math
import pathlib
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents import durable, record_log
from jaxrl_agents.gateway.requests import Fields, Refusal
from jaxrl_agents.gateway.sessions import Session
from jaxrl_agents.gateway.token_tree import Call
from jaxrl_agents.realtime import behaviour, feedback
from jaxrl_agents.realtime import calls as calls_lib
from jaxrl_agents.realtime.arms import CANARY, STABLE, user_hash
from jaxrl_agents.realtime.deployment import Deployer, Pointer
from jaxrl_agents.realtime.feedback import Event, Join, Kind
from jaxrl_agents.record_log import Log
from jaxrl_agents.types import (
  Generation,
  Message,
  Sampler,
  SamplingLimits,
  Watch,
  WatchedSampler,
)

KEY_BYTES = 32
MAX_FEATURES = 32
LARGEST = 1e9
"""Most that a feature may be: the baseline squares it."""


class Traffic:
  """The log of a gateway and its join. Invariant: `join` is what the log says, record for record;
  an event is acknowledged after it is durable in the log.

  Args:
    folder: of the log (`traffic.log`) and of the key of the users' names (`user.key`).
    deployer: says who is served what.
    samplers: {arm: sampler}; each serves the weights that the deployment names for its arm.
    kinds: of feedback.
    clock: seconds since the epoch, of the server: it decides about windows.

  Attributes:
    user_key: with which names of users are hashed.

  Raises:
    DamagedLog, BlockingIOError: see `record_log.Log`.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    deployer: Deployer,
    samplers: Mapping[str, Sampler],
    *,
    kinds: Mapping[str, Kind] = feedback.KINDS,
    clock: Callable[[], float] = time.time,
  ):
    self.log = Log(folder / "traffic.log")
    if torn := self.log.torn:
      print(f"{self.log.path}: {torn}", file=sys.stderr, flush=True)
    self.join = Join(kinds)
    self.deployer, self.clock = deployer, clock
    self._samplers = samplers
    self.user_key = user_key(folder / "user.key")
    for record in record_log.scan(self.log.path):
      self.join.apply(record)

  def append(self, record: record_log.Record, *, durable: bool = False) -> None:
    """Adds a record to the log, and to the join."""
    self.log.append(record, durable=durable)
    self.join.apply(record)

  def opened(self, session: Session) -> None:
    """Gives the session of a user its arm and observes it. Its control key is of its id, so that it
    holds when the gateway is started again.

    Raises:
      Refusal: 400, `metadata` is wrong; it names the field. 409, the log has a session of this id.
    """
    name = session.info.get("metadata", {}).get("user", "")
    if not name:
      return
    if not isinstance(name, str):
      raise Refusal(400, f"metadata.user={name!r}; send a text", param="metadata.user")
    if self.join.user_of(session.id):
      text = f"the log has a session {session.id} already; choose another session_id"
      raise Refusal(409, text, param="session_id", retry=False)
    session.control_key = self.control_key(session.id)
    user, now = user_hash(name, self.user_key), self.deployer.now
    arm = now.arm(user)
    served = now.served(arm)
    session.observer = _Watched(self, user, arm, served, _features(session))
    session.served = dataclasses.replace(session.served, sampler=_OfArm(self, arm, served))

  def control_key(self, session: str) -> str:
    """The key with which the user behind a session gives feedback."""
    made = hmac.digest(self.user_key, f"control key of {session}".encode(), "sha256")
    return f"ck-{base64.urlsafe_b64encode(made).decode().rstrip('=')}"

  def opens(self, session: str, key: str) -> bool:
    """Whether a key is that of a session of the log."""
    known = bool(self.join.user_of(session))
    return known and secrets.compare_digest(key.encode(), self.control_key(session).encode())

  def feedback(self, body: Any) -> dict[str, Any]:
    """Takes an event: {event_id, session, call ("" for all), user, kind, value, time}.

    Returns:
      {"accepted": whether it is new}; a repeated `event_id` is no error and changes nothing.

    Raises:
      Refusal: 400, a field is wrong; 403, the session is another user's.
    """
    fields = Fields(body)
    event = Event(
      event_id=fields.need("event_id", str),
      session=fields.need("session", str),
      call=self._call_of(fields.take("call", str, "")),
      user=user_hash(fields.need("user", str), self.user_key),
      kind=fields.need("kind", str),
      value=_number(fields.number("value", least=-1e9, most=1e9)),
      time_s=self.clock(),
      client_time_s=fields.number("time", least=0, most=1e12) or 0.0,
    )
    if rest := fields.rest():
      raise Refusal(400, f"there is no field {rest[0]!r} here", param=rest[0])
    if wrong := feedback.problem(event, self.join.kinds, self.join):
      raise Refusal(403 if "another user" in wrong else 400, wrong, retry=False)
    new = not self.join.has(event)
    if new:
      self.append(event.record(), durable=True)
    return {"accepted": new}

  def _call_of(self, name: str) -> str:
    """The id of a call in the log; clients know it with a prefix of their API."""
    return name if name in self.join.calls else re.sub(r"^(chatcmpl-|cmpl-|msg_|resp_)", "", name)

  def sampler(self, arm: str) -> Sampler:
    """The sampler of an arm."""
    return self._samplers[arm]


@dataclasses.dataclass(frozen=True)
class _Watched:
  """Logs the calls of one session of a user."""

  traffic: Traffic
  user: str
  arm: str
  served: Pointer
  features: Mapping[str, float]

  def called(self, session: Session, call: Call, said: Message, latency_s: float) -> None:
    """Logs a call, also one whose tool calls are broken."""
    made = call.turn.generation
    turn = sum(message.role == "assistant" for message in call.history)
    parent = call.parent
    while parent and parent.id not in self.traffic.join.calls:
      parent = parent.parent  # that one could not be logged
    logged = calls_lib.LoggedCall(
      id=call.id,
      session=session.id,
      user=self.user,
      parent=parent.id if parent else "",
      arm=self.arm,
      digest=self.served.digest,
      time_s=self.traffic.clock(),
      latency_s=latency_s,
      tools=calls_lib.tools_digest(call),
      prompt=call.turn.prompt[len(parent.tokens) if parent else 0 :],
      generation=made,
      behaviour=behaviour.figures(said, made, latency_s),
      features={
        **self.features,
        "turn": float(turn),
        "log_prompt": math.log(len(call.turn.prompt)),
      },
      errors=tuple(each.error for each in said.tool_calls if each.error),
    )
    self.traffic.append(calls_lib.to_record(logged))

  def delivered(self, session: Session, calls: Sequence[str]) -> None:
    """Logs that replies were sent."""
    self.traffic.append({"kind": feedback.DELIVERED, "calls": list(calls)})


class _OfArm:
  """The sampler of one session: of its arm, as long as what the arm served is tried or stable.

  A session keeps its arm while the shares grow. After a roll-back it goes on with the stable
  policy; its tokens carry their versions, and what has a withdrawn one is not trained.
  """

  def __init__(self, traffic: Traffic, arm: str, served: Pointer):
    self._traffic, self._arm, self._served = traffic, arm, served

  def _now(self) -> Sampler:
    tried = self._traffic.deployer.now.trial == self._served
    return self._traffic.sampler(CANARY if self._arm == CANARY and tried else STABLE)

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """Samples under the weights of the arm."""
    return await self._now().generate(prompt, limits)

  async def watched(self, prompt: np.ndarray, limits: SamplingLimits, watch: Watch) -> Generation:
    """`generate`, watched if the sampler of the arm can do that."""
    now = self._now()
    if isinstance(now, WatchedSampler):
      return await now.watched(prompt, limits, watch)
    return await now.generate(prompt, limits)

  def playing(self, more: int) -> None:
    """Passes on how many play."""
    self._now().playing(more)


def user_key(file: pathlib.Path) -> bytes:
  """The key of the names of users in a file, which is made if it is not there.

  Raises:
    ValueError: the file has another length.
  """
  if not file.exists():
    partial = file.with_suffix(".tmp")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_bytes(secrets.token_bytes(KEY_BYTES))
    durable.replace(partial, file)
  key = file.read_bytes()
  if len(key) != KEY_BYTES:
    raise ValueError(f"{file} has {len(key)} bytes, a key has {KEY_BYTES}; restore it from a copy")
  return key


def _number(value: float | None) -> float:
  if value is None:
    raise Refusal(400, "value is missing; send a number", param="value")
  return float(value)


def _features(session: Session) -> dict[str, float]:
  """The features of a session.

  Raises:
    Refusal: 400, they are no numbers, or too many.
  """
  found = session.info.get("metadata", {}).get("features", {})
  # NaN is not at most anything.
  number = lambda v: isinstance(v, int | float) and not isinstance(v, bool) and abs(v) <= LARGEST
  if (
    not isinstance(found, dict) or len(found) > MAX_FEATURES or not all(map(number, found.values()))
  ):
    text = (
      f"metadata.features must be at most {MAX_FEATURES} numbers by name, none over {LARGEST:g}"
    )
    raise Refusal(400, text, param="metadata.features")
  return {name: float(value) for name, value in found.items()}
