"""A whole reinforcement-learning run: evaluates the warm start, trains, evaluates again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from jaxrl_agents import config as config_lib
from jaxrl_agents import service_log
from jaxrl_agents.agents import agreement
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet.version_scores import VersionScores
from jaxrl_agents.harness import group_files
from jaxrl_agents.learner import checkpoint, loop, train_step
from jaxrl_agents.learner import state as state_lib
from jaxrl_agents.learner.preemption import Notice
from jaxrl_agents.learner.state import PolicyState, TrainState
from jaxrl_agents.policy import lora
from jaxrl_agents.runs import (
  agent_setting,
  evaluation,
  evaluator_service,
  processes,
  resumption,
  setup,
  watched,
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
  """
  with processes.bound(config) as channel, processes.stoppable(channel) as notice:
    with contextlib.ExitStack() as stack:
      names = ("learner", "sampler", "publisher")
      tells: dict[str, Tell] = dict.fromkeys(names, service_log.silent)
      look: Callable[[], None] = lambda: None
      if channel.is_first:
        look = stack.enter_context(evaluator_service.serving(config, corpus, workdir))
        opened = service_log.opened
        tells = {name: stack.enter_context(opened(workdir.services, name)) for name in names}
      services = Services(tells["learner"], tells["sampler"], tells["publisher"], look)
      summary = _train(config, corpus, workdir, channel, notice, services)
    processes.wait_for_all("trained")
    return summary


@dataclasses.dataclass(frozen=True)
class Services:
  """What tells the states of each service of a run, and looks after the evaluator."""

  learner: Tell
  sampler: Tell
  publisher: Tell
  look: Callable[[], None] = lambda: None


def _train(
  config: RunConfig,
  corpus: Tasks,
  workdir: Workdir,
  channel: ProcessChannel,
  notice: Notice,
  services: Services,
) -> dict[str, Any]:
  """The body of `train`; returns {} in every process but the first."""
  began = time.monotonic()
  cfg = config.policy.model
  tx = optimizer(config)
  minimised = objective(config)
  manager = checkpoint.open_manager(workdir.checkpoints / "rl")
  with setup.learner_devices(config):
    params = setup.with_adapters(config, setup.warm_params(config, workdir))
    fresh = setup.fresh_state(config, params, tx)
    first, current, ledger = setup.restored(manager, fresh)
    reference = setup.warm_params(config, workdir) if minimised.needs_reference else None
  resumption.check_start(workdir, ledger)
  start = weight_files.digest(workdir.warm_start)
  version = int(current.policy.version)
  if channel.is_first:
    _begin(config, workdir, first, version, start)

  def players_of(config: RunConfig, policy: PolicyState | None = None) -> RolloutWorkers:
    return RolloutWorkers(
      config,
      setup.worker_spec(config, corpus),
      setup.for_sampler(lora.merged((policy or current.policy).params)),
      int((policy or current.policy).version),
      weights=workdir.weights,
      channel=channel,
      notice=notice,
      frozen=evaluation.frozen(config, evaluation.started_from(config, workdir.path)),
      tell=services.sampler,
    )

  with players_of(config) as players:
    opened = time.monotonic()
    players.warm_up()
    ready = time.monotonic()
    services.learner("evaluates")
    before = evaluated(config, corpus, workdir, players, "warm_start")
    measured = time.monotonic()
    compiles = players.stats.compiles
    players.take_stats()  # the evaluation's tokens are not counted in the first step
    with (
      Progress("learning", config.learner.steps, first) as progress,
      RemoteStates(workdir.services) as remote,
      batches_lib.opened(
        config,
        players,
        Start(first, current.policy.params, version, ledger, corpus.tasks["train"]),
        workdir.path,
      ) as batches,
    ):
      plan = loop.Plan(
        collect=batches.collect,
        publish=batches.publish,
        save=functools.partial(_save, config, manager, batches),
        report=(
          Reporter(config, workdir, players, batches, progress, remote)
          if channel.is_first
          else no_report
        ),
        learnt=functools.partial(_learnt, workdir, batches),
        kept=lambda: batches.state() | {"start": start},
        published=batches.published,
        held=notice.held,
        devices=lambda: setup.learner_devices(config),
      )
      current = loop.train(
        current,
        watched.plan(plan, services.learner, services.publisher, services.look),
        cfg=cfg,
        learner=config.learner,
        tx=tx,
        objective=minimised,
        first_step=first,
        reference=reference,
      )
    trained = time.monotonic()
    services.learner("evaluates")
    players.turn_to(1.0)
    evaluations = {
      "warm_start": before,
      "trained": evaluated(config, corpus, workdir, players, "trained"),
    }
    recompiles = players.stats.compiles - compiles
  manager.close()
  merged = lora.merged(current.policy.params)
  weight_files.save(merged, cfg, workdir.trained, tokenizer=config.policy.tokenizer)
  compared = time.monotonic()
  evaluations |= _of_base(config, corpus, workdir, players_of)
  evaluations |= _of_variants(config, corpus, workdir, players_of)
  if channel.is_first:
    evaluations |= _of_baselines(config, corpus, workdir)
  if not channel.is_first:
    return {}
  rows = [row for row in workdir.lines() if row["phase"] == "rl"]
  walls = {
    "start": opened - began,
    "compile_sampler": ready - opened,
    "evaluate_warm_start": measured - ready,
    "learn": trained - measured + _learning_s(rows, first),
    "evaluate_trained": compared - trained,
    "evaluate_others": time.monotonic() - compared,
  }
  has_learnt = first >= config.learner.steps and "learn" in workdir.read_summary().get("wall_s", {})
  workdir.keep_seconds()
  measured_now = {"wall_s": walls, "recompiles_after_warmup": recompiles}
  if has_learnt:
    measured_now = {}  # what was measured while this run learnt stays
  return workdir.merge_summary(
    agent_setting.agent(config).compare(agent_setting.setting(config), corpus, evaluations)
    | agreement.summary(
      evaluations,
      agent_setting.agent(config).success,
      resamples=config.eval.bootstrap_resamples,
      seed=config.seed,
    )
    | measured_now
    | _from_rows(rows)
  )


