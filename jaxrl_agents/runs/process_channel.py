"""What the first process of a run tells the others, over the coordination service of jax.

jax.distributed has a store of keys and values, by which processes find one another, and ends every
process of the run when one of them is gone. A message is a value of that store; it is checked on
receipt (`harness.schema`), because the service asks nobody for a key.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # multihost_utils has no way to wait on the host alone

from jaxrl_agents.harness import messages, schema
from jaxrl_agents.harness.schema import (
  MessageError,
  array,
  integer,
  json_object,
  many,
  number,
  text,
)
from jaxrl_agents.sampler.engine_calls import Cancel, Submit
from jaxrl_agents.types import Group, Task

_WAIT_S = 1.0  # a signal is handled between two waits
_BLOCK = 256
"""After so many messages all processes meet, and those that all have read are removed."""
_MEET_S = 600.0
_PIECE_BYTES = 1 << 20
_channels_made = 0

_TASK = schema.record(
  Task,
  {
    "id": text,
    "env": text,
    "prompt": text,
    "facts": json_object,
    "split": schema.one_of("train", "dev", "test"),
    "seed": integer(-(1 << 63)),
  },
)
_GROUP = schema.record(
  Group, {"task": _TASK, "trajectories": many(messages.TRAJECTORY), "id": text}
)
_SUBMIT = schema.record(
  Submit, {"request_id": integer(0), "prompt": array(np.int32), "limits": messages.LIMITS}
)
_CANCEL = schema.record(Cancel, {"request_id": integer(0)})


def _call(found: Any, place: str) -> Submit | Cancel:
  return (_CANCEL if isinstance(found, tuple) and len(found) == 1 else _SUBMIT)(found, place)


KINDS: dict[str, tuple[schema.Check, ...]] = {
  "advance": (number, many(_call)),  # see engine_calls.Calls.advance
  "load": (integer(0),),  # a version of the weights
  "groups": (many(_GROUP),),
  "stopped": (),
}


class ProcessChannel:
  """One process's end of the channel. All processes of a run make theirs at the same points of it.

  Invariant: every process reads every message of the first, in order.

  Attributes:
    is_first: whether this is the first process.
    several: whether there are others.
    on_stop: what the first process does when another asks it to stop.
  """

  def __init__(self) -> None:
    global _channels_made
    self.is_first, self.several = jax.process_index() == 0, jax.process_count() > 1
    self.on_stop: Callable[[], None] = lambda: None
    self._client: Any = distributed.global_state.client
    self._name = f"jaxrl_agents/{_channels_made}"
    self._count = 0
    _channels_made += 1
    if self.several and self.is_first:
      threading.Thread(target=self._watch, daemon=True).start()

  def agree(self, what: str, value: str) -> None:
    """Compares a value of every process with this one's.

    Raises:
      ValueError: another process has another value.
      TimeoutError: another process has none within _MEET_S.
    """
    if not self.several:
      return
    self._client.key_value_set(f"{self._name}/{what}/{jax.process_index()}", value)
    for i in range(jax.process_count()):
      found = self._get(f"{self._name}/{what}/{i}", _MEET_S).decode()
      if found != value:
        raise ValueError(
          f"process {i} of the run has another {what} ({found}) than process "
          f"{jax.process_index()} ({value}); use the same checkout and config for all"
        )

  def broadcast(self, message: tuple[Any, ...]) -> None:
    """Sends a message of one of KINDS from the first process to every other one."""
    if not self.several:
      return
    packed = schema.encode(message)
    pieces = [packed[i : i + _PIECE_BYTES] for i in range(0, len(packed), _PIECE_BYTES)]
    for i, piece in enumerate(pieces):
      last = b"\1" if i == len(pieces) - 1 else b"\0"
      self._client.key_value_set_bytes(self._next_key(), last + piece)

  def receive(self) -> tuple[Any, ...]:
    """The next message of the first process; waits for it as long as that process lives.

    Raises:
      MessageError: it is none of KINDS.
    """
    packed, last = b"", False
    while not last:
      key = self._next_key()
      while not (piece := self._get(key, _WAIT_S, or_nothing=True)):
        pass  # jax ends this process if the first is gone
      packed, last = packed + piece[1:], piece[:1] == b"\1"
      if len(packed) > schema.MAX_BYTES:
        raise MessageError(f"a message of more than {schema.MAX_BYTES} bytes")
    return schema.decode(packed, KINDS)

  def ask_to_stop(self, *_: Any) -> None:
    """Asks the first process to end the run as soon as possible; a signal handler may call this."""
    self._client.key_value_set(f"{self._name}/stop", "stop", allow_overwrite=True)

  def gone(self, wait_s: float) -> list[int]:
    """The processes that jax counts as gone, as soon as there are any, or [] after `wait_s`."""
    everyone, deadline = list(range(jax.process_count())), time.monotonic() + wait_s
    while time.monotonic() < deadline:
      if missing := sorted(set(everyone) - set(self._client.get_live_nodes(everyone))):
        return missing
      time.sleep(0.5)
    return []

  def _next_key(self) -> str:
    """The key of the next message, the same in every process; now and then they meet here."""
    block, place = divmod(self._count, _BLOCK)
    if block and not place:
      self._client.wait_at_barrier(f"{self._name}/{block}", int(1000 * _MEET_S))
      if self.is_first:
        self._client.key_value_delete(f"{self._name}/messages/{block - 1}/")
    self._count += 1
    return f"{self._name}/messages/{block}/{place}"

  def _get(self, key: str, wait_s: float, *, or_nothing: bool = False) -> bytes:
    try:
      return self._client.blocking_key_value_get_bytes(key, int(1000 * wait_s))
    except jax.errors.JaxRuntimeError as error:
      if "DEADLINE_EXCEEDED" not in str(error):
        raise
      if or_nothing:
        return b""
      raise TimeoutError(f"no process of the run has set {key} within {wait_s:g} s") from None

  def _watch(self) -> None:
    """Waits, in a thread of the first process, for another to ask it to stop."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the run has ended
      while not self._get(f"{self._name}/stop", _WAIT_S, or_nothing=True):
        pass
      self.on_stop()
