"""Splits text in half at the best boundary near its middle, until every piece is within the limits.

Context-1 halves while a piece has over 512 + 100 tokens or 16,384 bytes
(https://github.com/chroma-core/context-1-data-gen, core/indexing.py). Here the text is first
divided into atoms (sentences or lines, each within the limits). Their tokens are counted once, and
all decisions use sums over atoms. A finished piece is counted again as a whole, and halved if it is
still too large.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

CountTokens = Callable[[str], int]

_SENTENCES = re.compile(r"[^\n]*?(?:[.!?][\"')\]]*[ \t]+(?=\S)|\n(?:[ \t\f]*\n)*|$)")
_LINES = re.compile(r"[^\n]*\n|[^\n]+$")
_SENTENCE_END = re.compile(r"[.!?:][\"')\]]*\s*$")
_SPACE_BEFORE_WORD = re.compile(r"\s(?=\S)")
_WORST = 99


@dataclasses.dataclass(frozen=True)
class Atoms:
  """The atoms of a text. `tokens` and `sizes` are prefix sums with a leading 0; sizes in bytes.

  `badness[i]` rates a cut before atom i: 0 between paragraphs, `_WORST` inside a word.
  """

  texts: list[str]
  tokens: list[int]
  sizes: list[int]
  badness: list[int]

  def text(self, start: int, end: int) -> str:
    """The text of atoms start .. end (exclusive)."""
    return "".join(self.texts[start:end])


@dataclasses.dataclass(frozen=True)
class Cutter:
  """The limits of a piece, and how to keep a text within them.

  Attributes:
    count_tokens: text -> number of tokens.
    max_tokens: most tokens of a piece.
    max_bytes: most bytes of a piece, as UTF-8.
  """

  count_tokens: CountTokens
  max_tokens: int
  max_bytes: int

  def atoms(self, text: str, *, code: bool) -> Atoms:
    """Divides a text into lines of code, or into sentences and lines of prose."""
    pattern = _LINES if code else _SENTENCES
    texts: list[str] = []
    counts: list[int] = []
    badness: list[int] = []
    for raw in _joined_blank(pattern.findall(text)):
      bad = _code_badness(texts, raw) if code else _prose_badness(texts)
      count = self.count_tokens(raw)
      if (count > self.max_tokens or len(raw) * 4 > self.max_bytes) and not self.fits(raw):
        parts = self.broken(raw)
        texts += parts
        counts += map(self.count_tokens, parts)
        badness += [bad] + [8 if part[-1:].isspace() else _WORST for part in parts[:-1]]
        continue
      texts.append(raw)
      counts.append(count)
      badness.append(bad)
    sizes = [len(part) if part.isascii() else len(_bytes(part)) for part in texts]
    return Atoms(texts, _prefix_sums(counts), _prefix_sums(sizes), badness)

  def fits(self, text: str) -> bool:
    """Whether a text is within the limits."""
    return len(_bytes(text)) <= self.max_bytes and self.count_tokens(text) <= self.max_tokens

  def broken(self, text: str) -> list[str]:
    """Halves a run of words without sentence or line ends, between words if possible."""
    if len(text) == 1 or self.fits(text):
      return [text]
    middle = len(text) // 2
    after = _SPACE_BEFORE_WORD.search(text, middle)
    before = bool(text[:middle].strip()) and text.rfind(" ", 0, middle) + 1
    ends = [end for end in (before, after.end() if after else 0) if 0 < end < len(text)]
    at = min(ends, key=lambda end: abs(end - middle)) if ends else middle
    return self.broken(text[:at]) + self.broken(text[at:])

  def fits_span(self, atoms: Atoms, start: int, end: int) -> bool:
    """Whether atoms start .. end (exclusive) are within the limits by their sums."""
    return (
      atoms.tokens[end] - atoms.tokens[start] <= self.max_tokens
      and atoms.sizes[end] - atoms.sizes[start] <= self.max_bytes
    )

  def halves(self, atoms: Atoms, start: int, end: int) -> list[tuple[int, int]]:
    """Cuts a span of atoms in two as often as needed; spans (start, end) in order."""
    if end - start <= 1 or self.fits_span(atoms, start, end):
      return [(start, end)]
    middle = _best_boundary(atoms, start, end)
    return self.halves(atoms, start, middle) + self.halves(atoms, middle, end)

  def checked(self, atoms: Atoms, start: int, end: int) -> list[str]:
    """The text of a span; more than one if, counted whole, it has more tokens than its atoms."""
    text = atoms.text(start, end)
    if self.fits(text):
      return [text]
    if end - start == 1:
      return self.broken(text)
    middle = _best_boundary(atoms, start, end)
    return self.checked(atoms, start, middle) + self.checked(atoms, middle, end)


def _prefix_sums(numbers: Iterable[int]) -> list[int]:
  return list(itertools.accumulate(numbers, initial=0))


def _bytes(text: str) -> bytes:
  return text.encode("utf-8", "surrogatepass")


def _joined_blank(raws: Sequence[str]) -> list[str]:
  """Drops empty matches and joins blank beginnings to the atom that follows."""
  joined: list[str] = []
  blank = ""
  for raw in raws:
    if raw.strip() or joined:
      joined.append(blank + raw)
      blank = ""
    else:
      blank += raw
  return [raw for raw in joined if raw]


def _prose_badness(texts: Sequence[str]) -> int:
  """0 after a blank line, 1 after a line that ends a sentence, 2 after a sentence, 4 after a line,
  8 between words.
  """
  if not texts or texts[-1].count("\n") > 1:
    return 0
  ends_sentence = _SENTENCE_END.search(texts[-1][-80:]) is not None
  if texts[-1].endswith("\n"):
    return 1 if ends_sentence else 4
  return 2 if ends_sentence else 8


def _code_badness(texts: Sequence[str], line: str) -> int:
  """Twice the indentation, one more without a blank line before; 90 before a blank line."""
  if not line.strip():
    return 90
  depth = min(20, (len(line) - len(line.lstrip())) // 4)
  return 2 * depth + (1 if texts and texts[-1].strip() else 0)


def _best_boundary(atoms: Atoms, start: int, end: int) -> int:
  """The least bad boundary in the middle half of a span, else the one nearest to its middle."""
  low, high = atoms.tokens[start], atoms.tokens[end]
  if high == low:
    return (start + end) // 2
  middle, reach = (low + high) / 2, (high - low) / 4
  inner = range(start + 1, end)
  near = [i for i in inner if abs(atoms.tokens[i] - middle) <= reach]
  return min(
    near or inner, key=lambda i: (atoms.badness[i] if near else 0, abs(atoms.tokens[i] - middle), i)
  )
