"""A whole reinforcement-learning run: evaluates the warm start, trains, evaluates again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import optax

from jaxrl_agents import config as config_lib
from jaxrl_agents import service_log, stopwatch
from jaxrl_agents.agents import agreement
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet.version_scores import VersionScores
from jaxrl_agents.harness import group_files
from jaxrl_agents.learner import checkpoint, loop, train_step
from jaxrl_agents.learner.preemption import Notice
from jaxrl_agents.learner.state import PolicyState, TrainState
from jaxrl_agents.policy import lora
from jaxrl_agents.runs import (
  agent_setting,
  evaluation,
  evaluator_service,
  processes,
  resumption,
  service_states,
  setup,
  weight_files,
)
from jaxrl_agents.runs import batches as batches_lib
from jaxrl_agents.runs.batches import Batches, Start
from jaxrl_agents.runs.process_channel import ProcessChannel
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.remote_states import RemoteStates
from jaxrl_agents.runs.reporter import Reporter, no_report
from jaxrl_agents.runs.rollout_workers import RolloutWorkers
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.service_log import Tell
from jaxrl_agents.types import Group, Task
from jaxrl_agents.weights import store as weights_store

PACKAGES = ("jaxrl_agents", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def train(config: RunConfig, corpus: Tasks, workdir: Workdir) -> dict[str, Any]:
  """Trains from the warm start in `workdir` (or `policy.init`); returns the summary.

  An earlier run of the same config is resumed, whatever its mesh was; of a finished run only the
  summary is made again. Every process calls this function within `setup.devices`; the first process
  alone runs episodes and writes metrics and summaries.

  Raises:
    ValueError: the tasks have levels that the stream of the learner cannot draw.
  """
  batches_lib.check_tasks(config.learner, corpus.tasks["train"])
  with processes.bound(config) as channel, processes.stoppable(channel) as notice:
    with contextlib.ExitStack() as stack:
      names = ("learner", "sampler", "publisher")
      tells: dict[str, Tell] = dict.fromkeys(names, service_log.silent)
      poll: Callable[[], None] = lambda: None
      if channel.is_first:
        poll = stack.enter_context(evaluator_service.serving(config, corpus, workdir))
        opened = service_log.opened
        tells = {name: stack.enter_context(opened(workdir.services, name)) for name in names}
      services = Services(tells["learner"], tells["sampler"], tells["publisher"], poll)
      summary = _train(config, corpus, workdir, channel, notice, services)
    processes.wait_for_all("trained")
    return summary


@dataclasses.dataclass(frozen=True)
class Services:
  """What tells the states of each service of a run, and looks after the evaluator."""

  learner: Tell
  sampler: Tell
  publisher: Tell
  poll_evaluator: Callable[[], None] = lambda: None


def _train(
  config: RunConfig,
  corpus: Tasks,
  workdir: Workdir,
  channel: ProcessChannel,
  notice: Notice,
  services: Services,
) -> dict[str, Any]:
  """The body of `train`; returns {} in every process but the first."""
  stages = stopwatch.Stages()
  if channel.is_first:
    resumption.claim_published(config, workdir)
  begun = _start(config, workdir, tasks=corpus.digest, is_first=channel.is_first)

  def workers_for(config: RunConfig, policy: PolicyState) -> RolloutWorkers:
    return RolloutWorkers(
      config,
      setup.worker_spec(config, corpus),
      setup.for_sampler(lora.merged(policy.params)),
      int(policy.version),
      weights=workdir.weights,
      channel=channel,
      notice=notice,
      frozen=evaluation.frozen(config, evaluation.started_from(config, workdir.path)),
      tell=services.sampler,
    )

  evaluations: dict[str, list[Group]] = {}
  with workers_for(config, begun.state.policy) as workers:
    stages.end("start")
    workers.warm_up()
    stages.end("compile_sampler")
    services.learner("evaluates")
    evaluations["warm_start"] = evaluated(config, corpus, workdir, workers, "warm_start")
    stages.end("evaluate_warm_start")
    compiles = workers.stats.compiles
    policy = _learn(
      config,
      workdir,
      begun,
      workers=workers,
      tasks=corpus.tasks["train"],
      notice=notice,
      services=services,
      is_first=channel.is_first,
    )
    stages.end("learn")
    services.learner("evaluates")
    workers.turn_to(1.0)
    evaluations["trained"] = evaluated(config, corpus, workdir, workers, "trained")
    recompiles = workers.stats.compiles - compiles
  begun.manager.close()
  weight_files.save(
    lora.merged(policy.params),
    config.policy.model,
    workdir.trained,
    tokenizer=config.policy.tokenizer,
  )
  if channel.is_first:
    resumption.drop_set_aside(workdir.trained)
  stages.end("evaluate_trained")
  evaluations |= _of_base(config, corpus, workdir, workers_for)
  evaluations |= _of_variants(config, corpus, workdir, policy, workers_for)
  if not channel.is_first:
    return {}
  evaluations |= _of_baselines(config, corpus, workdir)
  stages.end("evaluate_others")
  return _summarised(
    config,
    corpus,
    workdir,
    evaluations=evaluations,
    first=begun.step,
    wall_s=stages.seconds,
    recompiles=recompiles,
  )


@dataclasses.dataclass(frozen=True)
class Beginning:
  """Where a run begins or goes on, and what it learns with.

  Attributes:
    step: its first step.
    state: of training at that step, which consumes it.
    progress: of the checkpoint that it continues from; {} for a new run.
    warm_start: digest of the weights of the warm start.
    reference: parameters that the loss is measured against; None if it is not.
    manager: of the checkpoints.
    tx: the optimizer.
    objective: what is minimised.
  """

  step: int
  state: TrainState
  progress: dict[str, Any]
  warm_start: str
  reference: dict[str, Any] | None
  manager: Any
  tx: optax.GradientTransformation
  objective: train_step.Objective


def _start(config: RunConfig, workdir: Workdir, *, tasks: str, is_first: bool) -> Beginning:
  """Reads the newest checkpoint, or makes the state of a new run; in the first process also leaves
  in the folder only what lies before its first step. `tasks` is the digest of the tasks.

  Raises:
    ValueError: the folder is of another run or of one with more steps, or its warm start has
      changed.
  """
  tx, minimised = optimizer(config), objective(config)
  manager = checkpoint.open_manager(workdir.checkpoints / "rl")
  with setup.learner_devices(config):
    params = setup.with_adapters(config, setup.warm_params(config, workdir))
    step, state, progress = setup.restored(manager, setup.fresh_state(config, params, tx))
    check_steps(config, workdir, step)
    reference = setup.warm_params(config, workdir) if minimised.needs_reference else None
  resumption.check_start(workdir, progress)
  warm_start = weight_files.digest(workdir.warm_start)
  if is_first:
    _begin(config, workdir, step, int(state.policy.version), warm_start, tasks=tasks)
  return Beginning(step, state, progress, warm_start, reference, manager, tx, minimised)


def check_steps(config: RunConfig, workdir: Workdir, first: int) -> None:
  """Raises ValueError if a resumed run has `first` steps behind it, more than `learner.steps`."""
  if first > config.learner.steps:
    raise ValueError(
      f"the checkpoint in {workdir.checkpoints / 'rl'} has {first} steps, and learner.steps="
      f"{config.learner.steps}; set learner.steps={first} or more, or begin again in another "
      "--workdir"
    )


def _learn(
  config: RunConfig,
  workdir: Workdir,
  begun: Beginning,
  *,
  workers: RolloutWorkers,
  tasks: Sequence[Task],
  notice: Notice,
  services: Services,
  is_first: bool,
) -> PolicyState:
  """Takes all steps from `begun.step` on; returns the trained policy. `begun.state` is donated."""
  workers.take_stats()  # the tokens of the evaluation before are not counted in the first step
  policy = begun.state.policy
  start = Start(begun.step, policy.params, int(policy.version), begun.progress, tasks)
  with (
    Progress("learning", config.learner.steps, begun.step) as progress,
    RemoteStates(workdir.services) as remote,
    batches_lib.opened(config, workers, start, workdir.path) as batches,
  ):
    plan = loop.Plan(
      collect=batches.collect,
      publish=batches.publish,
      save=functools.partial(_save, config, begun.manager, batches),
      report=(
        Reporter(config, workdir, workers, batches, progress, remote) if is_first else no_report
      ),
      learnt=functools.partial(_learnt, workdir, batches),
      kept=lambda: batches.state() | {"start": begun.warm_start},
      published=batches.published,
      held=notice.held,
      devices=lambda: setup.learner_devices(config),
    )
    state = loop.train(
      begun.state,
      service_states.logged(plan, services.learner, services.publisher, services.poll_evaluator),
      cfg=config.policy.model,
      learner=config.learner,
      tx=begun.tx,
      objective=begun.objective,
      first_step=begun.step,
      reference=begun.reference,
    )
  return state.policy


def _summarised(
  config: RunConfig,
  corpus: Tasks,
  workdir: Workdir,
  *,
  evaluations: Mapping[str, list[Group]],
  first: int,
  wall_s: Mapping[str, float],
  recompiles: int,
) -> dict[str, Any]:
  """Completes the summary of a run that has learnt, and returns it.

  A process that found all steps learnt leaves what was measured while they were.

  Args:
    config, corpus, workdir: of the run.
    evaluations: groups, by the name of their evaluation.
    first: step that this process began with.
    wall_s: seconds of each stage in this process.
    recompiles: of the sampler, after it was warmed up.
  """
  rows = [row for row in workdir.lines() if row["phase"] == "rl"]
  has_learnt = first >= config.learner.steps and "learn" in workdir.read_summary().get("wall_s", {})
  workdir.keep_seconds()
  measured: dict[str, Any] = {}
  if not has_learnt:
    learn_s = wall_s["learn"] + _learning_s(rows, first)
    measured = {"wall_s": {**wall_s, "learn": learn_s}, "recompiles_after_warmup": recompiles}
  agent = agent_setting.agent(config)
  return workdir.merge_summary(
    agent.compare(agent_setting.setting(config), corpus, evaluations)
    | agreement.summary(
      evaluations,
      agent.success,
      cluster=agent.cluster,
      resamples=config.eval.bootstrap_resamples,
      seed=config.seed,
    )
    | measured
    | _from_rows(rows)
  )


def _learning_s(rows: Sequence[Mapping[str, Any]], first: int) -> float:
  """Seconds of the steps that earlier processes of the run have made, before step `first`."""
  spent = ("collect_s", "learn_s", "publish_s", "save_s")
  return sum(row.get(name) or 0.0 for row in rows if row["step"] < first for name in spent)


def _begin(
  config: RunConfig, workdir: Workdir, first: int, version: int, start: str, *, tasks: str
) -> None:
  """Checks that the folder is of this run, and removes what lies after its first step and what is
  of a warm start with another digest than `start`. `tasks` is the digest of the tasks.
  """
  resumption.check_goes_on(config, workdir, first, tasks)
  resumption.forget_other_start(workdir, start, first)
  if first < config.learner.steps:
    baselines = agent_setting.agent(config).baselines(config.agent_config)
    resumption.forget_results(workdir, first, baselines)
  resumption.record_policy_files(config, workdir)
  workdir.merge_summary(description(config) | {resumption.TASKS: tasks})
  workdir.drop_metrics_from("rl", first)
  group_files.remove_partial(workdir.trajectories)
  weights_store.withdraw_after(version, workdir.weights)  # a killed run may have left later ones
  VersionScores(workdir.evaluations, 0.0).withdraw_after(version)


def _learnt(workdir: Workdir, batches: Batches, step: int, groups: list[Group]) -> None:
  """Keeps the episodes of a step, before there is a checkpoint that has it."""
  if processes.is_first():
    group_files.save_groups(workdir.trajectories / f"step_{step:06d}.npz", groups)
  batches.learnt(step, groups)


def _save(
  config: RunConfig,
  manager: Any,
  batches: Batches,
  step: int,
  state: TrainState,
  progress: dict[str, Any],
) -> None:
  """Writes a checkpoint, once what it needs beside it is on the disk."""
  batches.before_save()
  checkpoint.save(manager, step, state, progress, keep=config.learner.keep_checkpoints)
  batches.after_save(step)


def _of_base(config: RunConfig, corpus: Tasks, workdir: Workdir, workers_for) -> dict[str, Any]:
  """The evaluation of `policy.init`, if the warm start is another policy. Sampler processes hold
  published weights only, so a run that samples in them has none.
  """
  if not workdir.warm_start.exists() or config.sampler.slices:
    return {}
  with setup.learner_devices(config):
    policy = PolicyState(setup.initial_params(config), version=jnp.int32(0))
  with workers_for(config, policy) as workers:
    workers.warm_up()
    return {"base": evaluated(config, corpus, workdir, workers, "base")}


def _of_variants(
  config: RunConfig, corpus: Tasks, workdir: Workdir, policy: PolicyState, workers_for
) -> dict[str, Any]:
  """The evaluation of the trained policy with each of the agent's other options."""
  found = {}
  for name, options in agent_setting.agent(config).variants(config.agent_config).items():
    variant = dataclasses.replace(config, agent_config=options)
    with workers_for(variant, policy) as workers:
      workers.warm_up()
      found[name] = evaluated(variant, corpus, workdir, workers, name)
  return found


