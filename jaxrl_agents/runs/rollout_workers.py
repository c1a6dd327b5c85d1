"""Runs the episodes of a run: rollout workers, and the engine or sampler slices that serve them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax

from jaxrl_agents import background, service_log
from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet import cluster
from jaxrl_agents.fleet.async_rollouts import AsyncRollouts
from jaxrl_agents.fleet.ledger import Ledger
from jaxrl_agents.fleet.node_pool import NodePool
from jaxrl_agents.fleet.pacing import Draw, Pacing
from jaxrl_agents.fleet.replies import Replies
from jaxrl_agents.fleet.schedule import Schedule
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.learner.preemption import Notice, Preempted
from jaxrl_agents.runs import agent_setting, published_weights, setup, slice_member, weight_files
from jaxrl_agents.runs.engines import frozen_engine, make_engine
from jaxrl_agents.runs.process_channel import ProcessChannel
from jaxrl_agents.sampler import stats as stats_lib
from jaxrl_agents.sampler.core_engines import AnyEngine
from jaxrl_agents.sampler.crashing_tasks import MAX_RETRIES, CrashingTasks
from jaxrl_agents.sampler.engine_calls import Calls, Clock, Leader
from jaxrl_agents.sampler.server import RolloutServer
from jaxrl_agents.sampler.slices import Slices
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.service_log import Tell
from jaxrl_agents.types import Group, Task
from jaxrl_agents.weights.places import Place


@dataclasses.dataclass(frozen=True)
class FrozenWeights:
  """Weights of a policy that is not trained, sampled until the share `until` of the steps."""

  folder: pathlib.Path | str
  until: float = 1.0


def frozen_at(weights: Sequence[FrozenWeights], share: float) -> int:
  """The index of the weights that are sampled at a share of the steps; the last from 1 on."""
  return next((i for i, each in enumerate(weights) if share < each.until), len(weights) - 1)


@contextlib.contextmanager
def worker_pool(
  config: RunConfig, spec: WorkerSpec, groups_per_worker: int
) -> Iterator[WorkerPool | NodePool]:
  """Workers of this machine, or of the nodes of the Ray cluster that `fleet.address` names."""
  count = config.workers.processes
  options: Any = {"groups_per_worker": groups_per_worker, "stall_s": config.workers.stall_s}
  if config.fleet.backend == "local":
    with WorkerPool(spec, count, **options) as pool:
      yield pool
    return
  with cluster.joined(config.fleet.address) as ray, NodePool(ray, spec, count, **options) as nodes:
    yield nodes


class RolloutWorkers:
  """Runs groups of episodes with the newest weights. Use as a context manager.

  In a run of several processes each makes one and makes the same calls of it. The first process
  alone has workers; the engines of the others repeat the calls of its engine. `published` reads
  versions of the weights back.

  Args:
    config: of the run.
    spec: how the workers are made.
    params: the first weights, adapters merged.
    version: of `params`.
    weights: place of the published versions; needed by `publish` and by slices.
    channel: control channel to the other processes.
    notice: of a request to stop, which interrupts `shared`.
    frozen: {policy: its weights} of policies that are sampled but not trained. The last weights of
      a policy are sampled first. The index of the weights is the version of their tokens.
    tell: of the sampler's states, see service_log.
  """

  def __init__(
    self,
    config: RunConfig,
    spec: WorkerSpec,
    params: dict[str, Any],
    version: int,
    *,
    weights: Place | None,
    channel: ProcessChannel,
    notice: Notice,
    frozen: Mapping[str, Sequence[FrozenWeights]] | None = None,
    tell: Tell = service_log.silent,
  ):
    self._config, self._spec = config, spec
    self._weights = weights or pathlib.Path()
    self._channel, self._notice, self._tell = channel, notice, tell
    self._pauses: list[float] = []
    self._clock = Clock()
    self._engine: AnyEngine | None = None
    self._loader: published_weights.Loader | None = None
    self._slices: Slices | None = None
    if frozen and jax.process_count() > 1 and not config.sampler.frozen_slices:
      raise ValueError(
        f"the frozen policies {', '.join(frozen)} are sampled by the learner's process, and this "
        f"run has {jax.process_count()}; start one process, or train with slices of their own for "
        "these policies (sampler.frozen_slices)"
      )
    self._frozen = frozen or {}
    self._others: dict[str, AnyEngine | Slices] = {}
    self._seen = Stats()
    self._ahead: AsyncRollouts | None = None
    self._schedule: Schedule | None = None
    self.published = published_weights.Published(config, self._weights)
    self._stack = contextlib.ExitStack()
    with self._stack:
      publishing = published_weights.publishing(config, self._weights)
      self._publishing = self._stack.enter_context(publishing)
      if config.sampler.slices:
        self.keep(params, version)
      else:
        self._engine = make_engine(config, params, version, self._clock)
        self._calls = Calls(self._engine, self._clock)
        self._loader = published_weights.Loader(config, self._weights, self._engine)
      if not config.sampler.frozen_slices:
        self._others |= {
          name: frozen_engine(config, folder, i, self._time)
          for name, i, folder in self._frozen_weights()
        }
      if channel.is_first:
        self._server = self._serve(version)
        self.turn_to(1.0)
      self._stack = self._stack.pop_all()

  def __enter__(self) -> RolloutWorkers:
    return self

  def __exit__(self, *_: object) -> None:
    self._stack.close()

  @property
  def stats(self) -> Stats:
    """The summed counters of the engine or of all slices, and of the frozen policies' engines."""
    own = self._slices or self._engine
    counters = [own.stats] if own else [Stats()]
    return stats_lib.total([*counters, *(other.stats for other in self._others.values())])

  def warm_up(self) -> None:
    """Compiles every program of the engines, then waits for the slices and for one worker."""
    slices: list[Slices] = []
    for engine in (self._engine, self._slices, *self._others.values()):
      if isinstance(engine, Slices):
        slices.append(engine)
      elif engine:
        engine.warm_up()
    if self._loader:
      self._loader.warm_up()
    for each in slices:  # which compile at the same time
      each.begin()
    for each in slices:
      each.wait_until_ready()
    if self._channel.is_first:
      self._pool.wait_until_ready()

  def play(self, jobs: Iterable[Job]) -> Iterator[Group]:
    """Yields the groups of the jobs as they end. Only the first process may call it."""
    self._tell("plays")
    yield from self._server.collect(jobs)
    self._tell("waits", on="learner")

  @contextlib.contextmanager
  def noted(self, ledger: Ledger, replies: Replies | None = None) -> Iterator[None]:
    """Notes which rollouts are played again, and what they need not sample, while the context
    lasts.
    """
    ignored, self._server.played_again = self._server.played_again, ledger.played_again
    self._server.replies = replies
    try:
      yield
    finally:
      self._server.played_again, self._server.replies = ignored, None

  @contextlib.contextmanager
  def scheduled(self, schedule: Schedule | None) -> Iterator[None]:
    """Has a schedule record, or decide, what reaches the engines while the context lasts, on which
    nothing that was played before has an influence. Nothing may be in play.
    """
    if not schedule:
      yield
      return
    self._server.forget()
    engines = {
      name: each
      for name, each in {"": self._engine, **self._others}.items()
      if each and not isinstance(each, Slices)
    }
    for engine in engines.values():
      engine.forget()
    measured = {name: [*engine.draft_costs.values()] for name, engine in engines.items()}
    for name, costs in schedule.draft_costs(measured).items():
      engines[name].draft_costs = dict(zip(engines[name].draft_costs, costs, strict=True))
    self._schedule = self._server.schedule = schedule
    try:
      yield
    finally:
      self._schedule = self._server.schedule = None

  @contextlib.contextmanager
  def ahead(
    self, pacing: Pacing, job: Callable[[Draw], Job], ended: Callable[[Group], None]
  ) -> Iterator[AsyncRollouts]:
    """Plays in a thread of its own, paced, while the context lasts; `publish` has the samplers then
    swap the weights between two of their steps. `ended` as of `AsyncRollouts`.
    """
    devices = lambda: setup.devices(self._config)
    timeout_s = 2 * self._config.workers.stall_s
    with AsyncRollouts(
      self._server,
      pacing,
      job,
      ended=ended,
      devices=devices,
      timeout_s=timeout_s,
      tell=self._tell,
      is_due=self._schedule.swap_is_due if self._schedule else lambda: True,
    ) as self._ahead:
      try:
        yield self._ahead
      finally:
        self._ahead = None

  def turn_to(self, share: float) -> None:
    """Chooses the weights of the frozen policies for this share of the steps, in [0, 1]."""
    if not self._channel.is_first:
      return
    for name, weights in self._frozen.items():
      engine = f"{name} {frozen_at(weights, share)}"
      self._between_steps(functools.partial(self._server.stand_in, name, engine))

  def shared(self, make: Callable[[], list[Group]]) -> list[Group]:
    """Calls `make` in the first process and returns its groups in every process.

    Raises:
      Preempted: in every process, if one was asked to stop meanwhile.
    """
    if not self._channel.is_first:
      return list(self._follow("groups")[0])
    try:
      with self._notice.released():
        groups = make()
    except KeyboardInterrupt:
      self._channel.broadcast(("stopped",))
      raise
    self._channel.broadcast(("groups", groups))
    return groups

  def publish(self, params: dict[str, Any], version: int) -> None:
    """Writes a version of the weights, adapters merged; the samplers then fetch and verify it."""
    self._publishing.publish(params, version)
    if self._channel.is_first:
      self._channel.broadcast(("load", version))
    else:
      self._follow("load")
    if self._loader:
      self.load(version)
    if self._slices:
      self._slices.load(version)

  def begin_publishing(self, params: dict[str, Any], version: int) -> Callable[[], None]:
    """The part of `publish` that needs the parameters; returns the rest, which any thread may call.
    Not for a run of several processes whose engine spans them.
    """
    write = self._publishing.begin(params, version)

    def finish() -> None:
      write()
      if self._channel.is_first:
        with setup.devices(self._config):
          self.load(version)

    return finish

  def load(self, version: int) -> None:
    """Has a published version fetched while the samplers go on, which swap it in between two steps.

    Raises:
      FileNotFoundError: no such version (it may have been deleted since).
      CorruptWeights: it is damaged beyond repair.
    """
    holder = self._loader or self._slices
    assert holder is not None
    self._between_steps(functools.partial(self._swap, holder.prepare(version), version))

  @property
  def places(self) -> dict[str, dict[str, int]]:
    """{service: counts} of the workers of each node, and of the slices; of the first process."""
    slices = (each for each in (self._slices, *self._others.values()) if isinstance(each, Slices))
    return functools.reduce(operator.or_, (each.places for each in slices), self._pool.places)

  def take_pause_s(self) -> float:
    """Seconds since the last call in which the engine stood still for new weights."""
    pauses, self._pauses = self._pauses, []
    return sum(pauses)

  def _swap(self, change: Callable[[], None], version: int) -> None:
    """Runs in the thread that has the server."""
    self._tell("swaps weights", version=version)
    began = time.monotonic()
    change()
    self._pauses.append(time.monotonic() - began)
    if self._schedule:
      self._schedule.swapped(version)
    if not self._ahead:
      self._tell("waits", on="learner")

  def _time(self) -> float:
    """The clock of what the engines' deadlines are measured by."""
    return self._schedule.time() if self._schedule else time.monotonic()

  def keep(self, params: dict[str, Any], version: int) -> None:
    """Writes the weights that the samplers begin with, in the place of any that another run left
    under this number or a later one."""
    self._publishing.restart(params, version)

  def take_stats(self) -> dict[str, int]:
    """The counters since the last call."""
    now, seen = dataclasses.asdict(self.stats), dataclasses.asdict(self._seen)
    self._seen = dataclasses.replace(self.stats)
    return {name: now[name] - seen[name] for name in now}

  def _between_steps(self, call: Callable[[], None]) -> None:
    """Calls it in the thread that has the server, between two steps of the engine."""
    if self._ahead:
      self._ahead.between_steps(call)
    else:
      call()

  def _serve(self, version: int) -> RolloutServer:
    """Starts the workers and the sampler, in the first process."""
    workers, sampled = self._config.workers, self._config.sampler
    self._pool = self._stack.enter_context(worker_pool(self._config, self._spec, workers.episodes))
    own = range(sampled.slices - sampled.frozen_slices)
    if sampled.slices:
      ray = self._stack.enter_context(cluster.joined(self._config.fleet.address))
    sampler: Leader | Slices
    if self._engine:
      sizes = self._sizes
      tell = lambda now, calls: self._channel.broadcast(("advance", now, tuple(calls)))
      held, clock = self._notice.held, self._time
      sampler = Leader(self._engine, self._clock, tell, held=held, time=clock, **sizes)
    else:
      sampler = self._slices = self._sliced(ray, own, version)
    if sampled.frozen_slices:
      weights = list(self._frozen_weights())
      shares = slices_of(sampled.slices, sampled.frozen_slices, len(weights))
      for (name, i, folder), numbers in zip(weights, shares, strict=True):
        self._others[name] = self._sliced(ray, numbers, i, named(folder))
    in_thread: Callable[[Callable[[], Any]], Future[Any]] | None = None
    # Programs of several devices must reach all of them in one order, and so come from one thread.
    on_slices = bool(sampled.frozen_slices)
    if self._others and not on_slices and setup.is_on_one_device(self._config):
      in_thread = functools.partial(background.call, name="engine")
    # While tools run nothing is heard of an episode.
    max_turn_s = agent_setting.agent(self._config).max_turn_s(
      self._config.agent_config, workers.stall_s
    )
    return RolloutServer(
      sampler,
      self._pool,
      max_rollouts=workers.episodes,
      deterministic=workers.deterministic,
      stall_s=max(workers.stall_s, max_turn_s),
      others=self._others,
      in_thread=in_thread,
    )

  def _frozen_weights(self) -> Iterator[tuple[str, int, pathlib.Path | str]]:
    """(name of the engine, version of its tokens, folder) of all weights that are not trained."""
    for name, weights in self._frozen.items():
      for i, each in enumerate(weights):
        yield f"{name} {i}", i, each.folder

  @property
  def _sizes(self) -> dict[str, int]:
    """What every sampler is made with."""
    return {
      "max_context_tokens": self._config.agent_config.token_budget,
      "vocab_size": self._config.policy.model.vocab_size,
    }

  def _sliced(self, ray: Any, numbers: Sequence[int], version: int, frozen: str = "") -> Slices:
    """The slices of these numbers, which sample published weights, or those in a folder."""
    workers = self._config.workers
    made = Slices(
      ray,
      slice_member.starter(ray, self._config, self._weights, frozen),
      numbers,
      version,
      policy=f"the policy in {frozen}" if frozen else "the policy in training",
      deterministic=workers.deterministic,
      stall_s=workers.stall_s,
      **self._sizes,
    )
    return self._stack.enter_context(made)

  def _follow(self, wanted: str) -> Any:
    """Repeats the calls of the first process's engine until a message of the kind `wanted`."""
    while True:
      kind, *content = self._channel.receive()
      if kind == "advance":
        now, calls = content
        self._calls.advance(now, calls, max_steps=1)
      elif kind == "stopped":
        raise Preempted("the first process was asked to stop")
      else:
        assert kind == wanted, (kind, wanted)
        return content


