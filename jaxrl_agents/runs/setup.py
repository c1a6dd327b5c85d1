"""Makes the parts of a run from its config: agent, tasks, weights, optimizer, devices."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

import jax
import optax

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import chat_endpoint
from jaxrl_agents.agents import rubric as rubric_lib
from jaxrl_agents.agents.agent import DEMONSTRATOR, Tasks
from jaxrl_agents.agents.grading import Judging
from jaxrl_agents.agents.teacher import Teacher
from jaxrl_agents.chat import document_numbers
from jaxrl_agents.config import LearnerConfig, RunConfig, SftConfig, cache_folder, import_path
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.learner import checkpoint, losses
from jaxrl_agents.learner import state as state_lib
from jaxrl_agents.learner.state import TrainState
from jaxrl_agents.policy import copying_heads, lora, sharding
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import (
  agent_setting,
  cores,
  listeners,
  mcp_tools,
  metrics_server,
  processes,
  weight_files,
)
from jaxrl_agents.runs.workdir import Workdir

UNTRAINED = ("scratch", "copying")
"""Values of policy.init that name no weights."""


@contextlib.contextmanager
def opened(config: RunConfig, workdir: Workdir) -> Iterator[Tasks]:
  """Holds the workdir of a run, opens its tasks, and makes its mesh ambient while that lasts.

  Raises:
    ValueError: another run has the workdir, there are no weights to start from, no tasks can be
      made, or the mesh has other devices.
  """
  begun = workdir.warm_start.exists() or any(workdir.checkpoints.iterdir())
  if not begun and config.policy.init not in UNTRAINED:
    weight_files.check_there(config.policy.init)  # before tasks are made, which takes minutes
  with contextlib.ExitStack() as stack:
    if processes.is_first():
      stack.enter_context(workdir.held())
      stack.enter_context(_monitored(config, workdir))
      mcp_tools.keep(config, workdir)
    with processes.first_alone("corpus"):
      tasks = agent_setting.open_tasks(config)
    stack.enter_context(devices(config))
    yield tasks


@contextlib.contextmanager
def _monitored(config: RunConfig, workdir: Workdir) -> Iterator[None]:
  """Tells listeners each line of metrics and serves numbers, if `config.monitor` says so."""
  monitor = config.monitor
  with listeners.opened(config, workdir.path) as found:
    workdir.listeners += found
    with metrics_server.serving(monitor.host, monitor.port, workdir.path):
      yield


def worker_spec(
  config: RunConfig, tasks: Tasks, player: str = "", *, teacher: Teacher | None = None
) -> WorkerSpec:
  """How workers are made in which the policy (or a scripted player of the agent) acts. The judge of
  the config, if there is one, grades all but the demonstrator.
  """
  shared, tokenizer = tasks.shared, config.policy.tokenizer
  listing = mcp_tools.listing(config) if config.tools.mcp and processes.is_first() else None
  return agent_lib.worker_spec(
    config.agent,
    tokenizer,
    config.agent_config,
    shared,
    player,
    listing,
    judging=None if player == DEMONSTRATOR else judging(config),
    teacher=teacher,
    thinking=config.policy.thinking,
  )


def judging(config: RunConfig) -> Judging | None:
  """What workers need to ask the judge of the section `judge`; None if there is none.

  Raises:
    ValueError: its key cannot be read, or its rubrics cannot be used.
  """
  judge = config.judge
  if not judge.url:
    return None
  own = rubric_lib.load(judge.rubrics) if judge.rubrics else None
  rubrics = tuple(agent_setting.agent(config).rubrics(config.agent_config)) if own is None else own
  rubric_lib.check(rubrics, judge.trained)
  return Judging(
    endpoint=chat_endpoint.Endpoint(
      judge.url,
      judge.model,
      chat_endpoint.read_key(judge.key_file, judge.key_env),
      request_s=judge.request_s,
      tries=judge.tries,
      at_once=judge.at_once,
    ),
    rubrics=rubrics,
    trained=judge.trained,
    samples=judge.samples,
    temperature=judge.temperature,
    max_tokens=judge.max_tokens,
    max_characters=judge.max_characters,
    deadline_s=judge.deadline_s,
    cache=str(cache_folder(config.corpus) / "verdicts"),
    seed=config.seed,
  )


def sampling(config: RunConfig, seed: int) -> Sampling:
  """Temperature, seed and limits of the episodes of training.

  Training samples from the whole distribution (top-p is 1), which is what the learner recomputes.
  """
  options, stall_s = config.agent_config, config.workers.stall_s
  return Sampling(
    temperature=config.sampler.temperature,
    seed=seed,
    max_new_tokens=options.max_new_tokens,
    generate_deadline_s=stall_s,
    episode_deadline_s=agent_setting.agent(config).max_turn_s(options, stall_s) * options.max_turns,
  )


def eval_sampling(config: RunConfig) -> Sampling:
  """How replies are sampled in evaluations: with the temperature and the top-p of `eval`."""
  training, temperature = sampling(config, config.seed), config.eval.temperature
  return dataclasses.replace(
    training,
    temperature=training.temperature if temperature < 0 else temperature,
    top_p=config.eval.top_p,
  )


def policy_loss(config: RunConfig) -> losses.PolicyLoss:
  """The loss of `learner.loss`, with its options and the normaliser set.

  Raises:
    ValueError: there is no such loss, it is no function of log-probabilities and batch, it has no
      such option, the normaliser has no use for `learner.constant_tokens`, or the loss cannot be
      computed with `learner.share_prefixes`.
  """
  learner = config.learner
  name = learner.loss
  loss = import_path.load(name, "learner.loss") if ":" in name else losses.named(name)
  if not callable(loss):
    raise ValueError(
      f"learner.loss={name!r} is a {type(loss).__name__}; name a function that makes losses [B, T] "
      "of (logprobs, batch)"
    )
  if not isinstance(loss, losses.PolicyLoss):
    loss = losses.PolicyLoss(loss, bounds=None)
  if learner.normaliser != "published":
    loss = dataclasses.replace(loss, normaliser=learner.normaliser)
  if learner.share_prefixes and loss.whole_rollouts:
    raise ValueError(
      f"learner.share_prefixes=True does not go with learner.loss={name}, which needs all of a "
      "rollout in one microbatch; set it to False"
    )
  if learner.constant_tokens and loss.normaliser != "constant":
    raise ValueError(
      f"learner.constant_tokens={learner.constant_tokens} has no effect with learner.loss={name}, "
      f"whose normaliser is {loss.normaliser}; set it 0 or learner.normaliser=constant"
    )
  try:
    return loss.set(learner.loss_options)
  except ValueError as error:
    raise ValueError(f"learner.loss_options={dict(learner.loss_options)}: {error}") from None


def initial_params(config: RunConfig) -> dict[str, Any]:
  """The parameters that `policy.init` names: drawn from the seed, or read from a folder."""
  init, cfg = config.policy.init, config.policy.model
  if init not in UNTRAINED:
    return loaded(config, init)
  params = params_lib.init(cfg, jax.random.key(config.seed))
  if init == "copying":
    key, chat = jax.random.key(config.seed + 1), agent_setting.load_chat(config)
    alike = document_numbers.of(chat).mark_ids.tolist()
    params = copying_heads.with_copying_heads(params, cfg, key, alike=alike)
  abstract = params_lib.abstract(cfg, config.policy.dtype)
  return jax.tree.map(lambda x, like: x.astype(like.dtype), params, abstract)


def warm_params(config: RunConfig, workdir: Workdir) -> dict[str, Any]:
  """The parameters that reinforcement learning starts from: the warm-up's if there was one.

  Raises:
    ValueError: the weights of the warm-up are damaged, or not there, though it has begun.
  """
  if not workdir.warm_start.exists():
    if (begun := workdir.checkpoints / "sft").exists():
      raise ValueError(
        f"{begun} is of a warm-up that did not end; run scripts/train_sft.py again, which goes on "
        "with it, or remove this folder to start from policy.init"
      )
    return initial_params(config)
  if not (workdir.warm_start / weight_files.WEIGHTS).is_file():
    raise ValueError(
      f"{workdir.warm_start} holds no {weight_files.WEIGHTS}: the warm-up did not end, or the file "
      "was lost; run scripts/train_sft.py again, or remove the folder to start from policy.init"
    )
  return loaded(config, str(workdir.warm_start))


def loaded(config: RunConfig, folder: str) -> dict[str, Any]:
  """The parameters of a folder of weights, sharded over the ambient mesh."""
  mesh, cfg = jax.sharding.get_mesh(), config.policy.model
  places = None if mesh.empty else sharding.shardings(cfg, mesh)
  return weight_files.load(folder, cfg, dtype=config.policy.dtype, shardings=places)


def with_adapters(config: RunConfig, params: dict[str, Any]) -> dict[str, Any]:
  """`params` with the adapters of `config.lora`; unchanged if `lora.rank` is 0."""
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


def learning_rate(section: SftConfig | LearnerConfig, updates: int) -> optax.ScalarOrSchedule:
  """The learning rate of a phase (warm-up or RL) by the number of the update."""
  cosine = section.schedule == "cosine" and updates > 0
  return state_lib.learning_rate_schedule(
    section.lr,
    schedule="cosine" if cosine else "constant",
    warmup_steps=section.warmup_steps,
    total_steps=updates if cosine else 0,
    final_fraction=0.1 if cosine else 0.0,
  )


def make_optimizer(
  config: RunConfig,
  section: SftConfig | LearnerConfig,
  learning_rate: optax.ScalarOrSchedule,
  *,
  b1: float = 0.9,
  b2: float = 0.95,
  max_grad_norm: float = 1.0,
) -> optax.GradientTransformation:
  """The optimizer of a phase (warm-up or RL); see `learner.state.make_optimizer`."""
  return state_lib.make_optimizer(
    config.policy.model,
    learning_rate=learning_rate,
    kind=section.optimizer,
    b1=b1,
    b2=b2,
    weight_decay=section.weight_decay,
    max_grad_norm=max_grad_norm,
    trained="adapters" if config.lora.rank else "all",
    qk_clip=section.qk_clip,
    dtype=config.policy.dtype,
  )


@contextlib.contextmanager
def devices(config: RunConfig) -> Iterator[None]:
  """Makes the mesh of the config ambient while the context lasts.

  Raises:
    ValueError: its factors do not multiply to the number of devices; or it has one device, and
      there are several accelerators.
  """
  if is_on_one_device(config):
    if jax.default_backend() != "cpu" and (count := jax.device_count()) > 1:
      raise ValueError(
        f"the mesh has one device, and there are {count}: set mesh.fsdp={count} or another mesh "
        "of as many (sampler_mesh for sampler slices), or let jax see only one device, as with "
        "CUDA_VISIBLE_DEVICES=0"
      )
    yield
    return
  with jax.set_mesh(sharding.make_mesh(**dataclasses.asdict(config.mesh))):
    yield


def is_on_one_device(config: RunConfig) -> bool:
  """Whether the mesh of a config has one device, so that none is made ambient."""
  return set(dataclasses.asdict(config.mesh).values()) == {1}


def cores_as_devices(config: RunConfig) -> None:
  """Shows this machine's cores to jax as devices if `learner.split_cores` or `sampler.engines` use
  them; before jax starts.
  """
  ways, flags = max(_core_ways(config), _num_engines(config)), os.environ.get("XLA_FLAGS", "")
  if ways > 1 and "xla_force_host_platform_device_count" not in flags:
    jax.config.update("jax_num_cpu_devices", ways)


def _core_ways(config: RunConfig) -> int:
  """How many cores the rows of a microbatch split over, see `learner.split_cores`."""
  if not config.learner.split_cores or not is_on_one_device(config):
    return 1
  return math.gcd(config.learner.rows_per_microbatch, cores.usable())


def engine_devices(config: RunConfig) -> list[jax.Device]:
  """The devices of `sampler.engines`, at most as many as `cores_as_devices` has shown to jax."""
  devices = jax.local_devices()
  alone = jax.default_backend() == "cpu" and jax.process_count() == 1
  return devices[: _num_engines(config) if alone else 1]


def _num_engines(config: RunConfig) -> int:
  split = is_on_one_device(config) and not config.sampler.slices
  return min(config.sampler.engines, cores.usable()) if split else 1


@contextlib.contextmanager
def learner_devices(config: RunConfig) -> Iterator[None]:
  """Makes the learner's mesh ambient: that of the run, or this machine's cores, which
  `cores_as_devices` has shown to jax.
  """
  ways = _core_ways(config)
  if ways == 1 or jax.default_backend() != "cpu" or len(jax.devices()) < ways:
    yield
    return
  with jax.set_mesh(sharding.make_mesh(data=ways, devices=jax.devices()[:ways])):
    yield


def for_sampler(params: dict[str, Any]) -> dict[str, Any]:
  """The learner's parameters where the sampler computes: on the ambient mesh, or one device."""
  if jax.sharding.get_mesh().empty:
    return jax.device_put(params, jax.devices()[0], may_alias=False)
  return params


