"""The canary: the learner reproduces the log-probabilities that the sampler recorded, or the run
stops.

A bug that gives sampler and learner different policies (weights, cache, routing, temperature)
leaves no other trace than slow learning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import mixed_version_canary, packing, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy.config import PolicyConfig

OUTLIER = 10
"""A single token may differ by this many times the canary's bound."""


class CanaryError(RuntimeError):
  """The learner does not reproduce the log-probabilities that the sampler recorded."""


def of_versions(
  batches: Sequence[packing.Batch],
  published: Callable[[int], Any],
  scored: Callable[[Any, packing.Batch], np.ndarray],
  *,
  bound: float,
) -> dict[str, float]:
  """Scores one microbatch under the weights that sampled most of its tokens.

  Compared are tokens that were sampled from keys and values of their own version alone
  (Batch.versions). The version is read back from where it was published, so that wrong weights in
  the sampler or in the store, and keys of other weights in its cache, are found alike.

  Args:
    batches: of the first substep.
    published: see `Plan`.
    scored: (parameters, microbatch) -> log-probabilities of its targets, float32 [B, T].
    bound: see `check`.

  Returns:
    Metrics: "canary_tokens" that were compared, and the differences; no differences
    if there were no tokens whose weights are kept.

  Raises:
    CanaryError: see `check`.
  """
  candidates = [
    (int(version), batch._replace(loss_mask=batch.loss_mask & (batch.versions == version)))
    for batch in batches
    for version in np.unique(np.asarray(batch.versions)).tolist()
    if version >= 0
  ]
  for version, batch in sorted(candidates, key=lambda each: -each[1].loss_mask.sum()):
    if (params := published(version)) is None:
      continue
    found = train_step.logprob_gap([scored(params, batch)], [batch])
    check(found, bound=bound, version=version)
    return {
      "canary_tokens": float(batch.loss_mask.sum()),
      "canary_max_abs_logprob_difference": found["gap_max"],
      "canary_mean_abs_logprob_difference": found["gap_mean"],
    }
  return {"canary_tokens": 0.0}


def of_mixed_caches(
  rollouts: Sequence[Rollout],
  published: Callable[[int], Any],
  *,
  cfg: PolicyConfig,
  learner: LearnerConfig,
  temperature: float,
) -> dict[str, float]:
  """Scores tokens that were sampled while weights changed, of a microbatch of sequences, on caches
  that are built again as the sampler's were (learner.mixed_version_canary).

  Returns:
    Metrics: "canary_kept_tokens" that were compared, and "canary_kept_max_abs_logprob_difference"
    if there were any.

  Raises:
    CanaryError: see `check`.
  """
  gaps, versions = mixed_version_canary.gaps(
    rollouts,
    published,
    cfg=cfg,
    temperature=temperature,
    rows=learner.rows_per_microbatch,
    row_tokens=learner.row_lengths[-1],
  )
  if not versions:
    return {"canary_kept_tokens": 0.0}
  found = train_step.gap_figures(gaps)
  check(found, bound=learner.canary_bound, version=", then ".join(map(str, versions)))
  return {
    "canary_kept_tokens": float(len(gaps)),
    "canary_kept_max_abs_logprob_difference": found["gap_max"],
  }


def check(found: Mapping[str, float], *, bound: float, version: int | str) -> None:
  """Verifies that the first substep's gradients were of the log-probabilities that were sampled.

  They come from the forward pass of these gradients, under the weights that sampled the rollouts.
  Rounding alone moves a few tokens further than the rest, those whose attention is divided between
  two positions: in float32, with a p99 of 2e-5, one of 10^4 tokens moved by 1.7e-4. A real error
  moves many tokens, or some by far.

  Args:
    found: metrics of the gradients, with "gap_p99" and "gap_max" (learner.metrics).
    bound: of the difference of log-probabilities.
    version: of the weights.

  Raises:
    CanaryError: more than one token in a hundred differs by more than `bound`, or any by more than
      `OUTLIER` times that.
  """
  if found["gap_p99"] <= bound and found["gap_max"] <= OUTLIER * bound:
    return
  raise CanaryError(
    f"learner and sampler disagree on fresh rollouts at version {version}: "
    f"|dlogp| p99 {found['gap_p99']:.3g} (bound {bound:g}), max {found['gap_max']:.3g} (bound "
    f"{OUTLIER * bound:g}). Either the "
    "sampler holds other weights, its cache is stale, or sampling and training differ in "
    "temperature or routing; nothing was trained on them"
  )
