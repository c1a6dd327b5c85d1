"""How many rollouts an update needs: the noise of the gradients of parts of a batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import loop, loss_exclusions, train_step
from jaxrl_agents.learner.advantage import score, split_substeps
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Group


def of_groups(
  params: dict[str, Any],
  groups: Sequence[Group],
  *,
  cfg: PolicyConfig,
  learner: LearnerConfig,
  objective: train_step.Objective,
  parts: int,
) -> dict[str, float]:
  """The `estimates` of equal parts of a batch, each a gradient at the same weights.

  Args:
    params: that sampled the groups.
    groups: with rewards. Those whose rewards are all equal have no gradient, but they count as
      rollouts that were played.
    cfg: of the policy.
    learner: how advantages are computed and rollouts packed.
    objective: the loss.
    parts: their number, n of `estimates`. Memory: so many times that of float32 parameters.

  Returns:
    The estimates; reward_mean, and groups_constant as a share; rollouts that were played; and
    rollouts_with_as_much_noise_as_signal.

  Raises:
    ValueError: fewer groups than `parts` have rollouts with different rewards, or those of a part
      sampled nothing.
  """
  groups = loss_exclusions.without_truncated(groups, learner.truncated)
  rollouts, scores = score(groups, **loop.advantage_options(learner, objective.loss))
  different = len({rollout.group for rollout in rollouts})
  if different < parts:
    raise ValueError(
      f"{different} of {len(groups)} groups have different rewards, too few for {parts} parts; "
      "take more tasks or fewer parts, or raise sampler.temperature"
    )
  gradients = []
  for part in split_substeps(rollouts, parts):
    reference = params if objective.needs_reference else None
    complete = functools.partial(
      loop.with_logprobs, params=params, cfg=cfg, objective=objective, reference=reference
    )
    batches = loop.packed(part, learner, objective)
    if not batches:
      raise ValueError("the rollouts of one part sampled no token; take fewer parts or other tasks")
    first, *others = map(train_step.placed, map(complete, batches))
    total = train_step.gradients(params, first, cfg, objective)
    for batch in others:
      total = train_step.add(total, train_step.gradients(params, batch, cfg, objective))
    gradients.append(np.concatenate([np.ravel(g) for g in jax.tree.leaves(total.grads)]))
  flat = np.stack(gradients)
  found = estimates(flat @ flat.T)
  played = sum(len(group.trajectories) for group in groups)
  return {
    "reward_mean": scores["reward_mean"],
    "groups_constant": scores["groups_constant"] / len(groups),
    "rollouts": float(played),
    **found,
    "rollouts_with_as_much_noise_as_signal": found["scale"] * played / parts,
  }


def estimates(products: np.ndarray) -> dict[str, float]:
  """How far the gradients g_1 .. g_n of n equal parts of a batch are from their expectation G.

    signal = mean of g_i . g_j over i != j       an estimate of |G|^2 without bias
    noise  = mean of |g_i|^2 - signal            of the trace of the covariance of one g_i
    scale  = noise / signal                      parts whose mean has as much noise as signal

  (The simple noise scale of https://arxiv.org/abs/1812.06162, section 2.2.) The standard error of
  the signal is that of the jackknife over parts. Where the signal is not above 0 the scale is inf.

  Args:
    products: g_i . g_j, float [n, n], n >= 3.

  Raises:
    ValueError: n < 3.
  """
  n = len(products)
  if n < 3:
    raise ValueError(f"{n} gradients say nothing about their noise; take 3 or more")
  squares = np.diag(products).astype(np.float64)
  pairs = products.astype(np.float64) - np.diag(squares)
  signal = pairs.sum() / (n * (n - 1))
  without = (pairs.sum() - 2 * pairs.sum(axis=1)) / ((n - 1) * (n - 2))
  error = math.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2))
  noise = squares.mean() - signal
  return {
    "signal": float(signal),
    "signal_standard_error": error,
    "noise": float(noise),
    "scale": float(noise / signal) if signal > 0 else math.inf,
  }
