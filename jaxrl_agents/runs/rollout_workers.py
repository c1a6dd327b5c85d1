"""Who plays the episodes of a run: an engine, or sampler slices, and the workers around it."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.learner.preemption import Notice, Preempted
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import processes, setup, weight_files
from jaxrl_agents.sampler import lockstep
from jaxrl_agents.sampler import stats as stats_lib
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.lockstep import Leader
from jaxrl_agents.sampler.server import RolloutServer
from jaxrl_agents.sampler.slices import Slices
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Group, Task
from jaxrl_agents.weights import store
from jaxrl_agents.wire import listener as listener_lib
from jaxrl_agents.wire.control_channel import ControlChannel
from jaxrl_agents.wire.listener import Listener

PUBLISHED_KEPT = 2


def make_engine(
  config: RunConfig,
  params: dict[str, Any],
  version: int,
  clock: Callable[[], float] = time.monotonic,
  model: PolicyConfig | None = None,
) -> Engine:
  """An engine of a run on the ambient mesh, for a policy of the sizes of `config` or of `model`."""
  sampler = config.sampler
  model = model or config.policy.model
  return Engine(
    model,
    params,
    version=version,
    slots=sampler.slots,
    page_tokens=sampler.page_tokens,
    num_pages=sampler.num_pages,
    max_context_tokens=config.agent_config.token_budget,
    prefill_tokens=sampler.prefill_tokens,
    draft_tokens=sampler.draft_tokens if model.mtp_depth else 0,
    dtype=config.policy.dtype,
    clock=clock,
  )


def fetched(config: RunConfig, weights: pathlib.Path, version: int) -> dict[str, Any]:
  """A published version for an engine: on the ambient mesh, each device its slice."""
  mesh = jax.sharding.get_mesh()
  if mesh.empty:
    return store.fetch(weights, version)
  places = sharding.shardings(config.policy.model, mesh, sharding.SERVE_RULES)
  return store.fetch(weights, version, places)


@dataclasses.dataclass(frozen=True)
class Stage:
  """Weights of a policy that is not trained, in play up to `until`, a share of the steps."""

  folder: pathlib.Path | str
  until: float = 1.0


def stage_at(stages: Sequence[Stage], share: float) -> int:
  """The number of the stage in play at a share of the steps; the last from 1 on."""
  return next((i for i, stage in enumerate(stages) if share < stage.until), len(stages) - 1)


def frozen_engine(config: RunConfig, folder: pathlib.Path | str, version: int) -> Engine:
  """The engine of a policy that is not trained, of the sizes that its folder says.

  Raises:
    ValueError: its vocabulary is not that of the policy in training.
  """
  named, vocab = weight_files.place(folder), config.policy.model.vocab_size
  model = (
    weight_files.load_sizes(named)
    if (named / weight_files.SIZES).is_file()
    else config.policy.model
  )
  if model.vocab_size != vocab:
    raise ValueError(
      f"{folder} has a vocabulary of {model.vocab_size} tokens, the policy in training {vocab}; "
      "they must share policy.tokenizer"
    )
  params = weight_files.load(str(folder), model, dtype=config.policy.dtype)
  return make_engine(config, params, version, model=model)


@contextlib.contextmanager
def listener(config: RunConfig) -> Iterator[Listener | None]:
  """Where workers and samplers of other machines come in; None where nobody is to.

  Raises:
    ValueError: there is no key.
  """
  if not config.workers.listen:
    yield None
    return
  runs = listener_lib.code()
  expected = {"worker": runs, "sampler": {**runs, "config": config_lib.sha256(config)}}
  with Listener(config.workers.listen, listener_lib.read_key(), expected) as opened:
    yield opened


class RolloutWorkers:
  """Plays groups with the newest weights. Use as a context manager.

  Of several processes each makes one, and all make the same calls of it; the first alone has
  workers, and the others' engines repeat what its engine does.

  Args:
    config: of the run.
    spec: of the workers.
    params: that are sampled first, of `version`, adapters merged.
    version: likewise.
    weights: folder of the published versions; needed to publish, and for slices.
    channel: with the other processes; none for one that is alone.
    notice: of a wish to stop, which is followed while groups are played.
    frozen: {policy: its stages} of those that play beside the one in training, at first with the
      weights of their last stage. The number of a stage is the version of what it samples.
  """

  def __init__(
    self,
    config: RunConfig,
    spec: WorkerSpec,
    params: dict[str, Any],
    version: int,
    *,
    weights: pathlib.Path | None,
    channel: ControlChannel,
    notice: Notice,
    frozen: Mapping[str, Sequence[Stage]] | None = None,
  ):
    self._config, self._spec = config, spec
    self._weights = weights or pathlib.Path()
    self._bond, self._notice = channel, notice
    self._clock = lockstep.Clock()
    self._engine: Engine | None = None
    self._slices: Slices | None = None
    if frozen and jax.process_count() > 1:
      raise ValueError(
        f"{', '.join(frozen)} play beside the policy in training, which only a learner of one "
        f"process can serve, and there are {jax.process_count()}; start one"
      )
    self._frozen = frozen or {}
    self._others = {
      f"{name} {i}": frozen_engine(config, stage.folder, i)
      for name, stages in self._frozen.items()
      for i, stage in enumerate(stages)
    }
    self._seen = Stats()
    self._stack = contextlib.ExitStack()
    if config.sampler.slices:
      if channel.is_first:  # what another run left under this number is not what is sampled first
        store.withdraw_after(version - 1, self._weights)
      self._publish(params, version)
    else:
      self._engine = make_engine(config, params, version, self._clock)
    with self._stack:
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
    """The counters of the engine, or of all slices; and of the engines of frozen policies."""
    found = self._slices or self._engine
    counters = [found.stats] if found else [Stats()]
    return stats_lib.total([*counters, *(other.stats for other in self._others.values())])

  def warm_up(self) -> None:
    """Compiles every program of the engine, or waits for the slices to have done so; waits for a
    worker.
    """
    for engine in (self._engine, *self._others.values()):
      if engine:
        engine.warm_up()
    if self._slices:
      self._slices.wait_until_ready()
    if self._bond.is_first:
      self._pool.wait_until_ready()

  def play(
    self,
    tasks: Sequence[Task],
    rollouts: int,
    *,
    seed: int,
    label: str,
    temperature: float = -1.0,
  ) -> Iterator[Group]:
    """The groups of `tasks` as they finish; group ids are "label i". In the first process alone.

    A negative `temperature` stands for that of the config.
    """
    how = setup.sampling(self._config, seed)
    if temperature >= 0:
      how = dataclasses.replace(how, temperature=temperature)
    jobs: Iterable[Job] = (Job(f"{label} {i}", t, rollouts, how) for i, t in enumerate(tasks))
    return self._server.collect(jobs)

  def turn_to(self, share: float) -> None:
    """Frozen policies play with the weights of the stage at this share of the steps, in [0, 1]."""
    if not self._bond.is_first:
      return
    for name, stages in self._frozen.items():
      self._server.stand_in(name, f"{name} {stage_at(stages, share)}")

  def shared(self, make: Callable[[], list[Group]]) -> list[Group]:
    """What `make` gives in the first process, in every process.

    Raises:
      Preempted: in all of them, where one was asked to stop meanwhile.
    """
    if not self._bond.is_first:
      return self._follow("groups")
    try:
      with self._notice.released():
        groups = make()
    except KeyboardInterrupt:
      self._bond.tell(("stopped", None))
      raise
    self._bond.tell(("groups", groups))
    return groups

  def publish(self, params: dict[str, Any], version: int) -> None:
    """Writes a version, adapters merged; then the sampler fetches and verifies it."""
    self._publish(params, version)
    if self._bond.is_first:
      self._bond.tell(("load", version))
    else:
      self._follow("load")
    if self._engine:
      self._engine.set_params(fetched(self._config, self._weights, version), version)
    if self._slices:
      self._slices.load(version)

  def take_stats(self) -> dict[str, int]:
    """The counters since the last call."""
    now, seen = dataclasses.asdict(self.stats), dataclasses.asdict(self._seen)
    self._seen = dataclasses.replace(self.stats)
    return {name: now[name] - seen[name] for name in now}

  def _serve(self, version: int) -> RolloutServer:
    """Opens the listener, starts the workers and the sampler's side of the first process."""
    workers = self._config.workers
    opened = self._stack.enter_context(listener(self._config))
    self._pool = self._stack.enter_context(
      WorkerPool(
        self._spec,
        workers.processes,
        groups_per_worker=workers.episodes,
        stall_s=workers.stall_s,
        listener=opened,
      )
    )
    sampler: Leader | Slices
    if self._engine:
      tell = lambda calls: self._bond.tell(("calls", calls))
      sampler = Leader(self._engine, self._clock, tell, self._notice.held)
    else:
      assert opened is not None  # config.validate
      sampler = self._slices = self._stack.enter_context(
        Slices(
          opened,
          self._config.sampler.slices,
          version,
          max_context_tokens=self._config.agent_config.token_budget,
          vocab_size=self._config.policy.model.vocab_size,
          deterministic=workers.deterministic,
          stall_s=workers.stall_s,
        )
      )
    return RolloutServer(
      sampler,
      self._pool,
      max_rollouts=workers.episodes,
      deterministic=workers.deterministic,
      stall_s=workers.stall_s,
      others=self._others,
    )

  def _publish(self, params: dict[str, Any], version: int) -> None:
    if self._bond.is_first:
      store.begin(version, self._weights)
    processes.wait_for_all("version begun")
    store.write_part(params, version, self._weights, part=jax.process_index())
    processes.wait_for_all("version written")
    if self._bond.is_first:
      store.complete(version, self._weights, parts=jax.process_count(), keep=PUBLISHED_KEPT)

  def _follow(self, wanted: str) -> Any:
    """Repeats the engine's calls of the first process until it says what is wanted."""
    while True:
      kind, content = self._bond.hear()
      if kind == "calls":
        assert self._engine is not None
        lockstep.replay(content, self._engine, self._clock)
      elif kind == "stopped":
        raise Preempted("the first process was asked to stop")
      else:
        assert kind == wanted, (kind, wanted)
        return content


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
  """Yields groups that scripted players play in workers, as they end; group i is "label i".

  Args:
    config: of the run.
    spec: of the workers.
    tasks: to play.
    rollouts: of each task.
    sampling: limits of the episodes.
    label: begins the ids of the groups.
    ready: called when the workers are ready.

  Raises:
    RuntimeError: a worker failed.
  """
  with (
    listener(config) as open_listener,
    WorkerPool(
      spec,
      config.workers.processes,
      stall_s=config.workers.stall_s,
      listener=open_listener,
    ) as pool,
  ):
    pool.wait_until_ready()
    ready()
    for i, task in enumerate(tasks):
      pool.submit(Job(f"{label} {i}", task, rollouts, sampling))
    left = len(tasks)
    while left:
      for _, message in pool.poll(timeout_s=config.workers.stall_s):
        if message[0] == "group":
          left -= 1
          yield message[1]
        elif message[0] == "died":
          for job in message[2]:
            pool.submit(job)
        elif message[0] == "error":
          raise RuntimeError(f"a worker failed: {message[1]}")
