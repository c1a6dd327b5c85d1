"""Waits for tensorstore that end: a disk or bucket that does not answer is a named error."""

from __future__ import annotations

from typing import Any

PATIENCE_S = 1800.0
"""Longest time for one read or write of tensorstore, which may be that of many gigabytes."""


def result(future: Any, place: object, patience_s: float = PATIENCE_S) -> Any:
  """The result of a tensorstore future.

  Args:
    future: of tensorstore.
    place: what is read or written, for the error.
    patience_s: longest time to wait.

  Raises:
    TimeoutError: there is no result within patience_s; names `place`.
    ValueError: tensorstore's own error.
  """
  try:
    return future.result(timeout=patience_s)
  except TimeoutError:
    raise TimeoutError(
      f"{place} has not answered within {patience_s:g} s; see whether its disk or bucket works, "
      "then run the same command again"
    ) from None
