"""Packs the rollouts of one optimizer step into rows of a few fixed lengths. numpy only: no jax.

Shapes are few: every microbatch is [rows_per_microbatch, row_tokens], or has the shortest of some
shorter rows that holds its fullest row, and is filled up with empty rows. A run compiles one step
for each length that it meets. The normaliser of the loss is applied here
only: each token gets its weight from the token counts of *all* rollouts of the step, before rows
and microbatches exist. The loss of the step is the plain sum of `weights * loss`, which no packing
or sharding can change.

A row holds sequences one after another, or trees of sequences that share their beginnings
(`prefix_trees`), in which each shared token is computed once.

Alphabet: B rows, T tokens of a row, L mixture-of-experts layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from jaxrl_agents.learner import placement, prefix_trees
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.types import NOT_ROUTED

Normaliser = Literal["token_mean", "rollout_mean", "constant", "sum"]

Array: TypeAlias = Any
"""np.ndarray on the host, jax.Array on devices and under jit."""


class Batch(NamedTuple):
  """One microbatch of packed rows. A NamedTuple is a pytree: numpy here, jax arrays on devices.

  `tokens`, `depths`, `ends` and `routing` belong to the places of a row. All other arrays belong to
  predictions, of which a row has at most as many as places. Without `sources`, prediction t is made
  at place t, of the token at t + 1. In trees a place may make several: `sources` says where.

  Attributes:
    tokens: int32 [B, T], 0 in padding.
    depths: place in the sequence, int32 [B, T].
    ends: place after the last token below this one, int32 [B, T]; without trees the place after the
      sequence. 0 in padding. See `policy.attention.causal`.
    targets: the predicted token, int32 [B, T]; 0 where there is none.
    loss_mask: True where the target was sampled by the trainable policy, bool [B, T].
    behaviour_logprobs: the sampler's log-probability of the target, float32 [B, T].
    advantages: float32 [B, T], 0 where loss_mask is False.
    weights: share of the target's loss in the loss of the optimizer step, float32 [B, T].
    rollout_ids: which rollout of this microbatch, int32 [B, T], in [0, B * T).
    routing: experts of `tokens`, uint16 [B, T, L, K], NOT_ROUTED where unknown; None if dense.
    reference_logprobs: log-probability of the target under a fixed policy, float32 [B, T] or None.
    proximal_logprobs: its log-probability under the weights at the start of the step, float32
      [B, T] or None.
    versions: the weights that sampled the target, if all that it was sampled from was computed by
      them too, int32 [B, T]; -1 elsewhere. None if nothing was sampled.
    sources: the place that makes the prediction, int32 [B, T], 0 where there is none; None without
      trees.
  """

  tokens: Array
  depths: Array
  ends: Array
  targets: Array
  loss_mask: Array
  behaviour_logprobs: Array
  advantages: Array
  weights: Array
  rollout_ids: Array
  routing: Array | None = None
  reference_logprobs: Array | None = None
  proximal_logprobs: Array | None = None
  versions: Array | None = None
  sources: Array | None = None


def token_weights(
  loss_tokens: Sequence[int],
  normaliser: Normaliser,
  *,
  constant_tokens: int = 0,
  constant_rollouts: float = 0.0,
) -> np.ndarray:
  """The weight of one token of each rollout in the loss of the optimizer step.

    token_mean    1 / N                    N loss tokens of the step    (DAPO, CISPO, Kimi K2.5)
    rollout_mean  1 / (G |y_j|)            G rollouts with loss tokens  (GRPO, GSPO)
    constant      1 / (G constant_tokens)                               (Dr.GRPO, Composer 2)
    sum           1                                                     (Tinker)

  Args:
    loss_tokens: |y_j| of the G rollouts of the step.
    normaliser: one of the above.
    constant_tokens: the divisor of "constant", e.g. the longest reply; 0 otherwise.
    constant_rollouts: G of "constant" if it must not depend on how many rollouts are left; 0
      otherwise.

  Returns:
    float64 [G].

  Raises:
    ValueError: an unknown normaliser, or `constant_tokens` missing or without effect.
  """
  lengths = np.asarray(loss_tokens, np.float64)
  if (normaliser == "constant") != (constant_tokens > 0):
    raise ValueError(
      f"constant_tokens={constant_tokens} with normaliser {normaliser!r}; "
      'it is the divisor of "constant" and has no effect on the others'
    )
  rollouts = max(int((lengths > 0).sum()), 1)
  if normaliser == "token_mean":
    return np.full_like(lengths, 1.0 / max(lengths.sum(), 1.0))
  if normaliser == "rollout_mean":
    return 1.0 / (rollouts * np.maximum(lengths, 1.0))
  if normaliser == "constant":
    return np.full_like(lengths, 1.0 / ((constant_rollouts or rollouts) * constant_tokens))
  if normaliser == "sum":
    return np.ones_like(lengths)
  raise ValueError(
    f"no normaliser {normaliser!r}; there are token_mean, rollout_mean, constant, sum"
  )


def pack(
  rollouts: Sequence[Rollout],
  *,
  row_tokens: int,
  rows_per_microbatch: int,
  shorter_row_tokens: Sequence[int] = (),
  normaliser: Normaliser = "token_mean",
  constant_tokens: int = 0,
  constant_rollouts: float = 0.0,
  keep_rollouts_together: bool = False,
  share_prefixes: bool = False,
) -> list[Batch]:
  """All rollouts of one optimizer step as microbatches of equally many rows.

  Args:
    rollouts: every rollout of the step: the normaliser counts their tokens.
    row_tokens: T of the longest rows.
    rows_per_microbatch: B.
    shorter_row_tokens: further T, each at most `row_tokens`; without them all microbatches have one
      shape.
    normaliser: see `token_weights`.
    constant_tokens, constant_rollouts: see `token_weights`.
    keep_rollouts_together: all segments of a rollout in one microbatch.
    share_prefixes: tokens that sequences begin with in common stand once.

  Returns:
    Microbatches; an empty list for no rollouts. A segment without loss tokens is left out.

  Raises:
    ValueError: a segment longer than a row, one whose first token is a loss token, or, with
      `keep_rollouts_together`, a rollout larger than a microbatch, or prefixes to be shared.
  """
  weights = token_weights(
    [r.loss_tokens for r in rollouts],
    normaliser,
    constant_tokens=constant_tokens,
    constant_rollouts=constant_rollouts,
  )
  placements = placement.place(
    rollouts,
    row_tokens=row_tokens,
    rows_per_microbatch=rows_per_microbatch,
    shorter_row_tokens=shorter_row_tokens,
    keep_rollouts_together=keep_rollouts_together,
    share_prefixes=share_prefixes,
  )
  segments = [branch.segment for p in placements for branch in p.tree.branches]
  routed = [segment.routing for segment in segments if segment.routing is not None]
  routing_shape = routed[0].shape[1:] if routed else None
  fullest = [0] * (1 + max((p.microbatch for p in placements), default=-1))
  for p in placements:
    fullest[p.microbatch] = max(fullest[p.microbatch], p.start + p.tree.size)
  lengths = (*shorter_row_tokens, row_tokens)
  shapes = [(rows_per_microbatch, placement.row_length(load, lengths)) for load in fullest]
  batches = [empty(shape, routing_shape, share_prefixes) for shape in shapes]
  local_ids: list[dict[int, int]] = [{} for _ in batches]
  advantages = np.asarray([r.advantage for r in rollouts], np.float32)
  for p in placements:
    _write(batches[p.microbatch], p, local_ids[p.microbatch], advantages, weights)
  return batches


def empty(
  shape: tuple[int, int], routing_shape: tuple[int, ...] | None = None, share_prefixes: bool = False
) -> Batch:
  """A microbatch of padding, [B, T], with experts [L, K] if they are given, and places of
  predictions if prefixes are shared."""
  ints = [np.zeros(shape, np.int32) for _ in range(5)]
  floats = [np.zeros(shape, np.float32) for _ in range(3)]
  routing = None if routing_shape is None else np.full((*shape, *routing_shape), NOT_ROUTED)
  return Batch(
    tokens=ints[0],
    depths=ints[1],
    ends=ints[2],
    targets=ints[3],
    loss_mask=np.zeros(shape, bool),
    behaviour_logprobs=floats[0],
    advantages=floats[1],
    weights=floats[2],
    rollout_ids=ints[4],
    routing=routing,
    versions=np.full(shape, -1, np.int32),
    sources=np.zeros(shape, np.int32) if share_prefixes else None,
  )


def _write(batch, p, ids, advantages, weights):
  """Fills in one tree; `ids` are the ids of rollouts in this microbatch."""
  written = prefix_trees.write(p.tree, p.start)
  here = (p.row, slice(p.start, p.start + len(written["tokens"])))
  for name in ("tokens", "depths", "ends"):
    getattr(batch, name)[here] = written[name]
  if batch.routing is not None and "routing" in written:
    batch.routing[here] = written["routing"]
  rollouts = written["rollouts"]
  predictions: tuple[int, Any] = p.row, written["sources"]
  if batch.sources is None:
    (branch,) = p.tree.branches
    batch.rollout_ids[here] = ids.setdefault(branch.rollout, len(ids))
    batch.targets[p.row, p.start : here[1].stop - 1] = branch.segment.tokens[1:]
  else:
    predictions = p.row, slice(p.start, p.start + len(rollouts))
    batch.sources[predictions] = written["sources"]
    batch.targets[predictions] = written["targets"]
    batch.rollout_ids[predictions] = [ids.setdefault(r, len(ids)) for r in rollouts.tolist()]
  batch.loss_mask[predictions] = True
  batch.behaviour_logprobs[predictions] = written["logprobs"]
  batch.versions[predictions] = written["versions"]
  batch.advantages[predictions] = advantages[rollouts]
  batch.weights[predictions] = weights[rollouts]