def _learning_s(rows: Sequence[Mapping[str, Any]], first: int) -> float:
  """Seconds of the steps that earlier processes of the run have made, before step `first`."""
  spent = ("collect_s", "learn_s", "publish_s", "save_s")
  return sum(row.get(name) or 0.0 for row in rows if row["step"] < first for name in spent)


def _begin(config: RunConfig, workdir: Workdir, first: int, version: int, start: str) -> None:
  """Checks that the folder is of this run, and removes what lies after its first step and what is
  of a warm start with another digest than `start`.
  """
  resumption.check_goes_on(config, workdir, first)
  resumption.forget_other_start(workdir, start, first)
  if first < config.learner.steps:
    resumption.forget_results(workdir, agent_setting.agent(config).baselines(config.agent_config))
  workdir.merge_summary(description(config))
  workdir.drop_metrics_from("rl", first)
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
  ledger: dict[str, Any],
) -> None:
  """Writes a checkpoint, once what it needs beside it is on the disk."""
  batches.before_save()
  checkpoint.save(manager, step, state, ledger, keep=config.learner.keep_checkpoints)
  batches.after_save(step)


def _of_base(config: RunConfig, corpus: Tasks, workdir: Workdir, players_of) -> dict[str, Any]:
  """The evaluation of `policy.init`, if the warm start is another policy. Sampler processes hold
  published weights only, so a run that samples in them has none.
  """
  if not workdir.warm_start.exists() or config.sampler.slices:
    return {}
  with setup.learner_devices(config):
    policy = PolicyState(setup.initial_params(config), version=jnp.int32(0))
  with players_of(config, policy) as players:
    players.warm_up()
    return {"base": evaluated(config, corpus, workdir, players, "base")}


def _of_variants(config: RunConfig, corpus: Tasks, workdir: Workdir, players_of) -> dict[str, Any]:
  """The evaluation of the trained policy with each of the agent's other options."""
  found = {}
  for name, options in agent_setting.agent(config).variants(config.agent_config).items():
    variant = dataclasses.replace(config, agent_config=options)
    with players_of(variant) as players:
      players.warm_up()
      found[name] = evaluated(variant, corpus, workdir, players, name)
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
  rate = state_lib.learning_rate_schedule(learner.lr, warmup_steps=learner.warmup_steps)
  return setup.make_optimizer(config, learner, rate, max_grad_norm=learner.max_grad_norm)


def objective(config: RunConfig) -> train_step.Objective:
  """The loss of `learner.loss` and the terms beside it."""
  learner = config.learner
  return train_step.Objective(
    "rl",
    loss=setup.policy_loss(config),
    kl=learner.kl,
    temperature=config.sampler.temperature,
    mtp_weight=learner.mtp_weight if config.policy.model.mtp_depth else 0.0,
    replay_threshold=learner.replay_threshold,
    remat=learner.remat,
    attention_peaks=learner.qk_clip > 0,
  )


def evaluated(
  config: RunConfig, corpus: Tasks, workdir: Workdir, players: RolloutWorkers, name: str
) -> list[Group]:
  """The groups of an evaluation, read from `workdir` if an earlier run has saved them there."""
  played = lambda tasks: evaluation.play(config, players, tasks, label=name.replace("_", " "))
  return players.shared(lambda: _kept(config, corpus, workdir, name, played))


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
    "peak_rss_mib": max(column("rss_mib"), default=None),
  }
