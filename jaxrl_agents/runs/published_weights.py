"""Versions of the weights on their way from the learner of a run to its engines (`publish`)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from jaxrl_agents.config import RunConfig
from jaxrl_agents.learner import barriers
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from jaxrl_agents.runs import processes
from jaxrl_agents.sampler import serving_params
from jaxrl_agents.sampler.core_engines import AnyEngine
from jaxrl_agents.weights import store
from jaxrl_agents.weights.places import Folder
from jaxrl_agents.weights.publisher import Publisher
from jaxrl_agents.weights.receiver import Receiver, Staged

PUBLISHED_KEPT = 2
"""Versions that are kept at least: a reader of the one before last may still be at it."""


class Publishing(Protocol):
  """The learner's end: `weights.publisher.Publisher`, or one that writes every version complete."""

  def publish(self, params: dict[str, Any], version: int) -> None: ...

  def begin(self, params: dict[str, Any], version: int) -> Callable[[], None]: ...

  def restart(self, params: dict[str, Any], version: int) -> None: ...


@contextlib.contextmanager
def publishing(config: RunConfig, folder: Folder) -> Iterator[Publishing]:
  """What publishes versions of the weights, adapters merged, to a folder.

  Every process of the learner makes one, and the same calls of it.
  """
  if config.publish.kind == "full":
    # Tokens of a batch may be that old, and the canary scores them under their own weights.
    yield _Complete(folder, PUBLISHED_KEPT + (config.fleet.max_age if config.fleet.depth else 0))
    return
  with Publisher(
    folder,
    anchor_every=config.publish.anchor_every,
    part=jax.process_index(),
    parts=jax.process_count(),
    meet=processes.wait_for_all,
  ) as publisher:
    yield publisher


class _Complete:
  """Publishes every version complete and keeps the newest ones; see `Publisher`."""

  def __init__(self, folder: Folder, keep: int):
    self._folder, self._keep = folder, keep

  def publish(self, params: dict[str, Any], version: int) -> None:
    store.publish(
      params,
      version,
      self._folder,
      keep=self._keep,
      part=jax.process_index(),
      parts=jax.process_count(),
      meet=processes.wait_for_all,
    )

  def begin(self, params: dict[str, Any], version: int) -> Callable[[], None]:
    self.publish(params, version)
    return lambda: None

  def restart(self, params: dict[str, Any], version: int) -> None:
    if processes.is_first():
      store.withdraw_after(version - 1, self._folder)
    self.publish(params, version)


def read(
  config: RunConfig, folder: Folder, version: int, start: int | None = None
) -> tuple[int, Callable[[], dict[str, Any]]]:
  """Reads a published version of the weights, sharded over the ambient mesh for sampling.

  Args:
    config: of the run.
    folder: of the versions.
    version: to read.
    start: the complete version to begin with; None for the newest.

  Returns:
    (the complete version that it began with, what makes the parameters: of several processes with a
    part of them each must call it, and begin with the same version).

  Raises:
    FileNotFoundError: no such version (it may have been deleted since).
    CorruptWeights: it is damaged.
  """
  reader = _reader(config, folder, sharding.SERVE_RULES)
  staged = reader.read(version, start)
  return staged.base, functools.partial(reader.whole, staged)


class Published:
  """The versions that a folder keeps, for learning from them. Every process of the learner makes
  one, and the same calls of it.

  Args:
    config: of the run.
    folder: of the versions.
  """

  def __init__(self, config: RunConfig, folder: Folder):
    self._config, self._folder = config, folder
    self._reader: Receiver | None = None

  def __call__(self, version: int) -> dict[str, Any] | None:
    """The parameters of a version, sharded over the ambient mesh, which is the same at every call;
    None if they are not kept any more.
    """
    self._reader = self._reader or _reader(self._config, self._folder, sharding.TRAIN_RULES)
    staged = self._read(version)
    bases = barriers.gathered(np.asarray([staged.base if staged else -1]), "version to score")
    if (bases != bases[0]).any():  # all have to begin with the same complete one
      staged = self._read(version, int(bases[0])) if bases.min() >= 0 else None
    gone = barriers.any_of(staged is None, "version that is gone")
    return None if gone or staged is None else self._reader.whole(staged)

  def _read(self, version: int, start: int | None = None) -> Staged | None:
    assert self._reader
    try:
      return self._reader.read(version, start)
    except FileNotFoundError:
      return None


class Loader:
  """Brings published versions to an engine. Made under the engine's mesh.

  Args:
    config: of the run.
    folder: of the versions.
    engine: holds a version; each of its processes makes a loader, and the same calls of it.
  """

  def __init__(self, config: RunConfig, folder: Folder, engine: AnyEngine):
    self._config, self._folder, self._engine = config, folder, engine
    self._recompute = config.fleet.cache == "recompute"
    self._receiver: Receiver | None = None
    if config.publish.kind == "delta":
      cfg = config.policy.model
      self._receiver = Receiver(
        folder,
        engine.version,
        params_lib.abstract(cfg, config.policy.dtype),
        places=_places(config, sharding.SERVE_RULES),
        hold=functools.partial(serving_params.own, cfg=cfg),
        layout=sharding.served,
        any_of=barriers.any_of,
      )

  def warm_up(self) -> None:
    """Compiles what swaps weights."""
    if self._receiver:
      self._receiver.warm_up(self._engine.params)

  def prepare(self, version: int) -> Callable[[], None]:
    """Fetches and verifies a version while the engine goes on; returns what swaps it in, to be
    called between two steps, in the order of the versions.

    Raises:
      FileNotFoundError: no such version.
      CorruptWeights: it is damaged beyond repair.
    """
    set_params = functools.partial(self._engine.set_params, recompute=self._recompute)
    if not self._receiver:
      _, params = read(self._config, self._folder, version)
      return functools.partial(set_params, params(), version)
    change = functools.partial(self._receiver.swap, self._receiver.stage(version))
    change_params = functools.partial(self._engine.change_params, recompute=self._recompute)
    return functools.partial(change_params, change, version)


def _reader(config: RunConfig, folder: Folder, rules: sharding.Rules) -> Receiver:
  """Fetches versions, however they were published."""
  like = params_lib.abstract(config.policy.model, config.policy.dtype)
  return Receiver(folder, -1, like, places=_places(config, rules))


def _places(config: RunConfig, rules: sharding.Rules) -> Any:
  """Shardings of the parameters over the ambient mesh; None without one."""
  mesh = jax.sharding.get_mesh()
  return None if mesh.empty else sharding.shardings(config.policy.model, mesh, rules)
