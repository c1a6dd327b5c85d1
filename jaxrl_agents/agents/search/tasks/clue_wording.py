"""Obfuscated clues, by rule, from sentences that describe.

Names, code and numbers are blanked, words of manuals are swapped for everyday ones (`everyday`),
and what is too long is cut where a clause ends. The words that a clue was made of stay known as a
verbatim span, so that every clue can be checked against its document.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from jaxrl_agents.agents.search.tasks.everyday_words import TABLES

MAX_WORDS = 20
MIN_WORDS = 5
MIN_CUT_WORDS = 8
"""Fewest words of a clue that is only the beginning of a sentence."""

MAX_BLANKS = 3
"""A clue with more blanks than this, or with blanks for a third of its words, says too little."""

BLANK = "something"
NUMBER = "a certain number"

_CODE = re.compile(
  r"""
  ``[^`]*`` | `[^`']*['`]                     # marked as code
  | "[^"\n]{1,40}" | (?<!\w)'[^'\n]{1,40}'(?!\w)  # quoted
  | <[^<>\s]{1,40}> | https?://\S+            # tags and addresses
  | \w*[./\\]?\w*\([^()\s]*\)                 # calls
  | \w+(?:[./=:|\\@]\w+)+                     # dotted names, paths, a=b
  | (?<![\w.])(?:\.|--?)\w[\w-]* | [%$@]\w*  # suffixes, flags, formats
  | \w*_\w*                                   # names with _
  | \b[A-Z]+[a-z0-9]+[A-Z]\w* | \b[a-z]+[A-Z]\w*  # CamelCase
  | \b[A-Z][A-Z0-9]+(?:[a-z]\d*|-\w+)?\b      # capitals
  | [*&^~{}\[\]|=+<>#]+                       # marks
  """,
  re.VERBOSE,
)
_NUMBER = re.compile(r"(?<![\w-])[-+]?\d[\w.,]*\b")
_WORD = re.compile(r"[^\W\d_]\w*(?:['\u2019-]\w+)*")
_MARKS = r"[,;:]\s|\s(?:--|-)\s|\s\("
_CLAUSES = "that|which|if|when|unless|where|so|but"
_PHRASES = f"{_CLAUSES}|and|or|as|using|with|from|for|by|in|to|at|on"
_CLAUSE_END = re.compile(rf"{_MARKS}|\s(?=(?:{_CLAUSES})\s)")
_PHRASE_END = re.compile(rf"{_MARKS}|\s(?=(?:{_PHRASES})\s)")
_LEADING = re.compile(
  r"""^(?:
    \w[\w.]*\ (?:--?|:)\                                        # "name -- "
    | (?:this|these)\ (?:function|method|class|module|routine)s?\  # what the question says already
    | (?:internal|private|note)[:.]\ )""",
  re.IGNORECASE | re.VERBOSE,
)


def rewrite(
  sentence: str, table: str, *, own_name: str, rare_names: Collection[str]
) -> tuple[str, int] | None:
  """Returns (the clue, how many characters of `sentence` it was made of), or None.

  Args:
    sentence: as it stands in the document, line breaks and indentation included.
    table: which everyday words: a key of `everyday.TABLES`.
    own_name: the name of what it describes, never shown.
    rare_names: names in lower case that are no plain words; blanked where the sentence has them.
  """
  for end in _ends(sentence):
    clue = _obfuscate(sentence[:end], TABLES[table], own_name.lower(), rare_names)
    words = clue.split()
    if len(words) <= MAX_WORDS:
      enough = end == len(sentence) or len(words) >= MIN_CUT_WORDS
      return (clue, end) if enough and is_telling(clue) else None
  return None


def is_telling(clue: str) -> bool:
  """Whether a clue has at least MIN_WORDS words and not too many blanks."""
  words = clue.split()
  blanks = words.count(BLANK) + clue.count(NUMBER)
  solid = {word for word in words if len(word) > 3 and word != BLANK}
  return (
    len(words) >= MIN_WORDS
    and blanks <= MAX_BLANKS
    and 4 * blanks <= len(words)
    and len(solid) >= 3
  )


def _ends(sentence: str) -> list[int]:
  """Where a sentence may be cut: whole first, then at ever earlier clause ends."""
  clauses = [match.start() for match in _CLAUSE_END.finditer(sentence)]
  phrases = [match.start() for match in _PHRASE_END.finditer(sentence)]
  return [len(sentence), *reversed(clauses), *reversed(phrases)]


def _obfuscate(
  sentence: str, words: dict[str, str], own_name: str, rare_names: Collection[str]
) -> str:
  text = " ".join(sentence.split())
  text = _LEADING.sub("", text)
  text = re.sub(r"\s*\([^()]*\)", "", text)
  text = _CODE.sub(f" {BLANK} ", text)
  text = _WORD.sub(lambda match: _plain(match, words, own_name, rare_names), text)
  text = _NUMBER.sub(f" {NUMBER} ", text)
  text = re.sub(r"[^\w\s,;:'-]", " ", text)
  text = re.sub(r"\s+([,;:])", r"\1", " ".join(text.split())).strip(" ,;:-'")
  text = re.sub(
    rf"(?:\b(?:a|an|the) )?{BLANK}(?:'s)?(?:,? (?:and |or |of )?(?:(?:a|an|the) )?{BLANK})+",
    BLANK,
    text,
  )
  text = re.sub(rf"\b(?:a|an|the) ({BLANK}|{NUMBER})\b", r"\1", text)
  text = re.sub(r"\b(a|an) (?=(\w))", lambda match: _article(match[2]), text)
  return text


def _article(letter: str) -> str:
  return "an " if letter in "aeio" else "a "


def _plain(
  match: re.Match[str], words: dict[str, str], own_name: str, rare_names: Collection[str]
) -> str:
  """An everyday word for one of a manual; a blank for a name; else the word itself."""
  word = match[0].lower()
  plain = words.get(word, word)
  if own_name in (plain, *re.split(r"[\s'-]", plain)):
    return BLANK
  is_proper_noun = match.start() > 0 and match[0][0].isupper() and word != "i"
  if word not in words and (word in rare_names or is_proper_noun):
    return BLANK
  return plain