def slices_of(slices: int, frozen_slices: int, weights: int) -> list[range]:
  """The slices of each of so many frozen weights, which take the last numbers in turn."""
  return [range(slices - frozen_slices + k, slices, weights) for k in range(weights)]


def named(folder: pathlib.Path | str) -> str:
  """The name of a shipped policy, or the whole path of a folder, for other machines."""
  name = str(folder)
  return name if name in weight_files.SHIPPED else str(weight_files.place(name).absolute())


def scripted(
  config: RunConfig,
  spec: WorkerSpec,
  tasks: Sequence[Task],
  rollouts: int,
  sampling: Sampling,
  *,
  label: str,
  ready: Callable[[], None] = lambda: None,
) -> Iterator[Group]:
  """Yields the groups of a scripted player as they end; group ids are "label i".

  Args:
    config: of the run.
    spec: how the workers are made, with the player.
    tasks: one group each.
    rollouts: episodes of each task.
    sampling: limits of the episodes.
    label: first part of the group ids.
    ready: called when the workers are ready.

  Raises:
    RuntimeError: a worker failed.
  """
  with worker_pool(config, spec, groups_per_worker=4) as pool:
    pool.wait_until_ready()
    ready()
    for i, task in enumerate(tasks):
      pool.submit(Job(f"{label} {i}", task, rollouts, sampling))
    left, crashing = len(tasks), CrashingTasks(MAX_RETRIES)
    while left:
      while job := crashing.next_job():
        pool.submit(job)
      for _, message in pool.poll(timeout_s=config.workers.stall_s):
        ended: list[Group] = []
        if message[0] == "group":
          crashing.finished(message[1].id)
          ended = [message[1]]
        elif message[0] == "died":
          ended = crashing.after_death(message[2], message[1])
        elif message[0] == "error":
          raise RuntimeError(f"a worker failed: {message[1]}")
        left -= len(ended)
        yield from ended
