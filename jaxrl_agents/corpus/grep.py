"""Regular expressions over many texts under a hard time limit.

A pattern comes from a policy, so it may be invalid or take exponential time. Both become a
`GrepError` with a message that the policy can act on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import regex

MAX_PATTERN_CHARACTERS = 500


class GrepError(Exception):
  """A pattern is unusable or took too long; the message is written for the policy."""


def matching(
  texts: Iterable[str], pattern: str, *, limit: int = 5, timeout_s: float = 2.0
) -> list[int]:
  """Returns the places (from 0) of the first `limit` texts that the pattern matches anywhere.

  Raises:
    GrepError: the pattern is empty, too long or invalid, or `timeout_s` passed before `limit` texts
      were found or all were searched.
  """
  compiled = _compiled(pattern)
  deadline = time.monotonic() + timeout_s
  found: list[int] = []
  if limit < 1:
    return found
  for place, text in enumerate(texts):
    left_s = deadline - time.monotonic()
    try:
      if left_s <= 0:
        raise TimeoutError
      matched = compiled.search(text, timeout=left_s)
    except TimeoutError:
      raise GrepError(
        f"the pattern took longer than {timeout_s:g} s; use a simpler pattern, without nested "
        "repeats such as (a+)+"
      ) from None
    except (RecursionError, MemoryError):
      raise GrepError("the pattern needs too much memory; use a simpler pattern") from None
    if matched:
      found.append(place)
      if len(found) == limit:
        break
  return found


def _compiled(pattern: str) -> regex.Pattern[str]:
  if not pattern.strip():
    raise GrepError("the pattern is empty; give a regular expression such as def +parse")
  if len(pattern) > MAX_PATTERN_CHARACTERS:
    raise GrepError(
      f"the pattern has {len(pattern)} characters, at most {MAX_PATTERN_CHARACTERS} are allowed; "
      "use a shorter pattern"
    )
  try:
    return regex.compile(pattern, regex.VERSION0 | regex.MULTILINE, cache_pattern=False)
  except regex.error as error:
    raise GrepError(f"invalid pattern: {error}; escape special characters with \\") from None
  except (RecursionError, OverflowError, MemoryError, ValueError) as error:
    raise GrepError(f"invalid pattern ({type(error).__name__}); use a simpler pattern") from None
