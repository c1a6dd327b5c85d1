"""A process of a sampler slice: an actor on a node of the Ray cluster, with all its accelerators.

The actors of one slice join by jax.distributed and hold one engine, on the mesh of the section
`sampler_mesh`. They are sent the same calls (`sampler.slices`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet import cluster
from jaxrl_agents.learner import barriers
from jaxrl_agents.runs import setup, weight_files
from jaxrl_agents.runs.engines import frozen_engine, make_engine
from jaxrl_agents.runs.published_weights import Loader, read
from jaxrl_agents.sampler.core_engines import AnyEngine
from jaxrl_agents.sampler.engine_calls import Advanced, Calls, Cancel, Clock, Submit
from jaxrl_agents.sampler.slices import FETCHING
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.weights.places import Place

_MEET_S = 120.0


class SliceMember:
  """One process of a slice.

  Invariant: all members of a slice are given the same calls in the same order.

  Args:
    code: `cluster.code()` of the run.
    config: of the run.
    weights: folder of the versions that the learner publishes.
    frozen: folder of the weights of a policy that is not trained, or a shipped one, which the slice
      samples instead; "" for the policy in training.
  """

  def __init__(self, code: str, config: RunConfig, weights: Place, frozen: str = ""):
    cluster.check_code(code)
    self._config, self._weights, self._frozen = config, weights, frozen
    self._devices = contextlib.ExitStack()
    self._engine: AnyEngine | None = None
    self._calls: Calls | None = None
    self._loader: Loader | None = None
    self._fetching = threading.Lock()
    self._fetched: dict[int, Callable[[], None]] = {}  # what swaps in each version
    self._held = -1  # the version that was loaded last

  def address(self, host: str) -> str:
    """ "host:port" with a port of this machine that is free."""
    with socket.socket() as probe:
      probe.bind(("", 0))
      return f"{host}:{probe.getsockname()[1]}"

  def join(self, coordinator: str, num_processes: int, process_id: int) -> None:
    """Joins the other members; to be called once, before `begin`, if there are any."""
    jax.distributed.initialize(
      coordinator,
      num_processes,
      process_id,
      cluster_detection_method="deactivate",
      initialization_timeout=int(_MEET_S),
    )

  def begin(self, version: int) -> Stats:
    """Makes an engine, warmed up; returns its counters. It has the published weights of a version.
    Where the slice samples frozen weights, it has those, and `version` is what their tokens bear.

    Raises:
      FileNotFoundError: the version is not kept any more.
      ValueError: the section sampler_mesh does not fit the devices.
    """
    setup.compilation_cache(self._config)
    self._devices.enter_context(self._mesh())
    clock = Clock()
    if self._frozen:
      self._check_there()
      self._engine = frozen_engine(self._config, self._frozen, version, clock)
    else:
      self._engine = make_engine(self._config, self._read(version), version, clock)
      self._loader = Loader(self._config, self._weights, self._engine)
      self._loader.warm_up()
    self._engine.warm_up()
    self._calls = Calls(self._engine, clock)
    self._held = version
    return dataclasses.replace(self._engine.stats)

  def _check_there(self) -> None:
    """Raises ValueError if this node does not see the frozen weights."""
    if not (weight_files.place(self._frozen) / weight_files.WEIGHTS).is_file():
      raise ValueError(
        f"the node {socket.gethostname()} does not see {self._frozen}, where the weights of a "
        "policy that is not trained are; mount the disk that has them there, under the same path"
      )

  def _read(self, version: int) -> dict[str, Any]:
    """A published version. All members begin with the complete one that the first has found."""
    start, params = read(self._config, self._weights, version)
    if jax.process_count() > 1:
      agreed = int(barriers.gathered(np.asarray([start]), "version to begin with")[0])
      if agreed != start:
        _, params = read(self._config, self._weights, version, agreed)
    return params()

  def prepare(self, version: int) -> None:
    """Fetches and verifies a published version for `load`; called in a thread of its own, while the
    engine goes on. It does nothing before `begin`, nor for a version that was loaded meanwhile.

    Raises:
      FileNotFoundError: the version is not kept any more.
      CorruptWeights: it is damaged beyond repair.
    """
    with self._fetching, self._mesh():
      if self._loader and version > self._held and version not in self._fetched:
        self._fetched[version] = self._loader.prepare(version)

  def load(self, version: int) -> Stats:
    """Gives the engine another published version, fetched by now or not; returns its counters.

    Raises:
      FileNotFoundError: the version is not kept any more.
      CorruptWeights: it is damaged beyond repair.
    """
    assert self._engine is not None and self._loader is not None
    with self._fetching, self._mesh():
      swap = self._fetched.pop(version, None) or self._loader.prepare(version)
      self._held = version
    swap()
    return dataclasses.replace(self._engine.stats)

  def _mesh(self) -> contextlib.AbstractContextManager[None]:
    """The mesh of the engine; to be entered in each thread."""
    return setup.devices(dataclasses.replace(self._config, mesh=self._config.sampler_mesh))

  def advance(self, now: float, calls: list[Submit | Cancel], max_steps: int) -> Advanced:
    """See Calls.advance."""
    assert self._calls is not None
    return self._calls.advance(now, calls, max_steps)


def starter(
  ray: Any, config: RunConfig, weights: Place, frozen: str = ""
) -> Callable[[int], list[Any] | None]:
  """Returns number of a slice -> an actor on each of its nodes; None while they are not all there.

  `weights` and `frozen` as of `SliceMember`. The nodes of slice N were started with the resource
  "sliceN".
  """

  def start(number: int) -> list[Any] | None:
    name, hosts = f"slice{number}", config.sampler.hosts
    nodes = cluster.nodes(ray, **{name: 1})
    if len(nodes) < hosts:
      return None
    # A thread for all calls but those of the group FETCHING, which have one too.
    threads: Any = {"max_concurrency": 1, "concurrency_groups": {FETCHING: 1}}
    actors = [cluster.whole_node(ray, node, name, **threads)(SliceMember) for node in nodes[:hosts]]
    given = cluster.code(), config, weights.absolute(), frozen
    made = [actor.remote(*given) for actor in actors]
    if hosts > 1:
      _join(ray, made, nodes[0].address)
    return made

  return start


def _join(ray: Any, actors: Sequence[Any], host: str) -> None:
  """Has the actors of a slice join; what goes wrong shows in their answers to `begin`."""
  coordinator = actors[0].address.remote(host)
  for i, actor in enumerate(actors):
    actor.join.remote(coordinator, len(actors), i)