def _of_baselines(config: RunConfig, corpus: Tasks, workdir: Workdir) -> dict[str, Any]:
  """The evaluation of each scripted player of the agent."""
  found = {}
  for name in agent_setting.agent(config).baselines(config.agent_config):
    played = functools.partial(evaluation.play_baseline, config, corpus, player=name)
    found[name] = _kept(config, corpus, workdir, name, played)
  return found


def optimizer(config: RunConfig):
  """The optimizer of the learner section."""
  learner = config.learner
  rate = setup.learning_rate(learner, learner.steps * learner.substeps)
  return setup.make_optimizer(
    config,
    learner,
    rate,
    b1=learner.beta1,
    b2=learner.beta2,
    max_grad_norm=learner.max_grad_norm,
  )


def objective(config: RunConfig) -> train_step.Objective:
  """The loss of `learner.loss` and the terms beside it."""
  learner = config.learner
  return train_step.Objective(
    "rl",
    loss=setup.policy_loss(config),
    kl=learner.kl,
    entropy_bonus=learner.entropy_bonus,
    temperature=config.sampler.temperature,
    mtp_weight=learner.mtp_weight if config.policy.model.mtp_depth else 0.0,
    replay_threshold=learner.replay_threshold,
    remat=learner.remat,
    attention_peaks=learner.qk_clip > 0,
  )


