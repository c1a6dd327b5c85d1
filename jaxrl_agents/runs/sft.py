"""Supervised warm-up: what the demonstrator did in its good episodes is imitated.

sources on disk -> seqio mixture -> rows -> updates -> the draft module from the policy's own head
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import optax

from jaxrl_agents import stopwatch
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import RunConfig
from jaxrl_agents.learner import barriers, checkpoint, packing, state, train_step
from jaxrl_agents.learner.preemption import Notice, Preempted
from jaxrl_agents.policy import lora
from jaxrl_agents.runs import demonstrations, processes, resumption, setup, weight_files
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.workdir import Workdir


def train(config: RunConfig, corpus: Tasks, workdir: Workdir) -> None:
  """Trains on the mixture, leaves the policy in `warm_start`; resumes where an earlier run
  stopped, whatever its mesh was. To be called within `setup.devices` and, within that,
  `setup.learner_devices`, by every process.

  Raises:
    Preempted: SIGTERM came; what is finished is saved.
    ValueError: the folder has a warm-up of another agent or chat format, or a training that has
      begun with the weights that this warm-up would replace.
  """
  with processes.bound(config) as channel, processes.stoppable(channel) as notice:
    if channel.is_first:
      resumption.begin_warm_up(config, workdir)
    with stopwatch.timed("demonstrations"), processes.first_alone("demonstrations"):
      rates = demonstrations.make(config, corpus, workdir)
    began = time.monotonic()
    params = setup.with_adapters(config, setup.initial_params(config))
    current = setup.fresh_state(config, params, optimizer(config))
    manager = checkpoint.open_manager(workdir.checkpoints / "sft")
    first, current, progress = setup.restored(manager, current)
    sources = demonstrations.digests(workdir, rates)
    check_sources(workdir, progress, sources)
    check_steps(config, workdir, first)
    resumption.check_warm_start_is_free(config, workdir, first)
    if channel.is_first and first:
      resumption.forget_warm_start(config, workdir, first)
    rows = batches(config, workdir, rates, first)
    save = lambda step, state: checkpoint.save(
      manager, step, state, {"step": step, "sources": sources}, keep=1
    )
    log = logger(workdir, "sft", first)
    current = imitate(config, current, rows, first, save=save, log=log, notice=notice)
    manager.close()
    params = distilled(config, workdir, lora.merged(current.policy.params), rows, notice)
    weight_files.save(
      params, config.policy.model, workdir.warm_start, tokenizer=config.policy.tokenizer
    )
    stopwatch.add("warm_up", time.monotonic() - began)
    if channel.is_first:
      resumption.drop_set_aside(workdir.warm_start)
      workdir.keep_seconds()


def check_sources(
  workdir: Workdir, progress: Mapping[str, Any], sources: Mapping[str, str]
) -> None:
  """Raises ValueError if a source is no longer the one that a resumed warm-up began with."""
  for name, digest in progress.get("sources", {}).items():
    if sources.get(name, digest) != digest:
      raise ValueError(
        f"{workdir.demonstrations / name} is not the one that the checkpoint in "
        f"{workdir.checkpoints / 'sft'} began with; restore it from a copy, or begin again in "
        "another --workdir"
      )


def check_steps(config: RunConfig, workdir: Workdir, first: int) -> None:
  """Raises ValueError if a resumed warm-up has `first` steps behind it, more than `sft.steps`."""
  if first > config.sft.steps:
    raise ValueError(
      f"the checkpoint in {workdir.checkpoints / 'sft'} has {first} steps, and sft.steps="
      f"{config.sft.steps}; set sft.steps={first} or more, or begin again in another --workdir"
    )


def balance_rate(config: RunConfig) -> float:
  """`sft.balance_rate` where routers choose by a bias and all parameters are trained, else 0."""
  chooses = config.policy.model.router == "sigmoid" and not config.lora.rank
  return config.sft.balance_rate if chooses else 0.0


def optimizer(config: RunConfig) -> optax.GradientTransformation:
  """The optimizer as configured for the warm-up."""
  return setup.make_optimizer(config, config.sft, setup.learning_rate(config.sft, config.sft.steps))


def imitate(
  config: RunConfig,
  current: state.TrainState,
  rows: Iterator[list[packing.Batch]],
  first: int,
  *,
  save: Callable[[int, state.TrainState], None],
  log: Callable[[int, dict[str, float]], None],
  notice: Notice,
) -> state.TrainState:
  """Steps `first` to `sft.steps` on `rows`; returns the last state. `current` is donated.

  Saves every `sft.save_every` steps, after the last one, and where it is asked to stop.

  Raises:
    Preempted: once the step that a signal came in is learnt and saved, in every process alike.
  """
  sft, tx = config.sft, optimizer(config)
  objective = train_step.Objective(
    "sft",
    mtp_weight=sft.mtp_weight if config.policy.model.mtp_depth else 0.0,
    balance_rate=balance_rate(config),
    remat=config.learner.remat,
    attention_peaks=sft.qk_clip > 0,
  )
  with notice.held(), Progress("warm-up", sft.steps, first) as progress:
    for step in range(first, sft.steps):
      began = time.monotonic()
      current, metrics = train_step.update(current, next(rows), config.policy.model, objective, tx)
      tokens = sft.rows_per_step * config.learner.row_tokens
      metrics["learner_tokens_per_s"] = tokens / (time.monotonic() - began)
      log(step, metrics)
      progress.advance(loss=metrics["loss"], tokens_per_s=metrics["learner_tokens_per_s"])
      stop = barriers.any_of(notice.arrived)
      if stop or (step + 1) % sft.save_every == 0 or step + 1 == sft.steps:
        save(step + 1, current)
      if stop:
        raise Preempted("SIGTERM")
  return current


def logger(workdir: Workdir, phase: str, first: int) -> Callable[[int, dict[str, float]], None]:
  """(step, metrics) -> None: appends to the metrics of the run, from step `first` on."""
  if not processes.is_first():
    return lambda step, metrics: None
  workdir.drop_metrics_from(phase, first)
  return lambda step, metrics: workdir.log(phase, step, metrics)


def distilled(
  config: RunConfig,
  workdir: Workdir,
  params: dict[str, Any],
  rows: Iterator[list[packing.Batch]],
  notice: Notice,
) -> dict[str, Any]:
  """`params` after `sft.mtp_steps` of distilling the draft module from the policy's own head.

  These steps are few, and made again where they are cut.
  """
  cfg, sft = config.policy.model, config.sft
  if not sft.mtp_steps:
    return params
  dtype = config.policy.dtype
  rate = state.learning_rate_schedule(sft.lr, warmup_steps=5)
  tx = state.make_optimizer(cfg, learning_rate=rate, trained="mtp", dtype=dtype)
  current = setup.fresh_state(config, params, tx)
  log = logger(workdir, "mtp", 0)
  with Progress("draft module", sft.mtp_steps) as progress:
    for step in range(sft.mtp_steps):
      objective = train_step.Objective("mtp", remat=config.learner.remat)
      current, metrics = train_step.update(current, next(rows), cfg, objective, tx)
      log(step, metrics)
      progress.advance(acceptance=metrics["mtp_acceptance"])
      if barriers.any_of(notice.arrived):
        raise Preempted("SIGTERM")
  return current.policy.params


def batches(
  config: RunConfig, workdir: Workdir, rates: dict[str, float], first: int
) -> Iterator[list[packing.Batch]]:
  """Microbatches of each step from `first` on: copies, also those of configs that `sft.beside`
  names, leave the mixture after `copy_phase`.
  """
  seqio_tasks = demonstrations.seqio_tasks()
  sft, learner = config.sft, config.learner
  copies = {name for name in rates if name == "copies" or name.endswith("_copies")}
  switch = int(sft.copy_phase * sft.steps) if copies else 0
  later = {name: rate for name, rate in rates.items() if name not in copies} or rates
  phases = [(rates, 0, switch), (later, switch, sft.steps + sft.mtp_steps)]
  for number, (mixture, start, stop) in enumerate(phases):
    if first >= stop or start == stop:
      continue
    found = {
      name: seqio_tasks.Source(str(workdir.demonstrations / name), rate)
      for name, rate in mixture.items()
    }
    packed = seqio_tasks.packed_batches(
      found,
      rows=sft.rows_per_step,
      row_tokens=learner.row_tokens,
      seed=config.seed + number,
      skip_batches=max(first - start, 0),
    )
    for _ in range(max(first, start), stop):
      yield microbatches(next(packed), learner.rows_per_microbatch)


def microbatches(rows: dict[str, np.ndarray], rows_per_microbatch: int) -> list[packing.Batch]:
  """One packed batch as microbatches whose token weights add up to 1."""
  mask = rows["loss_mask"]
  zeros = np.zeros(mask.shape, np.float32)
  whole = packing.Batch(
    tokens=rows["tokens"],
    targets=rows["targets"],
    depths=rows["depths"],
    ends=rows["ends"],
    loss_mask=mask,
    behaviour_logprobs=zeros,
    advantages=mask.astype(np.float32),
    weights=(mask / max(mask.sum(), 1)).astype(np.float32),
    rollout_ids=np.zeros(mask.shape, np.int32),
  )
  cut = lambda start: jax.tree.map(lambda x: x[start : start + rows_per_microbatch], whole)
  return [cut(start) for start in range(0, len(mask), rows_per_microbatch)]
