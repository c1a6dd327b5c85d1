"""Engines on the cores of a CPU, as one: each core is a device, on which an engine with a share of
the slots and pages steps while the others do.

Within one device XLA leaves cores idle, and one engine whose rows are split over several waits for
them in every layer. Engines share nothing, and need not wait for one another.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import dataclasses
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxrl_agents import background
from jaxrl_agents.sampler import stats as stats_lib
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Generation, SamplingLimits, Watch

STEP_S = 600.0
"""Longest time for a step of an engine, which may compile its program."""

_EXIT_S = 10.0
"""Longest wait for programs that run where the process ends."""

_Ended: TypeAlias = list[tuple[int, Generation | Failure]]


@dataclasses.dataclass(frozen=True)
class _Request:
  """A request of this name."""

  name: int
  prompt: np.ndarray
  limits: SamplingLimits
  watch: Watch | None


@dataclasses.dataclass(eq=False)
class _Core:
  """An engine and its device. While a step of it runs, nobody else calls the engine's methods,
  except those that only read.

  Attributes:
    names: {the engine's request id: ours} of requests that have not ended.
    requests: requests that came during a step; the engine gets them after it.
    cancelled: the engine's ids of requests that were cancelled during a step.
    step: the step that runs, or has been made and not been taken.
    began: when it began, seconds of time.monotonic.
  """

  device: jax.Device
  engine: Engine
  names: dict[int, int] = dataclasses.field(default_factory=dict)
  requests: list[_Request] = dataclasses.field(default_factory=list)
  cancelled: list[int] = dataclasses.field(default_factory=list)
  step: concurrent.futures.Future[_Ended] | None = None
  began: float = 0.0

  @property
  def num_unfinished(self) -> int:
    """Requests that have not ended."""
    return len(self.names) + len(self.requests)

  def call(self, function: Callable[[Engine], Any]) -> concurrent.futures.Future[Any]:
    """Calls a function of the engine in a thread, with its device as the default one."""

    def called() -> Any:
      with jax.default_device(self.device):
        return function(self.engine)

    return background.call(called, name="engine")

  def hand_over(self) -> None:
    """Gives the engine what came while it stepped. No step runs."""
    for own in self.cancelled:
      self.engine.cancel(own)
    for each in self.requests:
      self.names[self.engine.submit(each.prompt, each.limits, each.watch)] = each.name
    self.cancelled.clear()
    self.requests.clear()

  def start(self) -> None:
    """Starts a step, if none runs and there is work."""
    if self.step is None and self.names:
      self.step, self.began = self.call(lambda engine: engine.step()), time.monotonic()

  def take(self) -> _Ended:
    """What ended with the step that was made, each by our name for it.

    Raises:
      what the step raised.
    """
    assert self.step
    step, self.step = self.step, None
    ended = [(self.names.pop(own), x) for own, x in step.result(0) if own in self.names]
    self.hand_over()
    return ended


class CoreEngines:
  """The engines as one; its methods are those of `Engine`.

  A request goes to the engine that holds most of its prefix, of several to the one with fewest
  requests, and only to one that is full if all are.

  Invariant: a request is with one core until it ends, and `names` or `requests` of that has it.

  Args:
    make: makes the engine of a device, which is the default one meanwhile, from parameters that are
      there.
    params: of the policy; copied to each device.
    devices: one for each engine.
    slots: of each engine.
    lockstep: `step` waits for a program of each engine that has work, so that results depend on the
      calls alone. Else it waits for the first program to end, and the others go on meanwhile.
  """

  def __init__(
    self,
    make: Callable[[dict[str, Any]], Engine],
    params: dict[str, Any],
    devices: Sequence[jax.Device],
    *,
    slots: int,
    lockstep: bool = False,
  ):
    self._slots, self._lockstep = slots, lockstep
    self._next_id = 0
    self._ended: _Ended = []
    self._cores = []
    for device in devices:
      with jax.default_device(device):
        self._cores.append(_Core(device, make(jax.device_put(params, device))))
    _MADE.add(self)

  @property
  def _first(self) -> Engine:
    return self._cores[0].engine

  @property
  def params(self) -> dict[str, Any]:
    """As the first engine holds them."""
    return self._first.params

  @property
  def version(self) -> int:
    """Of the weights."""
    return self._first.version

  @property
  def draft_costs(self) -> dict[int, float]:
    """Of each engine, as the first one has measured them."""
    return self._first.draft_costs

  @draft_costs.setter
  def draft_costs(self, costs: dict[int, float]) -> None:
    for core in self._cores:
      core.engine.draft_costs = dict(costs)

  @property
  def stats(self) -> Stats:
    """The summed counters of all engines."""
    return stats_lib.total(core.engine.stats for core in self._cores)

  @property
  def num_unfinished(self) -> int:
    """Requests that wait, run, or have ended and were not reported."""
    return sum(core.num_unfinished for core in self._cores) + len(self._ended)

  def warm_up(self) -> None:
    """Compiles every program, and has all engines draft alike."""
    self._wait_for_steps()
    calls = [core.call(Engine.warm_up) for core in self._cores]
    _, late = concurrent.futures.wait(calls, timeout=STEP_S)
    if late:
      raise _late(len(late))
    for each in calls:
      each.result(0)
    self.draft_costs = self._first.draft_costs

  def submit(self, prompt: np.ndarray, limits: SamplingLimits, watch: Watch | None = None) -> int:
    """See Engine.submit."""
    prompt = np.asarray(prompt, np.int32)
    self._first.check(prompt, limits)
    free = [core for core in self._cores if core.num_unfinished < self._slots] or self._cores
    core = min(free, key=lambda core: (-core.engine.cached_tokens(prompt), core.num_unfinished))
    name, self._next_id = self._next_id, self._next_id + 1
    core.requests.append(_Request(name, prompt, limits, watch))
    if not core.step:
      core.hand_over()
    return name

  def step(self) -> _Ended:
    """See Engine.step; engines that have work run a program each, at the same time.

    Raises:
      TimeoutError: the program of an engine has not ended within STEP_S.
    """
    for core in self._cores:
      core.start()
    ended, self._ended = self._ended, []
    if not ended:
      self._wait(all_of_them=self._lockstep)
    for core in self._cores:
      if core.step and core.step.done():
        ended += core.take()
    return sorted(ended, key=lambda each: each[0])

  def cancel(self, request_id: int) -> None:
    """See Engine.cancel."""
    self._ended = [each for each in self._ended if each[0] != request_id]
    for core in self._cores:
      core.requests = [each for each in core.requests if each.name != request_id]
      for own in [own for own, name in core.names.items() if name == request_id]:
        del core.names[own]
        core.cancelled.append(own)
      if not core.step:
        core.hand_over()

  def set_params(self, params: dict[str, Any], version: int, *, recompute: bool = False) -> None:
    """See Engine.set_params."""
    self._wait_for_steps()
    with jax.default_device(self._cores[0].device):
      here = jax.device_put(params, self._cores[0].device)
      self._first.set_params(here, version, recompute=recompute)
    self._follow_first(recompute)

  def change_params(
    self,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    version: int,
    *,
    recompute: bool = False,
  ) -> None:
    """See Engine.change_params."""
    self._wait_for_steps()
    with jax.default_device(self._cores[0].device):
      self._first.change_params(change, version, recompute=recompute)
    self._follow_first(recompute)

  def forget(self) -> None:
    """See Engine.forget."""
    self._wait_for_steps()
    self._ended.clear()
    for core in self._cores:
      core.engine.forget()
      core.names.clear()

  def describe(self) -> str:
    """See Engine.describe."""
    # What the engine of a step that runs says of itself changes meanwhile.
    told = lambda core: "a program runs" if core.step else core.engine.describe()
    return "; ".join(
      f"core {i}: {core.num_unfinished} requests, {told(core)}"
      for i, core in enumerate(self._cores)
    )

  def _follow_first(self, recompute: bool) -> None:
    """Copies the parameters of the first engine to the others."""
    for core in self._cores[1:]:
      copied = lambda _, device=core.device: jax.device_put(self.params, device, may_alias=False)
      core.engine.change_params(copied, self.version, recompute=recompute)

  def _wait_for_steps(self) -> None:
    """Returns when no step runs; the next `step` reports what ended with them."""
    self._wait(all_of_them=True)
    for core in self._cores:
      if core.step:
        self._ended += core.take()

  def _wait(self, *, all_of_them: bool) -> None:
    """Waits until one step, or each that runs, has been made.

    Raises:
      TimeoutError: one has not been within STEP_S of its start.
    """
    running = [core for core in self._cores if core.step]
    if not running:
      return
    done = concurrent.futures.ALL_COMPLETED if all_of_them else concurrent.futures.FIRST_COMPLETED
    left_s = min(core.began for core in running) + STEP_S - time.monotonic()
    steps = [core.step for core in running if core.step]
    _, unmade = concurrent.futures.wait(steps, timeout=max(left_s, 0.0), return_when=done)
    now = time.monotonic()
    late = [core for core in running if core.step in unmade and now - core.began >= STEP_S]
    if late:
      raise _late(len(late))


def _late(count: int) -> TimeoutError:
  return TimeoutError(
    f"{count} of the engines of this process (sampler.engines) have not ended a step within "
    f"{STEP_S:g} s: a program hangs; run the same command again, or set sampler.engines=1"
  )


_MADE: weakref.WeakSet[CoreEngines] = weakref.WeakSet()


@atexit.register
def _wait_at_exit() -> None:
  """A thread that runs a program while the interpreter ends would crash the process."""
  steps = [core.step for engines in _MADE for core in engines._cores if core.step]
  concurrent.futures.wait(steps, timeout=_EXIT_S)


AnyEngine: TypeAlias = Engine | CoreEngines
"""An engine of this process."""