def evaluated(
  config: RunConfig, corpus: Tasks, workdir: Workdir, workers: RolloutWorkers, name: str
) -> list[Group]:
  """The groups of an evaluation, read from `workdir` if an earlier run has saved them there."""
  played = lambda tasks: evaluation.play(config, workers, tasks, label=name.replace("_", " "))
  return workers.shared(lambda: _kept(config, corpus, workdir, name, played))


def _kept(
  config: RunConfig,
  corpus: Tasks,
  workdir: Workdir,
  name: str,
  played: Callable[[Sequence[Task]], list[Group]],
) -> list[Group]:
  """The groups in the file of this evaluation; if there is no file, `played` fills it."""
  file = workdir.trajectories / f"eval_{name}.npz"
  if file.exists():
    return group_files.load_groups(file)
  groups = played(corpus.sample(config.eval.split, config.eval.tasks, config.seed))
  group_files.save_groups(file, groups)
  return groups


def description(config: RunConfig) -> dict[str, Any]:
  """The part of the summary that says which config and which versions of packages were run."""
  versions = {name: importlib.metadata.version(name) for name in PACKAGES}
  return {
    "config": config_lib.options(config),
    "config_sha256": config_lib.sha256(config),
    "versions": {"python": platform.python_version(), **versions},
    "seed": config.seed,
  }


def _from_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """The part of the summary that is computed from the metrics of the steps."""
  column = lambda name: [row[name] for row in rows if row.get(name) is not None]
  mean = lambda name: sum(column(name)) / max(len(column(name)), 1)
  last = lambda name: column(name)[-1] if column(name) else None
  return {
    "canary_max_abs_logprob_difference": max(
      column("canary_max_abs_logprob_difference"), default=None
    ),
    "draft_acceptance": last("draft_acceptance"),
    "accepted_draft_tokens": sum(column("accepted_draft_tokens")),
    "prune_accuracy": last("prune_accuracy"),
    "sampler_tokens_per_s": mean("sampler_tokens_per_s"),
    "learner_tokens_per_s": mean("learner_tokens_per_s"),
    "first_step_s": sum(rows[0].get(name) or 0 for name in ("collect_s", "learn_s"))
    if rows
    else None,
    "peak_rss_mib": max(column("peak_rss_mib"), default=None),
  }
