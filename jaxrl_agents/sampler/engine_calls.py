"""The calls of an engine as data, which can be made on several engines alike.

The programs of an engine on the devices of several processes run in all of them, so every process
must start the same ones in the same order. What an engine decides depends on its calls and its
clock alone: processes that make the same calls at the same times of their clocks decide alike. No
jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from jaxrl_agents.sampler import sequence as sequence_lib
from jaxrl_agents.sampler.engine_protocol import EngineProtocol
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Generation, SamplingLimits


@dataclasses.dataclass(frozen=True)
class Submit:
  """See Engine.submit; the caller names the request."""

  request_id: int
  prompt: np.ndarray
  limits: SamplingLimits


@dataclasses.dataclass(frozen=True)
class Cancel:
  """See Engine.cancel."""

  request_id: int


@dataclasses.dataclass
class Clock:
  """The clock of an engine: stands still between two `advance`, in every process at one time."""

  now: float = 0.0

  def __call__(self) -> float:
    return self.now


@dataclasses.dataclass(frozen=True)
class Advanced:
  """What `Calls.advance` returns: the requests that ended, by their ids, and the counters."""

  ended: list[tuple[int, Generation | Failure]]
  stats: Stats


class Calls:
  """An engine, and the names that its caller gives to requests.

  Args:
    engine: made with `clock` as its clock.
    clock: of the engine.
  """

  def __init__(self, engine: EngineProtocol, clock: Clock):
    self._engine, self._clock = engine, clock
    self._names: dict[int, int] = {}  # the caller's, by the engine's

  def advance(self, now: float, calls: Iterable[Submit | Cancel], max_steps: int) -> Advanced:
    """Makes calls at the time `now`, then steps until a request has ended, there is none, or for
    `max_steps` steps (0: without such a limit).
    """
    self._clock.now = now
    for call in calls:
      self._make(call)
    ended: list[tuple[int, Generation | Failure]] = []
    steps = 0
    while self._engine.num_unfinished and not ended and not 0 < max_steps <= steps:
      ended = [(self._names.pop(own), result) for own, result in self._engine.step()]
      steps += 1
    return Advanced(ended, dataclasses.replace(self._engine.stats))

  def _make(self, call: Submit | Cancel) -> None:
    if isinstance(call, Submit):
      self._names[self._engine.submit(call.prompt, call.limits)] = call.request_id
      return
    for own in [own for own, name in self._names.items() if name == call.request_id]:
      self._engine.cancel(own)
      del self._names[own]


class Leader:
  """The first process' engine, whose calls the others repeat by `Calls.advance` (an
  `EngineProtocol`).

  Invariant: calls are sent in the order they were made, and before the step that follows them.

  Args:
    engine: made with `clock` as its clock.
    clock: of the engine.
    tell: sends the arguments of `advance` to the other processes.
    max_context_tokens: of the engine.
    vocab_size: of the policy.
    held: entered for each step, which must not be interrupted, or the others would wait for it.
    time: the clock that the engine's one is set to at each step, seconds.
  """

  def __init__(
    self,
    engine: EngineProtocol,
    clock: Clock,
    tell: Callable[[float, Sequence[Submit | Cancel]], None],
    *,
    max_context_tokens: int,
    vocab_size: int,
    held: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    time: Callable[[], float] = time.monotonic,
  ):
    self._engine, self._tell, self._held, self._time = engine, tell, held, time
    self._max_context_tokens, self._vocab_size = max_context_tokens, vocab_size
    self._calls = Calls(engine, clock)
    self._unsent: list[Submit | Cancel] = []
    self._unfinished: set[int] = set()
    self._next_id = 0

  @property
  def stats(self) -> Stats:
    """The statistics of the engine."""
    return self._engine.stats

  @property
  def num_unfinished(self) -> int:
    """Requests that wait or run."""
    return len(self._unfinished)

  def submit(self, prompt: np.ndarray, limits: SamplingLimits) -> int:
    """See Engine.submit."""
    sequence_lib.check(
      np.asarray(prompt),
      limits,
      max_context_tokens=self._max_context_tokens,
      vocab_size=self._vocab_size,
    )
    request_id, self._next_id = self._next_id, self._next_id + 1
    self._unsent.append(Submit(request_id, prompt, limits))
    self._unfinished.add(request_id)
    return request_id

  def cancel(self, request_id: int) -> None:
    """See Engine.cancel."""
    self._unsent.append(Cancel(request_id))
    self._unfinished.discard(request_id)

  def step(self) -> list[tuple[int, Generation | Failure]]:
    """See Engine.step; the others step with it."""
    with self._held():
      now, calls, self._unsent = self._time(), self._unsent, []
      self._tell(now, calls)
      ended = self._calls.advance(now, calls, max_steps=1).ended
    self._unfinished.difference_update(request_id for request_id, _ in ended)
    return ended

  def describe(self) -> str:
    """See Engine.describe."""
    return self._engine.describe()
