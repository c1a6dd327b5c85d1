"""Packs the rollouts of one optimizer step into rows of fixed length. numpy only: no jax.

Shapes never change: every microbatch is [rows_per_microbatch, row_tokens], filled up with empty
rows, so that one compiled step serves the whole run. The normaliser of the loss is applied here
only: each token gets its weight from the token counts of *all* rollouts of the step, before rows
and microbatches exist. The loss of the step is the plain sum of `weights * loss`, which no packing
or sharding can change.

Alphabet: B rows, T tokens of a row, L mixture-of-experts layers, K experts per token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.types import NOT_ROUTED, Segment

Normaliser = Literal["token_mean", "rollout_mean", "constant", "sum"]

Array: TypeAlias = Any
"""np.ndarray on the host, jax.Array on devices and under jit."""


class Batch(NamedTuple):
  """One microbatch of packed rows. A NamedTuple is a pytree: numpy here, jax arrays on devices.

  What belongs to the token at time t + 1 stands at the position t that predicts it.

  Attributes:
    tokens: int32 [B, T], 0 in padding.
    targets: the next token of the same segment, int32 [B, T]; 0 where there is none.
    positions: place in the segment, int32 [B, T].
    segment_ids: 1, 2, … in each row, 0 in padding, int32 [B, T].
    loss_mask: True where the target was sampled by the trainable policy, bool [B, T].
    behaviour_logprobs: the sampler's log-probability of the target, float32 [B, T].
    advantages: float32 [B, T], 0 where loss_mask is False.
    weights: share of the target's loss in the loss of the optimizer step, float32 [B, T].
    rollout_ids: which rollout of this microbatch, int32 [B, T], in [0, B * T).
    routing: experts of `tokens`, uint16 [B, T, L, K], NOT_ROUTED where unknown; None if dense.
    reference_logprobs: log-probability of the target under a fixed policy, float32 [B, T] or None.
  """

  tokens: Array
  targets: Array
  positions: Array
  segment_ids: Array
  loss_mask: Array
  behaviour_logprobs: Array
  advantages: Array
  weights: Array
  rollout_ids: Array
  routing: Array | None = None
  reference_logprobs: Array | None = None


@dataclasses.dataclass(frozen=True)
class Placement:
  """The place of a segment: microbatch, row, first token; and the index of its rollout in
  the step.
  """

  microbatch: int
  row: int
  start: int
  rollout: int
  segment: Segment


def token_weights(
  loss_tokens: Sequence[int],
  normaliser: Normaliser,
  *,
  constant_tokens: int = 0,
  constant_rollouts: float = 0.0,
) -> np.ndarray:
  """The weight of one token of each rollout in the loss of the optimizer step.

  token_mean    1 / N                 N the loss tokens of the step (DAPO, CISPO, Kimi K2.5)
  rollout_mean  1 / (G |y_j|)         G rollouts with loss tokens   (GRPO, GSPO) constant      1 /
  (G constant_tokens)                             (Dr.GRPO; Composer 2) sum           1
  (Tinker)

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
  normaliser: Normaliser = "token_mean",
  constant_tokens: int = 0,
  constant_rollouts: float = 0.0,
  keep_rollouts_together: bool = False,
) -> list[Batch]:
  """All rollouts of one optimizer step as microbatches of equal shape.

  Args:
    rollouts: every rollout of the step: the normaliser counts their tokens.
    row_tokens: T.
    rows_per_microbatch: B.
    normaliser: see `token_weights`.
    constant_tokens, constant_rollouts: see `token_weights`.
    keep_rollouts_together: all segments of a rollout in one microbatch.

  Returns:
    Microbatches; an empty list for no rollouts. A segment without loss tokens is left out.

  Raises:
    ValueError: a segment longer than a row, one whose first token is a loss token, or, with
      `keep_rollouts_together`, a rollout larger than a microbatch.
  """
  weights = token_weights(
    [r.loss_tokens for r in rollouts],
    normaliser,
    constant_tokens=constant_tokens,
    constant_rollouts=constant_rollouts,
  )
  placements = place(
    rollouts,
    row_tokens=row_tokens,
    rows_per_microbatch=rows_per_microbatch,
    keep_rollouts_together=keep_rollouts_together,
  )
  routed = [p.segment.routing for p in placements if p.segment.routing is not None]
  shape = (rows_per_microbatch, row_tokens)
  routing_shape = routed[0].shape[1:] if routed else None
  count = 1 + max((p.microbatch for p in placements), default=-1)
  batches = [_empty(shape, routing_shape) for _ in range(count)]
  local_ids: list[dict[int, int]] = [{} for _ in range(count)]
  for p in placements:
    ids = local_ids[p.microbatch]
    rollout_id = ids.setdefault(p.rollout, len(ids))
    advantage = rollouts[p.rollout].advantage
    _write(batches[p.microbatch], p, rollout_id, advantage, float(weights[p.rollout]))
  return batches


