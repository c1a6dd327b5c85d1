"""What an engine has done, counted. No jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass
class Stats:
  """Counters since the engine was made.

  Attributes:
    forwards: passes of the main model (prefill and decode steps).
    decode_steps: those of them that decode.
    decoded_rows: sequences summed over decode steps; (tokens sampled there) / decoded_rows is the
      accepted length.
    tokens: sampled ids that were kept.
    drafted: drafted ids.
    accepted: drafted ids that were accepted.
    prompt_tokens: of all submitted requests.
    prefix_hit_tokens: positions that needed no prefill.
    preempted: sequences that gave up their pages and were computed again.
    failed: requests that ended without a Generation.
    compiles: programs compiled.
  """

  forwards: int = 0
  decode_steps: int = 0
  decoded_rows: int = 0
  tokens: int = 0
  drafted: int = 0
  accepted: int = 0
  prompt_tokens: int = 0
  prefix_hit_tokens: int = 0
  preempted: int = 0
  failed: int = 0
  compiles: int = 0


def total(found: Iterable[Stats]) -> Stats:
  """The sum of several engines' counters."""
  rows = [dataclasses.astuple(stats) for stats in found]
  return Stats(*(sum(column) for column in zip(*rows, strict=True)))