def fresh_state(
  config: RunConfig, params: dict[str, Any], tx: optax.GradientTransformation
) -> TrainState:
  """A training state at version 0, sharded over the ambient mesh; `params` are donated."""
  mesh, cfg = jax.sharding.get_mesh(), config.policy.model
  make = lambda params: state_lib.make_state(params, tx, jax.random.key(config.seed))
  if mesh.empty:
    # All on one device for good, as the parameters are: else the first update is compiled twice.
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding), make(params))
  of_params = lora.shardings(cfg, params, mesh)
  places = state_lib.shardings_of(jax.eval_shape(make, params), tx, of_params, mesh)
  params = sharding.place(params, places.policy.params)
  return jax.jit(make, out_shardings=places, donate_argnums=0)(params)


def restored(manager: Any, fresh: TrainState) -> tuple[int, TrainState, dict[str, Any]]:
  """(next step, state, progress) of the newest checkpoint; (0, fresh, {}) if there is none."""
  if manager.latest_step() is None:
    return 0, fresh, {}
  state, progress, step = checkpoint.restore(manager, fresh)
  return step, state, progress


def compilation_cache(config: RunConfig) -> None:
  """Turns on jax's cache of compiled programs, unless jax's own setting names a folder already."""
  if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(cache_folder(config.corpus)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
