"""A `types.Sampler` over an engine in the same process: for evaluation, gateways and tests. No jax.

Workers in other processes ask through their pipe instead; `server` answers them.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import numpy as np

from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Generation, SamplingLimits


class Steps(Protocol):
  """What is needed of an engine."""

  @property
  def stats(self) -> Stats: ...

  @property
  def num_unfinished(self) -> int: ...

  def submit(self, prompt: np.ndarray, limits: SamplingLimits) -> int: ...

  def step(self) -> list[tuple[int, Generation | Failure]]: ...

  def cancel(self, request_id: int) -> None: ...

  def describe(self) -> str: ...


class LocalSampler:
  """Answers concurrent `generate` calls of one event loop from one engine.

  Invariant: while a request is unanswered exactly one task steps the engine. Between two steps
    every other task of the loop that can run does, so that what they ask for joins the next step.
  """

  def __init__(self, engine: Steps):
    self._engine = engine
    self._waiting: dict[int, asyncio.Future[Generation]] = {}
    self._pump: asyncio.Task[None] | None = None

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """Samples a reply.

    Raises:
      ValueError: the request cannot be served (see Engine.submit), or names another policy.
      TimeoutError: limits.deadline_s passed; the message names the request.
    """
    if limits.policy:
      raise ValueError(f"one engine serves here and no policy {limits.policy!r}; see RolloutServer")
    request_id = self._engine.submit(prompt, limits)
    future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
    self._waiting[request_id] = future
    if self._pump is None or self._pump.done():
      self._pump = asyncio.create_task(self._run())
    try:
      return await future
    finally:
      del self._waiting[request_id]
      self._engine.cancel(request_id)

  def playing(self, more: int) -> None:
    """It steps whenever somebody asks, however many play."""

  async def _run(self) -> None:
    """Steps the engine until nobody waits; what it raises reaches all who do."""
    try:
      while self._waiting:
        await asyncio.sleep(0)
        for request_id, result in self._engine.step():
          self._answer(request_id, result)
    except Exception as error:
      for future in self._waiting.values():
        if not future.done():
          future.set_exception(error)

  def _answer(self, request_id: int, result: Generation | Failure) -> None:
    future = self._waiting.get(request_id)
    if future is None or future.done():
      return
    if isinstance(result, Failure):
      future.set_exception(TimeoutError(result.text))
    else:
      future.set_result(result)
