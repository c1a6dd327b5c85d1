"""The methods of an engine that servers call, whether it runs in this process or elsewhere."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Generation, SamplingLimits


class EngineProtocol(Protocol):
  """See `engine.Engine`, which implements it, and `slices.Slices` and `engine_calls.Leader`."""

  @property
  def stats(self) -> Stats: ...

  @property
  def num_unfinished(self) -> int: ...

  def submit(self, prompt: np.ndarray, limits: SamplingLimits) -> int: ...

  def step(self) -> list[tuple[int, Generation | Failure]]: ...

  def cancel(self, request_id: int) -> None: ...

  def describe(self) -> str: ...
