"""Other words and made-up names for the texts of a drill, the same ones in all of them.

A small policy that sees the same few thousand clues again and again learns by heart which passage
belongs to which clue, and never to compare the two. In a reworded drill the words of a clue are
replaced by words of other clues, in the clue and in the hits alike, so that only what the texts
have in common says which hit is right. Names are replaced so that they cannot be memorised either.
"""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Iterable, Sequence

from jaxrl_agents.agents.search.tasks import code_names

MIN_WORD = 4
"""Letters of the shortest word that is replaced; shorter ones say little about a passage."""

_SYLLABLES = tuple(
  c + v + end for c in "bdfghjklmnprstvwz" for v in "aeiou" for end in ("", "n", "r")
)
_NEVER = {*map(str.lower, keyword.kwlist), "self", "print"}


class Rewording:
  """Replaces words and names of texts. Invariant: each of them by the same one in every text."""

  def __init__(
    self,
    clues: Iterable[str],
    words: Sequence[str],
    *,
    share: float,
    renames: bool,
    draw: random.Random,
  ):
    """Draws the replacements.

    Args:
      clues: texts of clues, whose words are replaced.
      words: what is drawn instead.
      share: how often a word is replaced.
      renames: whether names that a text defines are replaced by made-up ones.
      draw: all that is random.
    """
    self._words, self._draw, self._renames = words, draw, renames
    old = plain_words(clues)
    self._new = {word: draw.choice(words) for word in old if draw.random() < share}
    self._names: dict[str, str] = {}

  def name(self, name: str) -> str:
    """The made-up name for a name, or the name itself where none are made up."""
    if self._renames and name not in self._names:
      self._names[name] = made_up(name, self._words, self._draw)
    return self._names.get(name, name)

  def __call__(self, text: str) -> str:
    """The text with the replacements of words, of known names, and of names that it defines."""
    for name in code_names.defined(text):
      self.name(name)
    return re.sub(r"\w+", lambda match: self._of(match[0]), text)

  def _of(self, word: str) -> str:
    if word in self._names:
      return self._names[word]
    new = self._new.get(word.lower(), word)
    return new.capitalize() if word[0].isupper() and word[1:].islower() else new


def plain_words(texts: Iterable[str]) -> list[str]:
  """The distinct words of texts, in small letters and sorted, that a rewording may replace."""
  found = {word for text in texts for word in re.findall(r"\w+", text.lower())}
  return sorted(w for w in found if len(w) >= MIN_WORD and w.isalpha() and w not in _NEVER)


def with_clues(question: str, old: Iterable[str], new: Iterable[str]) -> str:
  """A question whose clues, in their order, have new texts."""
  before, rest = "", question
  for text, other in zip(old, new, strict=True):
    head, _, rest = rest.partition(text)
    before += head + other
  return before + rest


def made_up(name: str, words: Sequence[str], draw: random.Random) -> str:
  """A name of random words or syllables, in the form of `name`."""
  parts = min(3, len(re.findall("[A-Z]?[a-z0-9]+|[A-Z]+", name))) or 1
  syllables = lambda: "".join(draw.choices(_SYLLABLES, k=draw.randint(2, 3)))
  made = [draw.choice(words) if draw.random() < 0.5 else syllables() for _ in range(parts)]
  if name.isupper():
    return "_".join(made).upper()
  if name[0].isupper():
    return "".join(part.capitalize() for part in made)
  if "_" in name:
    return name[: len(name) - len(name.lstrip("_"))] + "_".join(made)
  return made[0] + "".join(part.capitalize() for part in made[1:])
