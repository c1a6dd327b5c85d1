"""One engine in several processes: the first decides, the others make the same calls.

The engine's programs run on the devices of all processes, so every process must start the same ones
in the same order. The decisions of the host depend on the calls and the clock alone, so the first
process sends both before each step and the others repeat them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from jaxrl_agents.sampler.engine_protocol import EngineProtocol
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Generation, SamplingLimits

Call = tuple[float, str, tuple[Any, ...]]
"""(time.monotonic of the first process, method of the engine, arguments)"""


@dataclasses.dataclass
class Clock:
  """The clock of an engine: the time of the first process at its last call."""

  now: float = 0.0

  def __call__(self) -> float:
    return self.now


class Leader:
  """The first process' engine, whose calls the others repeat (an `EngineProtocol`).

  Invariant: calls are sent in the order they were made, and before the step that follows them.

  Args:
    engine: made with `clock` as its clock.
    clock: of the engine.
    tell: sends calls to the other processes.
    held: entered for each step, which must not be interrupted, or the others would wait for it.
  """

  def __init__(
    self,
    engine: EngineProtocol,
    clock: Clock,
    tell: Callable[[list[Call]], None],
    held: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
  ):
    self._engine, self._clock, self._tell, self._held = engine, clock, tell, held
    self._untold: list[Call] = []

  @property
  def stats(self) -> Stats:
    """Of the engine."""
    return self._engine.stats

  @property
  def num_unfinished(self) -> int:
    """Requests that wait or run."""
    return self._engine.num_unfinished

  def submit(self, prompt: np.ndarray, limits: SamplingLimits) -> int:
    """See Engine.submit."""
    return self._call("submit", prompt, limits)

  def cancel(self, request_id: int) -> None:
    """See Engine.cancel."""
    self._call("cancel", request_id)

  def step(self) -> list[tuple[int, Generation | Failure]]:
    """See Engine.step; the others step with it."""
    with self._held():
      self._untold.append((time.monotonic(), "step", ()))
      told, self._untold = self._untold, []
      self._tell(told)
      return replay(told[-1:], self._engine, self._clock)

  def describe(self) -> str:
    """See Engine.describe."""
    return self._engine.describe()

  def _call(self, name: str, *arguments: Any) -> Any:
    call = (time.monotonic(), name, arguments)
    found = replay([call], self._engine, self._clock)
    self._untold.append(call)  # not where it raised: then it changed nothing
    return found


def replay(calls: Sequence[Call], engine: EngineProtocol, clock: Clock) -> Any:
  """Makes calls on an engine at the times they were first made; returns what the last returned."""
  found = None
  for now, name, arguments in calls:
    clock.now = now
    found = getattr(engine, name)(*arguments)
  return found
