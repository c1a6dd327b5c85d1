"""Engines on the cores of a CPU, as one: each core is a device, on which an engine with a share of
the slots and pages steps while the others do.

Within one device XLA leaves cores idle, and one engine whose rows are split over several waits for
them in every layer. Engines share nothing, so that they meet once a step.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
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


@dataclasses.dataclass(eq=False)
class _Core:
  """An engine and its device. `names`: {its request id: ours} of those that have not ended."""

  device: jax.Device
  engine: Engine
  names: dict[int, int] = dataclasses.field(default_factory=dict)


class CoreEngines:
  """The engines as one; its methods are those of `Engine`.

  A request goes to the engine that holds most of its prefix, of several to the one with fewest
  requests, and only to one that is full if all are: what an engine is given depends on earlier
  calls alone. `step` runs one program of each engine that has work.

  Invariant: a request is with one engine until it ends, and `names` of its core have it.

  Args:
    make: makes the engine of a device, which is the default one meanwhile, from parameters that are
      there.
    params: of the policy; copied to each device.
    devices: one for each engine.
    slots: of each engine.
  """

  def __init__(
    self,
    make: Callable[[dict[str, Any]], Engine],
    params: dict[str, Any],
    devices: Sequence[jax.Device],
    *,
    slots: int,
  ):
    self._slots = slots
    self._next_id = 0
    self._cores = []
    for device in devices:
      with jax.default_device(device):
        self._cores.append(_Core(device, make(jax.device_put(params, device))))

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
    """Requests that wait or run."""
    return sum(len(core.names) for core in self._cores)

  def warm_up(self) -> None:
    """Compiles every program, and has all engines draft alike."""
    self._on_each(self._cores, Engine.warm_up)
    self.draft_costs = self._first.draft_costs

  def submit(self, prompt: np.ndarray, limits: SamplingLimits, watch: Watch | None = None) -> int:
    """See Engine.submit."""
    prompt = np.asarray(prompt, np.int32)
    free = [core for core in self._cores if len(core.names) < self._slots] or self._cores
    core = min(free, key=lambda core: (-core.engine.cached_tokens(prompt), len(core.names)))
    own = core.engine.submit(prompt, limits, watch)
    core.names[own], self._next_id = self._next_id, self._next_id + 1
    return core.names[own]

  def step(self) -> list[tuple[int, Generation | Failure]]:
    """See Engine.step; one program of each engine that has work, at the same time.

    Raises:
      TimeoutError: an engine has not stepped within STEP_S.
    """
    busy = [core for core in self._cores if core.engine.num_unfinished]
    ended = []
    for core, found in zip(busy, self._on_each(busy, Engine.step), strict=True):
      ended += [(core.names.pop(own), result) for own, result in found]
    return sorted(ended, key=lambda each: each[0])

  def cancel(self, request_id: int) -> None:
    """See Engine.cancel."""
    for core in self._cores:
      for own in [own for own, name in core.names.items() if name == request_id]:
        core.engine.cancel(own)
        del core.names[own]

  def set_params(self, params: dict[str, Any], version: int, *, recompute: bool = False) -> None:
    """See Engine.set_params."""
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
    with jax.default_device(self._cores[0].device):
      self._first.change_params(change, version, recompute=recompute)
    self._follow_first(recompute)

  def forget(self) -> None:
    """See Engine.forget."""
    for core in self._cores:
      core.engine.forget()
      core.names.clear()

  def describe(self) -> str:
    """See Engine.describe."""
    return "; ".join(f"core {i}: {c.engine.describe()}" for i, c in enumerate(self._cores))

  def _follow_first(self, recompute: bool) -> None:
    """Copies the parameters of the first engine to the others."""
    for core in self._cores[1:]:
      copied = lambda _, device=core.device: jax.device_put(self.params, device, may_alias=False)
      core.engine.change_params(copied, self.version, recompute=recompute)

  def _on_each(self, cores: Sequence[_Core], call: Callable[[Engine], Any]) -> list[Any]:
    """What a method returns on each of these cores, all but the first in threads."""

    def called(core: _Core) -> Any:
      with jax.default_device(core.device):
        return call(core.engine)

    calls = [functools.partial(called, core) for core in cores[1:]]
    others = [background.call(call, name="engine") for call in calls]
    with _awaited(others):
      found = [called(core) for core in cores[:1]]
    return [*found, *(each.result(0) for each in others)]


@contextlib.contextmanager
def _awaited(futures: Sequence[concurrent.futures.Future[Any]]) -> Iterator[None]:
  """Waits for the futures where the context ends, also by an error.

  Raises:
    TimeoutError: not within STEP_S.
  """
  try:
    yield
  finally:
    _, late = concurrent.futures.wait(futures, timeout=STEP_S)
    if late:
      raise TimeoutError(
        f"{len(late)} engines on other cores have not stepped within {STEP_S:g} s: a program "
        "hangs; run the same command again, or set sampler.engines=1"
      )


AnyEngine: TypeAlias = Engine | CoreEngines
"""An engine of this process."""
