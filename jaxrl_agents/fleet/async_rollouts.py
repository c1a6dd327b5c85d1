"""Asynchronous rollouts: they are played in a thread of their own while the learner learns.

    learner's thread                          sampler's thread
    take(count) -> complete groups   <-       rounds of the rollout server, paced by `Pacing`
    between_steps(swap the weights)  ->       called between two programs of the engine

The two never wait for one another but for a batch that is not complete.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from jaxrl_agents import service_log
from jaxrl_agents.fleet.pacing import Draw, Pacing
from jaxrl_agents.service_log import Tell
from jaxrl_agents.types import Group

_IDLE_S = 0.05


class Server(Protocol):
  """What plays jobs: sampler.server.RolloutServer."""

  def round(self, next_job: Callable[[], Any]) -> list[Group]: ...


class AsyncRollouts:
  """Rollouts that are played ahead of the learner. Use as a context manager.

  Invariant: `Pacing` is used by one thread at a time; the server and its engines are used by the
  sampler's thread alone.

  Args:
    server: plays the jobs.
    pacing: says which.
    job: (draw) -> what the server plays.
    ended: called in the sampler's thread with each group before `take` may return it.
    devices: context manager of the sampler's thread, which makes the mesh of its engines ambient.
    timeout_s: longest time without a sign of the thread, also at its end.
    tell: of the sampler's states, see service_log.
    is_due: whether a call between two steps may be made now. One that is not due holds up nothing.
  """

  def __init__(
    self,
    server: Server,
    pacing: Pacing,
    job: Callable[[Draw], Any],
    *,
    ended: Callable[[Group], None] = lambda group: None,
    devices: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    timeout_s: float = 300.0,
    tell: Tell = service_log.silent,
    is_due: Callable[[], bool] = lambda: True,
  ):
    self._server, self._pacing, self._job, self._devices = server, pacing, job, devices
    self._ended, self._timeout_s, self._tell = ended, timeout_s, tell
    self._is_due = is_due
    self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self._changed = threading.Condition()
    self._closed = False
    self._error: BaseException | None = None
    self._told = False
    self._last_sign = time.monotonic()
    self._idle_s = 0.0
    self._thread = threading.Thread(target=self._play, name="sampler", daemon=True)

  def __enter__(self) -> AsyncRollouts:
    self._thread.start()
    return self

  def __exit__(self, kind: object, *_: object) -> None:
    self._closed = True
    with self._changed:
      self._changed.notify_all()
    self._thread.join(self._timeout_s)
    if self._thread.is_alive():
      raise RuntimeError(
        f"the sampler's thread did not end within {self._timeout_s:g} s: a program or a tool hangs"
      )
    if kind is None and self._error and not self._told:
      raise self._error

  def take(self, count: int, named: Sequence[str] | None = None) -> list[Group]:
    """The next `count` groups, or those named; waits until they are complete. See Pacing.take.

    Raises:
      RuntimeError: the sampler's thread gave no sign for timeout_s.
      Exception: what ended the sampler's thread.
    """
    with self._changed:
      while True:
        self._check()
        if (groups := self._pacing.take(count, named)) is not None:
          return groups
        self._changed.wait(1.0)

  def learnt(self, count: int) -> None:
    """The learner is done with so many of the groups that `take` returned."""
    with self._changed:
      self._pacing.learnt(count)
      self._changed.notify_all()

  def replace(self, count: int) -> None:
    """Plays `count` further groups in the place of groups that were not trained."""
    with self._changed:
      self._pacing.replace(count)
      self._changed.notify_all()

  def between_steps(self, call: Callable[[], None]) -> None:
    """Has the sampler's thread call this between two steps, in order; does not wait for it.

    Jobs that begin later begin after the call.
    """
    with self._changed:
      self._check()
      self._calls.put(call)
      self._changed.notify_all()

  def take_idle_s(self) -> float:
    """Seconds since the last call in which the sampler's thread had nothing that it might play."""
    with self._changed:
      idle_s, self._idle_s = self._idle_s, 0.0
      return idle_s

  def depths(self) -> tuple[int, int]:
    """How many groups are in play, and how many are ready for the learner."""
    with self._changed:
      return len(self._pacing.in_flight), len(self._pacing.ready)

  @contextlib.contextmanager
  def still(self) -> Iterator[None]:
    """Nothing begins or ends while the context lasts."""
    with self._changed:
      yield

  def _check(self) -> None:
    if self._error:
      self._told = True
      raise self._error
    silent_s = time.monotonic() - self._last_sign
    if silent_s > self._timeout_s:
      raise RuntimeError(
        f"the sampler's thread gave no sign for {silent_s:.0f} s: a program or a tool hangs; "
        "scripts/top.py shows what each service waits for; run the same command again"
      )

  def _play(self) -> None:
    try:
      with self._devices():
        while not self._closed:
          self._last_sign = time.monotonic()
          self._make_calls()
          ended = self._server.round(self._next_job)
          for group in ended:
            self._ended(group)
          with self._changed:
            for group in ended:
              self._pacing.finished(group)
            if ended:
              self._changed.notify_all()
            elif not self._pacing.in_flight and self._calls.empty() and not self._closed:
              began = time.monotonic()
              self._tell("waits", on="learner")
              self._changed.wait(_IDLE_S)
              self._idle_s += time.monotonic() - began
            else:
              self._tell("plays")
        self._make_calls()  # the last weights are to be evaluated
    except BaseException as error:
      with self._changed:
        self._error = error
        self._changed.notify_all()

  def _make_calls(self) -> None:
    while not self._calls.empty() and self._is_due():
      self._calls.get()()

  def _next_job(self) -> Any:
    with self._changed:
      ready = len(self._pacing.ready)
      waits = not self._calls.empty() and self._is_due()
      draw = None if waits else self._pacing.next()
      if len(self._pacing.ready) > ready:  # a draw whose group an earlier run had played
        self._changed.notify_all()
    return None if draw is None else self._job(draw)
