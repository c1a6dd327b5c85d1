"""The loop of reinforcement learning: rollouts, substeps, new weights, repeat.

    groups   = collect(step)                       played now, or meanwhile (fleet.async_rollouts)
    rollouts = score(groups)                       advantages; failed and constant ones drop out
    for part in split_substeps(rollouts): update   optimizer steps on disjoint groups
      canary, before the first                     the learner reproduces the sampler's logprobs
    publish, save                                  one atomic step: nothing lost, nothing twice

The functions that play, publish and save are arguments; this module knows no environment and no
sampler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import optax

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import advantage, canary, losses, packing, train_step
from jaxrl_agents.learner.advantage import LEFT_OUT, SKIPPED, Rollout, score, split_substeps
from jaxrl_agents.learner.state import TrainState
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Group


class OutageError(OSError):
  """Every rollout of a step failed: something that all of them need is down."""


@dataclasses.dataclass(frozen=True)
class Plan:
  """The functions that the loop calls.

  Attributes:
    collect: (step) -> complete groups with rewards; may raise OutageError.
    publish: (params, version) -> None: makes them the sampler's weights.
    save: (next step, state, progress) -> None: one atomic checkpoint.
    learnt: (step, groups with advantages) -> None: called once a step, before `kept`.
    report: (step, metrics, groups) -> None: called once a step, after saving.
    kept: () -> the entries of a checkpoint's progress: state of `collect`, JSON by name.
    published: (version) -> its parameters, adapters merged, or None if they are kept no more. If
      set, rollouts may be of several versions, and the canary scores some under their own.
    held: context manager around learning and saving, which must not be interrupted
      (preemption.Notice.held).
    devices: context manager around learning, which makes the learner's mesh ambient.
  """

  collect: Callable[[int], list[Group]]
  publish: Callable[[Any, int], None]
  save: Callable[[int, TrainState, dict[str, Any]], None]
  report: Callable[[int, dict[str, float], list[Group]], None]
  learnt: Callable[[int, list[Group]], None] = lambda step, groups: None
  kept: Callable[[], dict[str, Any]] = dict
  published: Callable[[int], Any] | None = None
  held: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
  devices: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


def train(
  state: TrainState,
  plan: Plan,
  *,
  cfg: PolicyConfig,
  learner: LearnerConfig,
  tx: optax.GradientTransformation,
  objective: train_step.Objective,
  first_step: int = 0,
  reference: dict[str, Any] | None = None,
) -> TrainState:
  """Runs steps `first_step` to `learner.steps` and returns the last state. `state` is donated.

  A checkpoint is written every `learner.save_every` steps, after the last one, and when the run
  ends between two of them while rollouts are played (KeyboardInterrupt, preemption.Preempted,
  OutageError). `reference` holds the parameters of pi_0, which `kl` and some losses need.

  Raises:
    OutageError: every rollout of a step failed; the steps before it are saved.
    canary.CanaryError: fresh rollouts disagree with the learner, see `canary.check`.
  """
  unsaved: Callable[[], None] | None = None
  try:
    for step in range(first_step, learner.steps):
      began = time.monotonic()
      groups = plan.collect(step)
      collected, before = time.monotonic(), int(state.policy.version)
      with plan.held():
        unsaved = None  # the state to save is about to be donated
        with plan.devices():
          state, metrics, groups = learn(
            state,
            groups,
            cfg=cfg,
            learner=learner,
            tx=tx,
            objective=objective,
            reference=reference,
            published=plan.published,
          )
        learnt = time.monotonic()
        if int(state.policy.version) > before:
          plan.publish(state.policy.params, int(state.policy.version))
        published = time.monotonic()
        plan.learnt(step, groups)
        progress = plan.kept() | {"tasks": [group.task.id for group in groups]}
        if (step + 1) % learner.save_every == 0 or step + 1 == learner.steps:
          plan.save(step + 1, state, progress)
        else:
          unsaved = functools.partial(plan.save, step + 1, state, progress)
        metrics |= {
          "collect_s": collected - began,
          "learn_s": learnt - collected,
          "publish_s": published - learnt,
          "save_s": time.monotonic() - published,
          "version": float(state.policy.version),
          "learner_tokens_per_s": metrics["trained_tokens"] / max(learnt - collected, 1e-9),
        }
        plan.report(step, metrics, groups)
  except (KeyboardInterrupt, OutageError):
    if unsaved:
      with plan.held():
        unsaved()
    raise
  return state


def level_weights(learner: LearnerConfig, step: int) -> tuple[float, ...]:
  """The probability of each level in a batch; groups that replace others make more batches than
  steps.
  """
  early = min(step, learner.steps - 1) < learner.level_switch * learner.steps
  return learner.level_weights_early if early else learner.level_weights_late


def learn(
  state: TrainState,
  groups: Sequence[Group],
  *,
  cfg: PolicyConfig,
  learner: LearnerConfig,
  tx: optax.GradientTransformation,
  objective: train_step.Objective,
  reference: dict[str, Any] | None = None,
  published: Callable[[int], Any] | None = None,
) -> tuple[TrainState, dict[str, float], list[Group]]:
  """All substeps on one batch of groups. `state` is donated.

  `reference` holds the parameters of pi_0, for `kl` and the losses that read its log-probabilities.
  `published` is that of `Plan`.

  Returns:
    (state, metrics, the groups as of `annotated`).
  """
  rollouts, metrics = score(groups, **advantage_options(learner, objective.loss))
  split = split_substeps(rollouts, learner.substeps) if rollouts else []
  made = [packed(part, learner, objective) for part in split]
  parts = [batches for batches in made if batches]
  members = [{r.group for r in part} for part, batches in zip(split, made, strict=True) if batches]
  scored = lambda params, batch: np.asarray(
    train_step.recompute_logprobs(params, train_step.placed(batch), cfg, objective)
  )
  if published is not None and parts:
    metrics |= canary.of_versions(parts[0], published, scored, bound=learner.canary_bound)
    metrics |= canary.of_mixed_caches(
      rollouts if learner.router_replay else without_routing(rollouts),
      published,
      cfg=cfg,
      learner=learner,
      temperature=objective.temperature,
    )
  complete = functools.partial(
    with_logprobs,
    params=state.policy.params,
    cfg=cfg,
    objective=objective,
    reference=reference,
  )
  parts = [[complete(batch) for batch in part] for part in parts]
  substeps: list[dict[str, float]] = []
  fresh = functools.partial(
    canary.check, bound=learner.canary_bound, version=int(state.policy.version)
  )
  for batches in parts:
    # Later substeps have other weights than the sampler had, and so have rollouts played ahead.
    check = None if substeps or published is not None else fresh
    state, found = train_step.update(state, batches, cfg, objective, tx, check=check)
    substeps.append(found)
  first = substeps[0] if substeps else {"gap_max": 0.0, "gap_mean": 0.0}
  if published is None:
    metrics["canary_max_abs_logprob_difference"] = first["gap_max"]
    metrics["canary_mean_abs_logprob_difference"] = first["gap_mean"]
  metrics |= _over_substeps(substeps)
  # Later substeps have other weights than the sampler had.
  metrics |= {name: value for name, value in first.items() if name.startswith("gap_")}
  metrics["optimizer_steps"] = float(len(parts))
  microbatches = [batch for part in parts for batch in part]
  metrics["microbatches"] = float(len(microbatches))
  metrics["placed_tokens"] = float(sum((batch.ends > 0).sum() for batch in microbatches))
  places = sum(batch.tokens.size for batch in microbatches)
  metrics["padding_share"] = 1 - metrics["placed_tokens"] / max(places, 1)
  metrics["trained_tokens"] = float(sum(rollout.tokens for rollout in rollouts))
  steps = zip(members, substeps, strict=True)
  skipped = {group for part, found in steps if found["skipped"] for group in part}
  return state, metrics, annotated(groups, rollouts, skipped)


def advantage_options(learner: LearnerConfig, loss: losses.PolicyLoss) -> dict[str, Any]:
  """The keyword arguments of `advantage.score`.

  Raises:
    ValueError: no function at `learner.advantage`, or no such `learner.advantage_std`.
  """
  return {
    "normalise_std": advantage.divides_by_std(learner.advantage_std, loss.advantage_std),
    "own": advantage.load(learner.advantage) if learner.advantage else None,
  }


def with_logprobs(
  batch: packing.Batch,
  *,
  params: dict[str, Any],
  cfg: PolicyConfig,
  objective: train_step.Objective,
  reference: dict[str, Any] | None,
) -> packing.Batch:
  """`batch` with the log-probabilities that the loss reads: of `reference`, the parameters of pi_0,
  if they are given, and of `params`, those before the first update.
  """
  scored = lambda of: np.asarray(
    train_step.recompute_logprobs(of, train_step.placed(batch), cfg, objective)
  )
  if reference is not None:
    batch = batch._replace(reference_logprobs=scored(reference))
  if objective.loss.proximal:
    batch = batch._replace(proximal_logprobs=scored(params))
  return batch


def packed(
  rollouts: Sequence[Rollout], learner: LearnerConfig, objective: train_step.Objective
) -> list[packing.Batch]:
  """The microbatches of one optimizer step, packed as `learner` says."""
  normaliser = objective.loss.normaliser
  constant = normaliser == "constant"
  *shorter, longest = learner.row_lengths
  return packing.pack(
    rollouts if learner.router_replay else without_routing(rollouts),
    row_tokens=longest,
    rows_per_microbatch=learner.rows_per_microbatch,
    shorter_row_tokens=shorter,
    normaliser=normaliser,
    constant_tokens=(learner.constant_tokens or learner.row_tokens) if constant else 0,
    constant_rollouts=learner.groups_per_step * learner.group_size / learner.substeps,
    keep_rollouts_together=objective.loss.whole_rollouts,
    share_prefixes=learner.share_prefixes,
  )


def without_routing(rollouts: Sequence[Rollout]) -> list[Rollout]:
  """The rollouts without their recorded experts, so that the router chooses again (no replay)."""
  strip = lambda segment: dataclasses.replace(segment, routing=None)
  return [dataclasses.replace(r, segments=tuple(map(strip, r.segments))) for r in rollouts]


def annotated(
  groups: Sequence[Group], rollouts: Sequence[Rollout], skipped: Collection[int] = ()
) -> list[Group]:
  """The groups with the "advantage" of each finished trajectory added to its metrics, and SKIPPED
  where the number of the group is among `skipped`.

  The advantage is 0 if no rollout of the group is trained, and for those that are left out.
  """
  marked = []
  for index, group in enumerate(groups):
    advantages = iter([rollout.advantage for rollout in rollouts if rollout.group == index])
    of = lambda t, left=advantages: 0.0 if t.metrics.get(LEFT_OUT) else next(left, 0.0)
    more = {SKIPPED: 1.0} if index in skipped else {}
    trajectories = tuple(
      t if t.error else dataclasses.replace(t, metrics={**t.metrics, "advantage": of(t), **more})
      for t in group.trajectories
    )
    marked.append(dataclasses.replace(group, trajectories=trajectories))
  return marked


def _over_substeps(substeps: Sequence[dict[str, float]]) -> dict[str, float]:
  """Means over the optimizer steps of one batch; maxima for names that end in "max"."""
  names = sorted({name for found in substeps for name in found})
  values = {name: [found[name] for found in substeps if name in found] for name in names}
  return {name: float(max(v) if name.endswith("max") else np.mean(v)) for name, v in values.items()}
