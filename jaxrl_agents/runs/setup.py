"""Opens what a run stands on: corpus and tasks, weights, sampler and workers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import optax

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.chat import Chat, numbers
from jaxrl_agents.config import LearnerConfig, RunConfig, SftConfig
from jaxrl_agents.data import practice, task_sets
from jaxrl_agents.envs import short_ids
from jaxrl_agents.envs.search_expert import ExpertNoise
from jaxrl_agents.harness.process import Job, WorkerSpec
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.workers import WorkerPool
from jaxrl_agents.learner import checkpoint
from jaxrl_agents.learner import state as state_lib
from jaxrl_agents.learner.state import TrainState
from jaxrl_agents.policy import lora, mimetic, sharding
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.retrieval import index as index_lib
from jaxrl_agents.runs import base
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.server import RolloutServer
from jaxrl_agents.types import Group, Task


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Tasks by split and the index that they are searched in; `short_ids` as in SearchConfig."""

  task_set: task_sets.TaskSet
  index: index_lib.Index
  short_ids: bool = False

  @functools.cached_property
  def tasks(self) -> dict[str, Sequence[Task]]:
    """The tasks of each split."""
    return {split: self._named(tasks) for split, tasks in self.task_set.tasks.items()}

  def sample(self, split: str, count: int, seed: int) -> list[Task]:
    """`count` tasks of a split in a random order; all of them if there are fewer."""
    tasks = sorted(self.tasks[split], key=lambda task: task.id)
    if not tasks:
      raise ValueError(f"the corpus has no {split} tasks; use a larger one")
    return random.Random(f"{seed} {split}").sample(tasks, min(count, len(tasks)))

  def practice(self, count: int, seed: int, max_clues: int = 3) -> list[Task]:
    """Simple tasks of unrelated clues of the train split."""
    clues = self.task_set.clue_pool("train")
    return self._named(practice.practice_tasks(clues, count, seed, max_clues))

  def sampled_texts(self, count: int, seed: int = 0) -> list[str]:
    """The text of `count` random chunks, or of all if there are fewer."""
    chunks = self.task_set.chunks
    return [c.text for c in random.Random(seed).sample(chunks, min(count, len(chunks)))]

  def _named(self, tasks: Iterable[Task]) -> list[Task]:
    if not self.short_ids:
      return list(tasks)
    chunks = lambda task: [
      chunk.id for i in task.facts.get("document_ids", ()) for chunk in self.index.document(i)
    ]
    return [short_ids.shortened(task, chunks(task)) for task in tasks]


def open_corpus(config: RunConfig, report=print) -> Corpus:
  """Makes tasks and index of `config.corpus`, or finds them in the cache.

  Raises:
    ValueError: the corpus cannot be read or no tasks can be made of it.
  """
  corpus = config.corpus
  folder = cache(config)
  task_set = task_sets.prepared(
    corpus.source,
    count_tokens=load_chat(config).count,
    chunk_tokens=corpus.chunk_tokens,
    cache_dir=folder,
    seed=corpus.seed,
    report=report,
  )
  index = index_lib.build(task_set.chunks, folder, dense_leg=corpus.dense)
  return Corpus(task_set, index, config.search.short_ids)


def load_chat(config: RunConfig) -> Chat:
  """The tokenizer and template of the run.

  Raises:
    ValueError: the policy's vocabulary is smaller than the tokenizer's.
  """
  chat = chat_lib.load(config.policy.tokenizer)
  if chat.vocab_size > config.policy.model.vocab_size:
    raise ValueError(
      f"policy.model.vocab_size={config.policy.model.vocab_size} is smaller than the "
      f"{chat.vocab_size} ids of the tokenizer {config.policy.tokenizer!r}; raise it"
    )
  return chat


def sampling(config: RunConfig, seed: int) -> Sampling:
  """How episodes are sampled."""
  return Sampling(
    temperature=config.sampler.temperature,
    top_p=config.sampler.top_p,
    seed=seed,
    max_new_tokens=config.search.max_new_tokens,
    generate_deadline_s=config.workers.stall_s,
    episode_deadline_s=config.workers.stall_s * config.search.max_turns,
  )


def expert_spec(config: RunConfig, corpus: Corpus) -> WorkerSpec:
  """Workers in which the scripted expert plays."""
  noise = ExpertNoise(hasty=config.sft.hasty)
  arguments = (config.policy.tokenizer, str(corpus.index.folder), config.search, noise)
  return WorkerSpec("jaxrl_agents.envs.search_expert:expert_services", arguments)


def policy_spec(config: RunConfig, corpus: Corpus) -> WorkerSpec:
  """Workers in which the policy plays, sampled in this process."""
  arguments = (config.policy.tokenizer, str(corpus.index.folder), config.search)
  return WorkerSpec("jaxrl_agents.envs.search:policy_services", arguments)


def initial_params(config: RunConfig) -> dict[str, Any]:
  """Parameters of `policy.init`: drawn from the seed, or read from a folder of weights."""
  init, cfg = config.policy.init, config.policy.model
  if init not in ("scratch", "copying"):
    return loaded(config, init)
  params = params_lib.init(cfg, jax.random.key(config.seed))
  if init == "copying":
    key, marks = jax.random.key(config.seed + 1), numbers.of(load_chat(config)).mark_ids
    params = mimetic.with_copying_heads(params, cfg, key, alike=marks.tolist())
  abstract = params_lib.abstract(cfg, config.policy.dtype)
  return jax.tree.map(lambda x, like: x.astype(like.dtype), params, abstract)


