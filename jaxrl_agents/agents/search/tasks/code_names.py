"""Names in passages: what a clue that refers to another one can be searched with."""

from __future__ import annotations

import re
from collections.abc import Iterable

MIN_NAME = 4
"""Characters of the shortest name: shorter ones stand everywhere."""

_NAME = re.compile(
  r"""
  \b(?:def|class)\s+(?P<defined>\w+)         # what a passage defines
  | (?P<called>[A-Za-z_]\w+)\s*\(            # what it calls
  | \b(?P<joined>[A-Za-z_]*[a-z0-9]_\w+      # words_joined, camelCase, CamelCase
      | [a-z]+[A-Z]\w* | [A-Z][a-z0-9]+[A-Z]\w*
      | [A-Z]{2,}\w*)\b                      # CAPITALS
  """,
  re.VERBOSE,
)
_DEFINED = re.compile(r"\b(?:def|class)\s+(\w+)")
_KEYWORDS = re.compile(
  "and|assert|elif|except|isinstance|lambda|len|not|print|raise|return|super|while|with|yield"
  "|TODO|NOTE|None|True|False|self"
)


def names(text: str) -> list[str]:
  """The distinct names of a passage in order: what it defines or calls, and words that only code
  has (joined_words, CamelCase, CAPITALS); not keywords, nor what Python calls "__so__".
  """
  found = (match[match.lastgroup or 0] for match in _NAME.finditer(text))
  good = (name for name in found if len(name) >= MIN_NAME and not _KEYWORDS.fullmatch(name))
  return [name for name in dict.fromkeys(good) if name.strip("_") and not name.endswith("__")]


def stands_in(name: str, text: str) -> bool:
  """Whether a text has a name as a whole word."""
  return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def first_defined(texts: Iterable[str]) -> str | None:
  """The first name that one of these passages defines; None if they define none."""
  return next((name for text in texts for name in defined(text)), None)


def defined(text: str) -> list[str]:
  """The distinct names that a passage defines, in order."""
  return list(dict.fromkeys(_DEFINED.findall(text)))
