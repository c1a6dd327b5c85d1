"""Opens what a run stands on: corpus and tasks, weights, optimizer, devices."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import optax

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents.agent import Agent, Setting, Tasks
from jaxrl_agents.chat import Chat, document_numbers
from jaxrl_agents.config import LearnerConfig, RunConfig, SftConfig, import_path
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.learner import checkpoint
from jaxrl_agents.learner import state as state_lib
from jaxrl_agents.learner.state import TrainState
from jaxrl_agents.policy import copying_heads, lora, sharding
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import weight_files
from jaxrl_agents.runs.workdir import Workdir


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


def agent(config: RunConfig) -> Agent:
  """The agent of the run."""
  return import_path.agent(config.agent)


def setting(config: RunConfig) -> Setting:
  """What the run hands to its agent."""
  return Setting(
    options=config.agent_config,
    corpus=config.corpus,
    sft=config.sft,
    chat=load_chat(config),
    cache=cache(config),
    seed=config.seed,
    resamples=config.eval.bootstrap_resamples,
  )


def open_tasks(config: RunConfig, report: Any = print) -> Tasks:
  """Makes the tasks of the run's agent, or finds them in the cache.

  Raises:
    ValueError: no tasks can be made.
  """
  return agent(config).tasks(setting(config), report)


def worker_spec(config: RunConfig, tasks: Tasks, player: str = "") -> WorkerSpec:
  """Workers in which the policy plays, or a scripted player of the agent."""
  shared, tokenizer = tasks.shared, config.policy.tokenizer
  return agent_lib.worker_spec(config.agent, tokenizer, config.agent_config, shared, player)


def sampling(config: RunConfig, seed: int) -> Sampling:
  """How episodes are sampled."""
  options, stall_s = config.agent_config, config.workers.stall_s
  return Sampling(
    temperature=config.sampler.temperature,
    top_p=config.sampler.top_p,
    seed=seed,
    max_new_tokens=options.max_new_tokens,
    generate_deadline_s=stall_s,
    episode_deadline_s=agent(config).turn_s(options, stall_s) * options.max_turns,
  )


def initial_params(config: RunConfig) -> dict[str, Any]:
  """Parameters of `policy.init`: drawn from the seed, or read from a folder of weights."""
  init, cfg = config.policy.init, config.policy.model
  if init not in ("scratch", "copying"):
    return loaded(config, init)
  params = params_lib.init(cfg, jax.random.key(config.seed))
  if init == "copying":
    key, marks = jax.random.key(config.seed + 1), document_numbers.of(load_chat(config)).mark_ids
    params = copying_heads.with_copying_heads(params, cfg, key, alike=marks.tolist())
  abstract = params_lib.abstract(cfg, config.policy.dtype)
  return jax.tree.map(lambda x, like: x.astype(like.dtype), params, abstract)


def warm_params(config: RunConfig, workdir: Workdir) -> dict[str, Any]:
  """Parameters that reinforcement learning starts from: of the warm-up if there was one."""
  if (workdir.warm_start / weight_files.WEIGHTS).exists():
    return loaded(config, str(workdir.warm_start))
  return initial_params(config)


def loaded(config: RunConfig, folder: str) -> dict[str, Any]:
  """Parameters of a folder of weights, read to their places on the ambient mesh."""
  mesh, cfg = jax.sharding.get_mesh(), config.policy.model
  places = None if mesh.empty else sharding.shardings(cfg, mesh)
  return weight_files.load(folder, cfg, dtype=config.policy.dtype, shardings=places)


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


def cache(config: RunConfig) -> pathlib.Path:
  """Where what can be made again is kept: $JAXRL_CACHE, else `corpus.cache`."""
  return pathlib.Path(os.environ.get("JAXRL_CACHE", config.corpus.cache)).expanduser()


def compilation_cache(config: RunConfig) -> None:
  """Keeps compiled programs, so that a second run starts at once; elsewhere where jax was told."""
  if not jax.config.jax_compilation_cache_dir:
    jax.config.update("jax_compilation_cache_dir", str(cache(config)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
