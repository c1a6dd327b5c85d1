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


def to_segments(turns: Sequence[Turn]) -> tuple[Segment, ...]:
  """The segments of an episode, in order.

  Turns that are not trained (Generation.trained) are context, and a segment that holds no other is
  left out.

  A call returns the experts of the tokens that no earlier call of its segment returned
  (`routed_tokens`), so each token keeps those under which the policy first read it.
  """
  runs: list[list[tuple[Turn, bool]]] = []
  seen = np.zeros(0, np.int32)
  for turn in turns:
    if not runs or not _extends(turn.prompt, seen):
      runs.append([])
    runs[-1].append((turn, turn.generation.trained))
    seen = np.concatenate([turn.prompt, turn.generation.tokens])
  return tuple(segment_of(run) for run in runs if any(trained for _, trained in run))


def routed_tokens(turns: Sequence[Turn], prompt: np.ndarray) -> int:
  """How many leading tokens of the next prompt have experts that earlier turns recorded.

  The last token of a reply has none: it was sampled, and never read.
  """
  if not turns or turns[-1].generation.routing is None:
    return 0
  seen = np.concatenate([turns[-1].prompt, turns[-1].generation.tokens])
  return len(seen) - 1 if _extends(prompt, seen) else 0


def _extends(prompt: np.ndarray, seen: np.ndarray) -> bool:
  return len(prompt) >= len(seen) and bool(np.array_equal(prompt[: len(seen)], seen))


def segment_of(run: Sequence[tuple[Turn, bool]]) -> Segment:
  """One segment of turns, and whether each is trained, of which each prompt extends the previous
  prompt and reply. Experts that an earlier turn recorded stay.
  """
  last, _ = run[-1]
  tokens = np.concatenate([last.prompt, last.generation.tokens]).astype(np.int32)
  length = len(tokens)
  loss_mask = np.zeros(length, bool)
  logprobs = np.zeros(length, np.float32)
  versions = np.full(length, -1, np.int32)
  began = run[0][0].generation.began
  kept = np.zeros(length, bool)
  routing = None
  for turn, trained in run:
    span = slice(len(turn.prompt), len(turn.prompt) + len(turn.generation.tokens))
    if trained:
      loss_mask[span] = True
      logprobs[span] = turn.generation.logprobs
      versions[span] = turn.generation.versions
    kept[span] = _is_kept(turn.generation, began)
    rows = turn.generation.routing
    if rows is None:
      continue
    if routing is None:
      routing = np.full((length, *rows.shape[1:]), NOT_ROUTED, np.uint16)
    place = routing[span.stop - len(rows) : span.stop]
    place[...] = np.where(place == NOT_ROUTED, rows, place)
  return Segment(tokens, loss_mask, logprobs, versions, routing, began, kept)


def _is_kept(reply: Generation, began: int) -> bool:
  """Whether the cache of a call is known, see `Segment.kept`: `began` computed its prompt, and
  of that of the first call, with which experts were recorded.
  """
  return reply.kept and reply.began == began and bool(np.all(reply.versions[:1] == began))
