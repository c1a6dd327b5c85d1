"""From text to the stems that BM25 and latent semantic analysis count.

Lower-cased words of two or more characters, without Lucene's English stop words, cut to Porter
stems (https://tartarus.org/martin/PorterStemmer). An identifier such as `parse_query` also counts
as its parts, so that plain words find code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import numpy as np
import scipy.sparse
import Stemmer

_WORDS = re.compile(r"\w\w+")
_STOP_WORDS = frozenset({
  "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
  "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they",
  "this", "to", "was", "will", "with",
})  # fmt: skip


def stems(text: str) -> list[str]:
  """Returns the stems of a text in order, repeats kept."""
  return [stem for word in _WORDS.findall(text) for stem in _stems_of_word(word)]


def count(texts: Iterable[str]) -> tuple[dict[str, int], scipy.sparse.csr_array]:
  """Returns stem -> column, and how often each text (row) has each stem, float32 [N, V]."""
  vocabulary: dict[str, int] = {}
  columns_of_word: dict[str, list[int]] = {}
  columns: list[int] = []
  ends = [0]
  for text in texts:
    for word in _WORDS.findall(text):
      known = columns_of_word.get(word)
      if known is None:
        known = [vocabulary.setdefault(stem, len(vocabulary)) for stem in _stems_of_word(word)]
        columns_of_word[word] = known
      columns += known
    ends.append(len(columns))
  shape = (len(ends) - 1, len(vocabulary))
  counts = scipy.sparse.csr_array((np.ones(len(columns), np.float32), columns, ends), shape=shape)
  counts.sum_duplicates()
  return vocabulary, counts


@functools.lru_cache(maxsize=65_536)
def _stems_of_word(word: str) -> tuple[str, ...]:
  parts = [word]
  if "_" in word:
    parts += [part for part in word.split("_") if 1 < len(part) < len(word.strip("_"))]
  lowered = [part.lower() for part in parts]
  stemmer = Stemmer.Stemmer("porter")  # its own each time: a stemmer is not for several threads
  return tuple(stemmer.stemWords([part for part in lowered if part not in _STOP_WORDS]))
