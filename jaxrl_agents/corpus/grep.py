"""Regular expressions over many texts under a hard time limit.

A pattern comes from a policy, so it may be invalid or take exponential time. Both become a
`GrepError` with a message that the policy can act on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import regex

MAX_PATTERN_CHARACTERS = 500

MAX_EXPANDED_CHARACTERS = 500_000
"""Bound of a pattern's length times all its repeat counts. `regex` compiles the least number of
repeats as that many copies, of about 270 bytes for each character.
"""
_BRACES = re.compile(r"\{([^{}]*)\}")
_VERBOSE = re.compile(r"\(\?[a-zA-Z0-9]*x")
_RECURSION = re.compile(r"(?<!\\)(?:\\\\)*\(\?(?:[R0-9&]|[-+][0-9]|P>)")


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
  _check_repeats(pattern)
  try:
    return regex.compile(pattern, regex.VERSION0 | regex.MULTILINE, cache_pattern=False)
  except regex.error as error:
    raise GrepError(f"invalid pattern: {error}; escape special characters with \\") from None
  except (RecursionError, OverflowError, MemoryError, ValueError) as error:
    raise GrepError(f"invalid pattern ({type(error).__name__}); use a simpler pattern") from None


def _check_repeats(pattern: str) -> None:
  """Refuses a pattern that could need much memory to compile or to match.

  The bound is coarse on purpose: it multiplies all counts in braces, nested or not, so that no
  syntax of groups, classes or flags has to be understood.
  """
  if "#" in pattern and _VERBOSE.search(pattern):
    raise GrepError("the flag x with comments is not supported; leave the comments out")
  if _RECURSION.search("".join(pattern.split())):
    raise GrepError("recursion such as (?R) or (?1) is not supported; write the pattern out")
  size = len(pattern)
  for content in _BRACES.findall(pattern):
    least = "".join(filter(str.isdecimal, content.partition(",")[0]))
    size *= max(1, int(least or 1))
    if size > MAX_EXPANDED_CHARACTERS:
      raise GrepError(
        "the pattern repeats too often: the counts in braces multiply to more than "
        f"{MAX_EXPANDED_CHARACTERS // len(pattern)}; use smaller counts, * or +"
      )
