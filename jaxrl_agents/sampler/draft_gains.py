"""What drafts have been worth in an engine so far, which decides when its steps draft. No jax."""

from __future__ import annotations

import numpy as np

UNMEASURED_COST = 2.0
"""Time of a step with drafts over that of one without, where it must not depend on the clock."""

_FIRST_GUESS = 0.5
"""Share of drafts that are taken to be accepted before any was verified."""

_GUESSED_ROWS = 8.0
"""Rows that the first guess counts as."""

_KEPT = 0.98
"""Decay of the counts from one program to the next, so that drafting is tried again some time."""


class DraftGains:
  """Accepted drafts when a row verifies some, by kind, as recent programs showed.

    gain = (guess * 8 + accepted) / (8 + rows), over programs weighted by 0.98^age

  Args:
    drafts: of a row and step, by kind (drafts.KINDS).
  """

  def __init__(self, drafts: list[int]):
    self._guess = _FIRST_GUESS * np.array(drafts, np.float64)
    self._rows = np.zeros(len(drafts))
    self._accepted = np.zeros(len(drafts))

  @property
  def gains(self) -> np.ndarray:
    """float32 [KINDS]."""
    whole = self._guess * _GUESSED_ROWS + self._accepted
    return (whole / (_GUESSED_ROWS + self._rows)).astype(np.float32)

  def record(self, rows: np.ndarray, accepted: np.ndarray) -> None:
    """Counts a program: rows that verified drafts, and accepted drafts, [KINDS] each."""
    self._rows = _KEPT * self._rows + rows
    self._accepted = _KEPT * self._accepted + accepted
