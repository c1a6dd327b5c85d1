"""Packs sequences whose targets, weights and advantages are given token by token. numpy only.

Nothing is derived: the targets are not the next tokens, no normaliser divides the weights, and the
loss of a batch is the plain sum over them. `packing.pack` is for rollouts, whose advantages and
weights follow from their groups.

Alphabet: B rows, T tokens of a row, N tokens of a sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_agents.learner import packing, placement
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.types import Segment


@dataclasses.dataclass(frozen=True)
class ExplicitTargets:
  """A sequence, and of each of its tokens what it predicts and what that counts.

  Attributes:
    tokens: int32 [N].
    targets: the token that place t predicts, int32 [N].
    weights: of the loss of each target, of any sign, float32 [N].
    behaviour_logprobs: the sampler's log-probability of each target, float32 [N].
    advantages: float32 [N].
  """

  tokens: np.ndarray
  targets: np.ndarray
  weights: np.ndarray
  behaviour_logprobs: np.ndarray
  advantages: np.ndarray


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a sequence stands: its index in the order given, the row of its microbatch, and where
  in the row it begins and ends."""

  index: int
  row: int
  start: int
  end: int


def pack(
  data: Sequence[ExplicitTargets],
  *,
  row_tokens: int,
  rows_per_microbatch: int,
  shorter_row_tokens: Sequence[int] = (),
) -> list[tuple[packing.Batch, list[Place]]]:
  """Microbatches with the places of their sequences; see `packing.pack` for the shapes.

  Every target is a loss token, so that each has a log-probability, also where its weight is 0.

  Raises:
    ValueError: a sequence is empty, or longer than a row.
  """
  if without := [i for i, each in enumerate(data) if not len(each.tokens)]:
    raise ValueError(f"sequence {without[0]} has no tokens; send at least one")
  placements = placement.place(
    [Rollout((_standing_for(len(each.tokens)),)) for each in data],
    row_tokens=row_tokens,
    rows_per_microbatch=rows_per_microbatch,
    shorter_row_tokens=shorter_row_tokens,
  )
  lengths = (*shorter_row_tokens, row_tokens)
  found: list[tuple[packing.Batch, list[Place]]] = []
  for number in range(1 + max((p.microbatch for p in placements), default=-1)):
    here = [p for p in placements if p.microbatch == number]
    fullest = max(p.start + p.tree.size for p in here)
    shape = (rows_per_microbatch, placement.row_length(fullest, lengths))
    batch, places = packing.empty(shape), []
    for p in here:
      (branch,) = p.tree.branches
      given = data[branch.rollout]
      end = p.start + len(given.tokens)
      places.append(Place(branch.rollout, p.row, p.start, end))
      _write(batch, places[-1], given)
    found.append((batch, places))
  return found


def _standing_for(tokens: int) -> Segment:
  """A segment as long as a sequence; of two tokens at least, since the first is no loss token."""
  n = max(tokens, 2)
  zeros = np.zeros(n, np.int32)
  return Segment(zeros, np.arange(n) > 0, np.zeros(n, np.float32), zeros)


def _write(batch: packing.Batch, place: Place, given: ExplicitTargets) -> None:
  here = (place.row, slice(place.start, place.end))
  batch.tokens[here] = given.tokens
  batch.depths[here] = np.arange(len(given.tokens))
  batch.ends[here] = place.end
  batch.targets[here] = given.targets
  batch.loss_mask[here] = True
  batch.behaviour_logprobs[here] = given.behaviour_logprobs
  batch.advantages[here] = given.advantages
  batch.weights[here] = given.weights