def warm_params(config: RunConfig, workdir: Workdir) -> dict[str, Any]:
  """Parameters that reinforcement learning starts from: of the warm-up if there was one."""
  if (workdir.warm_start / base.WEIGHTS).exists():
    return loaded(config, str(workdir.warm_start))
  return initial_params(config)


def loaded(config: RunConfig, folder: str) -> dict[str, Any]:
  """Parameters of a folder of weights, read to their places on the ambient mesh."""
  mesh, cfg = jax.sharding.get_mesh(), config.policy.model
  places = None if mesh.empty else sharding.shardings(cfg, mesh)
  return base.load(folder, cfg, dtype=config.policy.dtype, shardings=places)


def with_adapters(config: RunConfig, params: dict[str, Any]) -> dict[str, Any]:
  """`params` with the adapters of `config.lora`, or themselves where all parameters are trained."""
  if not config.lora.rank:
    return params
  return lora.adapt(
    params,
    config.policy.model,
    jax.random.key(config.seed + 2),
    rank=config.lora.rank,
    alpha=config.lora.alpha,
    targets=config.lora.targets,
  )


def make_optimizer(
  config: RunConfig, section: SftConfig | LearnerConfig, **schedule: Any
) -> optax.GradientTransformation:
  """The optimizer of a phase for what `config` trains; `schedule` as in state.make_optimizer."""
  return state_lib.make_optimizer(
    config.policy.model,
    learning_rate=section.lr,
    kind=section.optimizer,
    warmup_steps=section.warmup_steps,
    weight_decay=section.weight_decay,
    trained="adapters" if config.lora.rank else "all",
    qk_clip=section.qk_clip,
    dtype=config.policy.dtype,
    **schedule,
  )


@contextlib.contextmanager
def devices(config: RunConfig) -> Iterator[None]:
  """Makes the mesh of the config ambient while the context lasts.

  Raises:
    ValueError: its factors do not multiply to the number of devices.
  """
  sizes = dataclasses.asdict(config.mesh)
  if set(sizes.values()) == {1}:
    yield
    return
  with jax.set_mesh(sharding.make_mesh(**sizes)):
    yield


def fresh_state(
  config: RunConfig, params: dict[str, Any], tx: optax.GradientTransformation
) -> TrainState:
  """A state at version 0 with the parameters, laid out over the ambient mesh; takes `params`."""
  mesh, cfg = jax.sharding.get_mesh(), config.policy.model
  make = lambda params: state_lib.make_state(params, tx, jax.random.key(config.seed))
  if mesh.empty:
    return make(params)
  of_params = lora.shardings(cfg, params, mesh)
  places = state_lib.shardings_of(jax.eval_shape(make, params), tx, of_params, mesh)
  params = sharding.place(params, places.policy.params)
  return jax.jit(make, out_shardings=places, donate_argnums=0)(params)


def restored(manager: Any, fresh: TrainState) -> tuple[int, TrainState, dict[str, Any]]:
  """(next step, state, ledger) of the newest checkpoint, or (0, fresh, {}) where there is none."""
  if manager.latest_step() is None:
    return 0, fresh, {}
  state, ledger, step = checkpoint.restore(manager, fresh)
  return step, state, ledger


class Players:
  """The engine in this process and the workers around it. Use as a context manager."""

  def __init__(self, config: RunConfig, corpus: Corpus, params: dict[str, Any], version: int):
    sampler, workers = config.sampler, config.workers
    self._config = config
    self.engine = Engine(
      config.policy.model,
      params,
      version=version,
      slots=sampler.slots,
      page_tokens=sampler.page_tokens,
      num_pages=sampler.num_pages,
      max_context_tokens=config.search.token_budget,
      prefill_tokens=sampler.prefill_tokens,
      draft_tokens=sampler.draft_tokens,
      dtype=config.policy.dtype,
    )
    self._pool = WorkerPool(
      policy_spec(config, corpus),
      workers.processes,
      groups_per_worker=workers.episodes,
      stall_s=workers.stall_s,
    )
    self._server = RolloutServer(
      self.engine,
      self._pool,
      max_rollouts=workers.episodes,
      deterministic=workers.deterministic,
      stall_s=workers.stall_s,
    )
    self._seen = dataclasses.asdict(self.engine.stats)

  def __enter__(self) -> Players:
    return self

  def __exit__(self, *_: object) -> None:
    self._pool.close()

  def warm_up(self) -> None:
    """Compiles every program of the engine."""
    self.engine.warm_up()

  def play(self, tasks: Sequence[Task], rollouts: int, *, seed: int, label: str) -> Iterator[Group]:
    """The groups of `tasks` as they finish; group ids are "label i"."""
    how = sampling(self._config, seed)
    jobs: Iterable[Job] = (Job(f"{label} {i}", t, rollouts, how) for i, t in enumerate(tasks))
    return self._server.collect(jobs)

  def take_stats(self) -> dict[str, int]:
    """The engine's counters since the last call."""
    now = dataclasses.asdict(self.engine.stats)
    found = {name: now[name] - self._seen[name] for name in now}
    self._seen = now
    return found


def cache(config: RunConfig) -> pathlib.Path:
  """Where what can be made again is kept: $JAXRL_CACHE, else `corpus.cache`."""
  return pathlib.Path(os.environ.get("JAXRL_CACHE", config.corpus.cache)).expanduser()


def compilation_cache(config: RunConfig) -> None:
  """Keeps compiled programs, so that a second run starts at once; elsewhere where jax was told."""
  if not jax.config.jax_compilation_cache_dir:
    jax.config.update("jax_compilation_cache_dir", str(cache(config)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
