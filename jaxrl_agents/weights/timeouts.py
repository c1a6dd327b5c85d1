"""Bounded waits for tensorstore: a disk or bucket that does not answer raises an error."""

from __future__ import annotations

from typing import Any

TIMEOUT_S = 1800.0
"""Longest time for one read or write of tensorstore, which may be that of many gigabytes."""

_NOT_REACHED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED")
"""How tensorstore's errors begin whose cause is not what is stored."""


def result(future: Any, place: object, timeout_s: float = TIMEOUT_S) -> Any:
  """The result of a tensorstore future.

  Args:
    future: of tensorstore.
    place: what is read or written, for the error.
    timeout_s: longest time to wait.

  Raises:
    TimeoutError: there is no result within timeout_s; names `place`.
    OSError: a disk or bucket cannot be reached or does not permit it; names `place`.
    ValueError: tensorstore's own error.
  """
  try:
    return future.result(timeout=timeout_s)
  except ValueError as error:
    if str(error).startswith(_NOT_REACHED):
      raise OSError(
        f"{place} cannot be reached: {error}; see whether its disk or bucket works, and the "
        "credentials of this process permit it, then run the same command again"
      ) from error
    raise
  except TimeoutError:
    raise TimeoutError(
      f"{place} has not answered within {timeout_s:g} s; see whether its disk or bucket works, "
      "then run the same command again"
    ) from None
