"""Segments for the per-token view in a compact form: ids into a shared table, run lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.types import Segment

Decode = Callable[[Sequence[int]], str]


class TokenTable:
  """The text of every token id the page shows, once. Invariant: texts[place(i)] == decode([i])."""

  def __init__(self, decode: Decode):
    self._decode = decode
    self._places: dict[int, int] = {}
    self.texts: list[str] = []
    self.ids: list[int] = []

  def place(self, token: int) -> int:
    """Position in `texts` of the text of one token id."""
    if token not in self._places:
      self._places[token] = len(self.texts)
      self.texts.append(self._decode([token]))
      self.ids.append(token)
    return self._places[token]


def describe(segment: Segment, table: TokenTable) -> dict[str, Any]:
  """One segment as JSON values.

  Returns:
    tokens: places in the table, [T].
    mask: run lengths of loss_mask, starting with a run of False (which may be 0 long).
    logprobs: natural log, to 3 decimals, of the masked tokens only, in order; None where not
      finite.
    versions: [[version, run length], ...] over the masked tokens only.
  """
  mask = np.asarray(segment.loss_mask, bool)
  logprobs = np.asarray(segment.logprobs, np.float64)[mask]
  versions = np.asarray(segment.versions)[mask]
  return {
    "tokens": [table.place(int(token)) for token in segment.tokens],
    "mask": _mask_runs(mask),
    "logprobs": [round(float(x), 3) + 0.0 if np.isfinite(x) else None for x in logprobs],
    "versions": _value_runs(versions),
  }


def _mask_runs(mask: np.ndarray) -> list[int]:
  changes = np.flatnonzero(np.diff(mask.astype(np.int8))) + 1
  bounds = [0, *changes.tolist(), len(mask)]
  runs = [end - start for start, end in zip(bounds[:-1], bounds[1:], strict=True)]
  return [0, *runs] if len(mask) and mask[0] else runs


def _value_runs(values: np.ndarray) -> list[list[int]]:
  runs: list[list[int]] = []
  for value in values.tolist():
    if runs and runs[-1][0] == value:
      runs[-1][1] += 1
    else:
      runs.append([int(value), 1])
  return runs