def place(
  rollouts: Sequence[Rollout],
  *,
  row_tokens: int,
  rows_per_microbatch: int,
  keep_rollouts_together: bool = False,
) -> list[Placement]:
  """First-fit decreasing: the largest unit first, to the first microbatch with room for it.

  A unit is one segment, or all segments of a rollout with `keep_rollouts_together`. The result is a
  pure function of the lengths and their order. See `pack` for arguments and errors.
  """
  units: list[list[tuple[int, Segment]]] = []
  for index, rollout in enumerate(rollouts):
    segments = [(index, s) for s in rollout.segments if s.loss_mask.any()]
    for _, segment in segments:
      _check(segment, row_tokens)
    units.extend([segments] if keep_rollouts_together and segments else [[s] for s in segments])
  units.sort(key=lambda unit: -sum(len(s.tokens) for _, s in unit))
  used: list[list[int]] = []  # tokens used in each row of each microbatch
  placements: list[Placement] = []
  for unit in units:
    unit = sorted(unit, key=lambda item: -len(item[1].tokens))
    for m in range(len(used) + 1):
      rows = used[m] if m < len(used) else [0] * rows_per_microbatch
      fitted = _fit([len(s.tokens) for _, s in unit], rows, row_tokens)
      if fitted is not None:
        break
    else:
      raise ValueError(
        f"rollout of {sum(len(s.tokens) for _, s in unit)} tokens in {len(unit)} segments does not "
        f"fit a microbatch of {rows_per_microbatch} rows of {row_tokens}; "
        "raise learner.rows_per_microbatch"
      )
    if m == len(used):
      used.append([0] * rows_per_microbatch)
    for (index, segment), row in zip(unit, fitted, strict=True):
      placements.append(Placement(m, row, used[m][row], index, segment))
      used[m][row] += len(segment.tokens)
  return placements


def _fit(lengths, used_tokens, row_tokens):
  """Rows for `lengths` by first fit beside what is used, or None."""
  used, chosen = list(used_tokens), []
  for n in lengths:
    row = next((i for i, u in enumerate(used) if u + n <= row_tokens), None)
    if row is None:
      return None
    used[row] += n
    chosen.append(row)
  return chosen


def _check(segment, row_tokens):
  n = len(segment.tokens)
  if n > row_tokens:
    raise ValueError(
      f"segment of {n} tokens does not fit rows of {row_tokens}; "
      "raise learner.row_tokens or lower env.max_tokens"
    )
  if segment.loss_mask[0]:
    raise ValueError(
      "the first token of a segment is a loss token, and nothing predicts it; "
      "begin the prompt with a token that is not sampled"
    )


def _empty(shape, routing_shape):
  ints = [np.zeros(shape, np.int32) for _ in range(5)]
  floats = [np.zeros(shape, np.float32) for _ in range(3)]
  routing = None if routing_shape is None else np.full((*shape, *routing_shape), NOT_ROUTED)
  return Batch(
    tokens=ints[0],
    targets=ints[1],
    positions=ints[2],
    segment_ids=ints[3],
    loss_mask=np.zeros(shape, bool),
    behaviour_logprobs=floats[0],
    advantages=floats[1],
    weights=floats[2],
    rollout_ids=ints[4],
    routing=routing,
  )


def _write(batch, placement, rollout_id, advantage, weight):
  """Fills the slice of one segment; fields of the next token are shifted to its predictor."""
  p, segment = placement, placement.segment
  n = len(segment.tokens)
  here = (p.row, slice(p.start, p.start + n))
  predicting = (p.row, slice(p.start, p.start + n - 1))
  mask = segment.loss_mask[1:].astype(bool)
  batch.tokens[here] = segment.tokens
  batch.targets[predicting] = segment.tokens[1:]
  batch.positions[here] = np.arange(n)
  batch.segment_ids[here] = 1 + batch.segment_ids[p.row].max()
  batch.loss_mask[predicting] = mask
  batch.behaviour_logprobs[predicting] = np.where(mask, segment.logprobs[1:], 0.0)
  batch.advantages[predicting] = np.where(mask, advantage, 0.0)
  batch.weights[predicting] = np.where(mask, weight, 0.0)
  batch.rollout_ids[here] = rollout_id
  if batch.routing is not None and segment.routing is not None:
    batch.routing[here] = segment.routing
