"""One engine that samples from several weights in turn, for Tinker's sampling sessions."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from jaxrl_agents.config import RunConfig
from jaxrl_agents.gateway.tinker.checkpoints import saved_folder
from jaxrl_agents.gateway.tinker.service import BASE
from jaxrl_agents.learner import train_step
from jaxrl_agents.learner.explicit_targets import ExplicitTargets
from jaxrl_agents.runs import setup, tinker_losses
from jaxrl_agents.runs.serving import EngineSampler
from jaxrl_agents.sampler.core_engines import AnyEngine
from jaxrl_agents.types import Generation, SamplingLimits, Watch

KEPT_SNAPSHOTS = 4
"""Weights of sampling sessions that are kept in memory, the newest; weights that were saved with a
name are read from the disk when they are needed."""


class TinkerSampler:
  """Samples from weights by their names.

  Invariant: all sequences that the engine samples are of one name. Requests for another wait until
  these have ended, in the order in which the names were asked for.

  Args:
    config: sizes and shapes of rows, for log-probabilities of given tokens.
    engine: holds the base weights; used by `stepped` alone.
    stepped: steps it.
    base: the parameters of the name BASE.
  """

  def __init__(
    self,
    config: RunConfig,
    engine: AnyEngine,
    stepped: EngineSampler,
    base: Callable[[], dict[str, Any]],
  ):
    self._config, self._engine, self._stepped, self._base = config, engine, stepped, base
    self._snapshots: collections.OrderedDict[str, Any] = collections.OrderedDict()
    self._published: dict[str, Any] = {}
    self._current, self._active = BASE, 0
    self._turning: asyncio.Task[None] | None = None
    self._setting = asyncio.Lock()
    self._waiting: collections.deque[tuple[str, asyncio.Future[None]]] = collections.deque()
    self._scored: tuple[str, Any] = ("", None)

  def hold(self, name: str, weights: Any) -> None:
    """Keeps weights that never change; the oldest are dropped beyond KEPT_SNAPSHOTS."""
    self._snapshots[name] = weights
    while len(self._snapshots) > KEPT_SNAPSHOTS:
      self._snapshots.popitem(last=False)

  async def publish(self, name: str, weights: Any) -> None:
    """Replaces the weights of a name; sequences that are being sampled go on with the new ones."""
    async with self._setting:
      self._published = {name: weights}  # of the model in training; there is one
      if self._current == name:
        await self._stepped.between_steps(lambda: self._set(weights))

  async def generate(
    self, weights: str, prompt: np.ndarray, limits: SamplingLimits, watch: Watch | None
  ) -> Generation:
    """A generation, which `watch` may end.

    Its log-probabilities are those of the untempered, untruncated distribution. Where the engine
    recorded others they are computed again, by the weights of that moment.

    Raises:
      ValueError: the engine refuses the request, or the weights are gone.
      RuntimeError: the engine failed.
    """
    async with self._turn(weights):
      generation = await self._stepped.watched(prompt, limits, watch)
      if limits.temperature in (0.0, 1.0) and limits.top_p == 1.0:
        return generation
      raw = await self._score(weights, np.concatenate([prompt, generation.tokens]))
      return dataclasses.replace(generation, logprobs=raw[len(prompt) - 1 :])

  async def score(self, weights: str, tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities of all tokens but the first, each given those before, float32 [n - 1].

    Raises:
      ValueError: they do not fit into a row of the learner, or the weights are gone.
    """
    async with self._turn(weights):
      return await self._score(weights, tokens)

  async def _score(self, weights: str, tokens: np.ndarray) -> np.ndarray:
    found: np.ndarray
    found = await self._stepped.between_steps(lambda: self._logprobs(self._params(weights), tokens))
    return found

  def _logprobs(self, params: dict[str, Any], tokens: np.ndarray) -> np.ndarray:
    zeros = np.zeros(len(tokens) - 1, np.float32)
    given = ExplicitTargets(tokens[:-1], tokens[1:], zeros, zeros, zeros)
    ((batch, (place,)),) = tinker_losses.packed([given], self._config)
    cfg, scored = self._config.policy.model, tinker_losses.scoring(self._config)
    found = train_step.recompute_logprobs(params, train_step.placed(batch), cfg, scored)
    return np.asarray(found[place.row, place.start : place.end])

  @contextlib.asynccontextmanager
  async def _turn(self, name: str) -> AsyncIterator[None]:
    """Waits until the engine has the weights of a name, and keeps it from changing them."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    self._waiting.append((name, future))
    self._let_in()
    try:
      await future
      yield
    finally:
      if future.done() and not future.cancelled() and not future.exception():
        self._active -= 1
      self._let_in()

  def _let_in(self) -> None:
    """Lets in who waits for the weights that the engine has, if nobody waits for others before;
    begins to change them once nobody uses them."""
    if self._turning is not None and not self._turning.done():
      return
    while self._waiting and self._waiting[0][0] == self._current:
      self._admit(self._waiting.popleft()[1])
    if self._waiting and not self._active:
      self._turning = asyncio.get_running_loop().create_task(self._change())

  def _admit(self, future: asyncio.Future[None]) -> None:
    if not future.done():
      self._active += 1
      future.set_result(None)

  async def _change(self) -> None:
    """Gives the engine the weights that were asked for first, and lets in all who wait for them."""
    name = self._waiting[0][0]
    problem: Exception | None = None
    try:
      async with self._setting:
        await self._stepped.between_steps(lambda: self._set(self._params(name)))
        self._current = name
    except Exception as error:
      problem = error
    mine = [future for each, future in self._waiting if each == name]
    self._waiting = collections.deque(each for each in self._waiting if each[0] != name)
    for future in mine:
      if problem is None:
        self._admit(future)
      elif not future.done():
        future.set_exception(problem)
    self._turning = None
    self._let_in()

  def _set(self, params: Any) -> None:
    self._engine.set_params(params, self._engine.version + 1)

  def _params(self, name: str) -> Any:
    """The parameters of a name; the last ones that were read from the disk are kept."""
    if name in self._published:
      return self._published[name]
    if name in self._snapshots:
      return self._snapshots[name]
    if self._scored[0] != name or self._scored[1] is None:
      self._scored = (name, self._read(name))
    return self._scored[1]

  def _read(self, name: str) -> Any:
    if name == BASE:
      return self._base()
    if "@" not in name:
      raise ValueError(
        f"the weights of {name!r} are no longer kept: the {KEPT_SNAPSHOTS} newest are, those in "
        "flight of the newest model, and those that were saved with a name"
      )
    return setup.loaded(self._config, str(saved_folder(name)))
