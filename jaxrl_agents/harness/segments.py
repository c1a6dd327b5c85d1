"""Turns of an episode to training segments: the prefix rule.

A prompt that extends what was seen continues the segment. A prompt that does not (something was
pruned or summarised, a one-time message vanished) opens a new one. So each sampled token is trained
under exactly the context in which it was sampled, and in exactly one segment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_agents.types import NOT_ROUTED, Generation, Segment


@dataclasses.dataclass(frozen=True)
class Turn:
  """One model call: the ids it saw, int32 [P], and what it sampled."""

  prompt: np.ndarray
  generation: Generation


def to_segments(turns: Sequence[Turn], shared_turns: int = 0) -> tuple[Segment, ...]:
  """The segments of an episode, in order.

  The first `shared_turns` turns are trained elsewhere, and some nowhere (Generation.trained): they
  are context here, and a segment that holds no other is left out.

  Where prompt and earlier reply were routed again by a later call of the same segment, the later
  call's experts stand; rows that it did not record keep the earlier ones.
  """
  runs: list[list[tuple[Turn, bool]]] = []
  seen = np.zeros(0, np.int32)
  for i, turn in enumerate(turns):
    if not runs or not _extends(turn.prompt, seen):
      runs.append([])
    runs[-1].append((turn, i >= shared_turns and turn.generation.trained))
    seen = np.concatenate([turn.prompt, turn.generation.tokens])
  return tuple(_segment(run) for run in runs if any(trained for _, trained in run))


def _extends(prompt: np.ndarray, seen: np.ndarray) -> bool:
  return len(prompt) >= len(seen) and bool(np.array_equal(prompt[: len(seen)], seen))


def _segment(run: Sequence[tuple[Turn, bool]]) -> Segment:
  """One segment of turns, and whether each is trained, of which each prompt extends the previous
  prompt and reply.
  """
  last, _ = run[-1]
  tokens = np.concatenate([last.prompt, last.generation.tokens]).astype(np.int32)
  length = len(tokens)
  loss_mask = np.zeros(length, bool)
  logprobs = np.zeros(length, np.float32)
  versions = np.full(length, -1, np.int32)
  routing = None
  for turn, trained in run:
    span = slice(len(turn.prompt), len(turn.prompt) + len(turn.generation.tokens))
    if trained:
      loss_mask[span] = True
      logprobs[span] = turn.generation.logprobs
      versions[span] = turn.generation.versions
    rows = turn.generation.routing
    if rows is None:
      continue
    if routing is None:
      routing = np.full((length, *rows.shape[1:]), NOT_ROUTED, np.uint16)
    recorded = (rows != NOT_ROUTED).reshape(len(rows), -1).any(axis=1)
    routing[: len(rows)][recorded] = rows[recorded]
  return Segment(tokens, loss_mask, logprobs, versions, routing)
