"""Sampler slices: engines in processes of their own, which connect to the learner's listener.

    learner -> slice   ("begin", version, deterministic)  ("load", version)  ("run",)
                       ("submit", request_id, prompt int32[P], SamplingLimits)
                     ("cancel", request_id)
    slice -> learner   ("at", version, Stats)
                       ("ended", [(request_id, Generation | Failure)], Stats)
                       ("alive",), the heartbeat between two steps

A slice (`sampler.slice_process`) steps its engine while it has work, and reads messages between two
steps, so new weights reach running sequences as they do in one process. In a deterministic run it
steps from "run" until a request has ended, which is when an engine in the learner's process would
step. No jax.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from jaxrl_agents.sampler import sequence as sequence_lib
from jaxrl_agents.sampler import stats as stats_lib
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Generation, SamplingLimits
from jaxrl_agents.wire.listener import Listener

_WAIT_S = 0.01


class SlicesError(RuntimeError):
  """Sampling cannot go on: no slice connected in time, or all have disconnected."""


@dataclasses.dataclass
class _Slice:
  """A connected slice. Invariant: `requests` were sent to it and have not ended.

  Attributes:
    connection: to the slice.
    name: its address.
    version: of the weights that it holds; -1 until it is ready.
    heard: time of the last message, as time.monotonic.
    requests: their ids.
    stats: its counters.
    before: its counters when it was ready.
    running: whether a request has yet to end since the last "run".
  """

  connection: Connection
  name: str
  version: int = -1
  heard: float = dataclasses.field(default_factory=time.monotonic)
  requests: set[int] = dataclasses.field(default_factory=set)
  stats: Stats = dataclasses.field(default_factory=Stats)
  before: Stats | None = None
  running: bool = False


class Slices:
  """The connected slices as one engine (`EngineProtocol`). Use as a context manager.

  Requests go to the slice with the fewest; in a deterministic run to the slices in turn. Requests
  of a slice that disconnected go to the others, or wait until one connects.

  Invariant: an unanswered request is with exactly one slice, or in the backlog.

  Args:
    listener: to which they connect in the role "sampler".
    count: how many must be ready before sampling begins.
    version: of the published weights that they load first.
    max_context_tokens: of their engines.
    vocab_size: of the policy.
    deterministic: see RolloutServer.
    stall_s: seconds in which a slice with work must send a message.
    start_deadline_s: for connecting, and for loading weights and compiling.
  """

  def __init__(
    self,
    listener: Listener,
    count: int,
    version: int,
    *,
    max_context_tokens: int,
    vocab_size: int,
    deterministic: bool = False,
    stall_s: float = 120.0,
    start_deadline_s: float = 600.0,
  ):
    self._listener, self._count, self._version = listener, count, version
    self._max_context_tokens, self._vocab_size = max_context_tokens, vocab_size
    self._deterministic, self._stall_s = deterministic, stall_s
    self._start_deadline_s = start_deadline_s
    self._slices: list[_Slice] = []
    self._gone: list[Stats] = []
    self._requests: dict[int, tuple[np.ndarray, SamplingLimits]] = {}
    self._backlog: list[int] = []
    self._next_id = 0
    self._bereft: float | None = None  # since when there has been no slice

  def __enter__(self) -> Slices:
    return self

  def __exit__(self, *_: object) -> None:
    """Closes the connections; the slices wait for the next run."""
    for each in self._slices:
      each.connection.close()

  @property
  def num_unfinished(self) -> int:
    """Requests that have not ended."""
    return len(self._requests)

  @property
  def stats(self) -> Stats:
    """The counters of all slices since each was ready."""
    return stats_lib.total([*map(_since_ready, self._slices), *self._gone])

  def wait_until_ready(self) -> None:
    """Returns when `count` slices hold the weights and have compiled.

    Raises:
      SlicesError: not within start_deadline_s.
    """
    self._wait_for(lambda: sum(s.version == self._version for s in self._slices) >= self._count)

  def load(self, version: int) -> None:
    """Has every slice load a published version between two steps; returns when all have.

    Raises:
      SlicesError: not within start_deadline_s.
    """
    self._version = version
    for each in list(self._slices):
      self._send(each, ("load", version))
    begun = lambda: [each for each in self._slices if each.version >= 0]  # others come to it later
    self._wait_for(lambda: begun() and all(each.version == version for each in begun()))

  def submit(self, prompt: np.ndarray, limits: SamplingLimits) -> int:
    """Queues a prompt and returns the id that `step` will report it under.

    Raises:
      ValueError: as Engine.submit.
    """
    sequence_lib.check(
      np.asarray(prompt),
      limits,
      max_context_tokens=self._max_context_tokens,
      vocab_size=self._vocab_size,
    )
    request_id, self._next_id = self._next_id, self._next_id + 1
    self._requests[request_id] = (prompt, limits)
    self._backlog.append(request_id)
    return request_id

  def step(self) -> list[tuple[int, Generation | Failure]]:
    """The requests that have ended, each by its id; waits a little for one, and in a deterministic
    run until each slice with work has ended one.

    Raises:
      SlicesError: there has been no slice for start_deadline_s.
    """
    self._admit()
    self._dispatch()
    busy = [each for each in self._slices if each.requests]
    if not self._deterministic or not busy:
      return self._receive(_WAIT_S)
    for each in busy:
      each.running = self._send(each, ("run",))
    ended: list[tuple[int, Generation | Failure]] = []
    while any(each.running for each in self._slices):
      ended += self._receive(1.0)
    return sorted(ended, key=lambda found: found[0])

  def cancel(self, request_id: int) -> None:
    """Drops a request that nobody waits for any more; one that has ended already is no error."""
    self._requests.pop(request_id, None)
    if request_id in self._backlog:
      self._backlog.remove(request_id)
    for each in self._slices:
      if request_id in each.requests:
        each.requests.remove(request_id)
        self._send(each, ("cancel", request_id))

  def describe(self) -> str:
    """One line on the state, for messages about a lack of progress."""
    each = [
      f"{s.name} at version {s.version} with {len(s.requests)} requests" for s in self._slices
    ]
    return f"{len(each)} slices ({'; '.join(each)}), {len(self._backlog)} requests wait for one"

  def _wait_for(self, done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + self._start_deadline_s
    while not done():
      self._admit()
      self._receive(0.2)
      if time.monotonic() > deadline:
        raise SlicesError(
          f"of {self._count} sampler slices not all held version {self._version} within "
          f"{self._start_deadline_s:g} s: {self.describe()}; start them with "
          f"scripts/sampler.py --connect={self._listener.address}"
        )

  def _admit(self) -> None:
    for name, connection in self._listener.take("sampler"):
      self._slices.append(_Slice(connection, name))
      self._send(self._slices[-1], ("begin", self._version, self._deterministic))

  def _dispatch(self) -> None:
    """Gives what waits to the slices that are ready."""
    ready = [each for each in self._slices if each.version == self._version]
    now = time.monotonic()
    self._bereft = None if ready else self._bereft or now
    if self._bereft and now - self._bereft > self._start_deadline_s:
      raise SlicesError(
        f"no sampler slice for {self._start_deadline_s:g} s: {self.describe()}; start one with "
        f"scripts/sampler.py --connect={self._listener.address}"
      )
    while self._backlog and ready:
      request_id = self._backlog[0]
      if self._deterministic:
        chosen = ready[request_id % len(ready)]
      else:
        chosen = min(ready, key=lambda each: len(each.requests))
      if not chosen.requests:
        chosen.heard = time.monotonic()  # from now on it owes an answer
      if not self._send(chosen, ("submit", request_id, *self._requests[request_id])):
        return  # it is gone, and what it had is in the backlog
      chosen.requests.add(request_id)
      self._backlog.remove(request_id)

  def _receive(self, timeout_s: float) -> list[tuple[int, Generation | Failure]]:
    """Reads what has come; returns the requests that ended."""
    ended: list[tuple[int, Generation | Failure]] = []
    heard = wait([each.connection for each in self._slices], timeout_s)
    for each in list(self._slices):
      try:
        while each.connection in heard and each.connection.poll():
          ended += self._take(each, each.connection.recv())
      except (EOFError, OSError) as error:
        self._lose(each, str(error) or "its connection ended")
    for each in list(self._slices):
      if each.requests and time.monotonic() - each.heard > self._stall_s:
        self._lose(each, f"it has work and was silent for {self._stall_s:g} s")
    return ended

  def _take(self, each: _Slice, message: tuple[Any, ...]) -> list[tuple[int, Generation | Failure]]:
    each.heard = time.monotonic()
    kind, *content = message
    if kind == "at":
      each.version, each.stats = content
      each.before = each.before or each.stats
    elif kind == "ended":
      each.running = False
      found, each.stats = content
      mine = [(i, result) for i, result in found if i in each.requests]  # else cancelled meanwhile
      for request_id, _ in mine:
        each.requests.remove(request_id)
        del self._requests[request_id]
      return mine
    return []

  def _send(self, each: _Slice, message: tuple[Any, ...]) -> bool:
    try:
      each.connection.send(message)
    except OSError as error:
      self._lose(each, str(error))
      return False
    return True

  def _lose(self, each: _Slice, how: str) -> None:
    """A slice is gone: what it had goes to another, under the same seeds."""
    if each not in self._slices:
      return
    self._slices.remove(each)
    self._gone.append(_since_ready(each))
    each.running = False
    each.connection.close()
    self._backlog = sorted([*self._backlog, *each.requests])
    print(
      f"the sampler slice at {each.name} is gone: {how}; its {len(each.requests)} requests go to "
      f"others ({len(self._slices)} are left)",
      file=sys.stderr,
      flush=True,
    )


def _since_ready(each: _Slice) -> Stats:
  if each.before is None:
    return Stats()
  now, before = dataclasses.astuple(each.stats), dataclasses.astuple(each.before)
  return Stats(*(a - b for a, b in zip(now, before, strict=True)))
