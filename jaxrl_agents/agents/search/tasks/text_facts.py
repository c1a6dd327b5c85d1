"""Facts of any folder of documents, by rule from plain text.

Every document is an entity. It is described by its most distinctive sentence, and named by its
title where the text repeats it, else by a name (a run of capitalised words) that no other document
has. Relations: a document mentions another's title or name, or two share a rare term. How much that
yields depends on the texts: `scripts/make_search_tasks.py` prints it. The ties say less than those
of source code: that two texts share a rare word may be chance.
"""

from __future__ import annotations

import collections
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.entities import Domain, Entity, Relation, Span

MAX_SHARERS = 3
"""A term in more documents than this ties nothing together."""

MAX_MENTIONS = 6
"""A name that more documents than this hold is no name, but an expression."""

MIN_TERM = 6
"""Characters of the shortest word that counts as a rare term."""

SENTENCE_WORDS = (8, 45)
"""Fewest and most words of a sentence that may describe a document."""

_SENTENCE = re.compile(
  r"[A-Z\"'(][^.!?\n]*(?:\n(?!\s*\n)[^.!?\n]*|\.(?=\w)[^.!?\n]*)*(?P<end>[.!?](?=\s|$))?"
)
"""Without `end` it is no sentence. It is matched all the same, so that a block without an end is
read once and not from each of its capitals.
"""
_TERM = re.compile(rf"[a-z]{{{MIN_TERM},}}")
_NAME = re.compile(
  r"(?<![.!?:] )(?<!^)\b[A-Z][\w'-]+(?:\s(?:of|the|de|and|von|for)?\s?[A-Z][\w'-]+){1,3}"
)
_NUMBERED = re.compile(r"[\w.-]*\d[\w.-]*|\W*")


def read(documents: Iterable[Document]) -> Domain:
  """Reads the facts of documents of plain text."""
  documents = list(documents)
  frequency: collections.Counter[str] = collections.Counter()
  for document in documents:
    frequency.update(set(_TERM.findall(document.text.lower())))
  truths = _truths(documents)
  entities = {}
  for document in documents:
    truth = truths.get(document.id)
    name = "" if truth is None else " ".join(document.text[truth.start : truth.end].split())
    key = str(document.metadata["source"])
    summary = _summary(document, name, frequency, len(documents))
    entities[key] = Entity(key, name or key, "text", key, summary, truth)
  keys = {document.id: str(document.metadata["source"]) for document in documents}
  names = {keys[doc_id]: entities[keys[doc_id]].name for doc_id in truths}
  mentions = _mentions(documents, keys, names)
  shared = _shared_terms(documents, keys, frequency)
  return Domain(entities, (*mentions, *shared))


def title_of(document: Document) -> str:
  """The title of a document without the path and ending of a file name."""
  title = document.title
  if document.title == document.metadata["source"]:
    title = re.sub(r"[_-]+", " ", pathlib.PurePosixPath(title).name.partition(".")[0])
  return " ".join(title.split())


def _truths(documents: Sequence[Document]) -> dict[str, Span]:
  """Document id -> where the text names it: its title, or else a name no other document has."""
  owners: dict[str, set[str]] = collections.defaultdict(set)
  found: dict[str, list[re.Match[str]]] = {}
  for document in documents:
    found[document.id] = list(_NAME.finditer(document.text))
    for match in found[document.id]:
      owners[" ".join(match[0].split())].add(document.id)
  truths = {}
  for document in documents:
    title = title_of(document)
    named: re.Match[str] | None = None
    if len(title) >= 4 and not _NUMBERED.fullmatch(title):
      pattern = r"\s+".join(map(re.escape, title.split()))
      named = re.search(rf"(?<!\w){pattern}(?!\w)", document.text, re.IGNORECASE)
    if named is None:
      alone = (m for m in found[document.id] if len(owners[" ".join(m[0].split())]) == 1)
      named = next(alone, None)
    if named is not None:
      truths[document.id] = Span(document.id, named.start(), named.end())
  return truths


def _summary(
  document: Document, name: str, frequency: Mapping[str, int], count: int
) -> Span | None:
  """The sentence with the rarest words on average; a word of one document counts as of two."""
  best, chosen = 0.0, None
  for match in _SENTENCE.finditer(document.text):
    words = match[0].split()
    if not match["end"] or not SENTENCE_WORDS[0] <= len(words) <= SENTENCE_WORDS[1]:
      continue
    if name and re.search(re.escape(name), " ".join(words), re.IGNORECASE):
      continue
    terms = set(_TERM.findall(match[0].lower()))
    score = sum(math.log(count / max(2, frequency[term])) for term in terms) / len(words)
    if len(terms) >= 3 and score > best:
      best, chosen = score, Span(document.id, match.start(), match.end())
  return chosen


def _mentions(
  documents: Sequence[Document], keys: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[Relation]:
  """Ties a document to each whose name it holds; names are looked up by their rarest word."""
  words_of = {document.id: set(re.findall(r"\w+", document.text.lower())) for document in documents}
  frequency = collections.Counter(word for words in words_of.values() for word in words)
  by_word: dict[str, list[tuple[re.Pattern[str], set[str], str]]] = collections.defaultdict(list)
  for key, name in names.items():
    words = set(re.findall(r"\w+", name.lower()))
    if words:
      spaced = r"\s+".join(map(re.escape, name.split()))
      pattern = re.compile(rf"(?<!\w){spaced}(?!\w)", re.IGNORECASE)
      by_word[min(sorted(words), key=frequency.__getitem__)].append((pattern, words, key))
  found: dict[str, list[Relation]] = collections.defaultdict(list)
  for document in documents:
    source, present = keys[document.id], words_of[document.id]
    for word in sorted(present & by_word.keys()):
      for pattern, words, target in by_word[word]:
        if target == source or not words <= present:
          continue
        match = pattern.search(document.text)
        if match is not None:
          found[target].append(Relation("mentions", source, target, _around(document, match)))
  for relations in found.values():
    if len(relations) <= MAX_MENTIONS:
      yield from relations


def _shared_terms(
  documents: Sequence[Document], keys: Mapping[str, str], frequency: Mapping[str, int]
) -> Iterator[Relation]:
  """Ties documents that share a term which hardly any other document has."""
  users: dict[str, list[tuple[Document, re.Match[str]]]] = collections.defaultdict(list)
  for document in documents:
    lowered = document.text.lower()
    for match in _TERM.finditer(lowered) if len(lowered) == len(document.text) else ():
      if 2 <= frequency[match[0]] <= MAX_SHARERS:
        known = users[match[0]]
        if not known or known[-1][0] is not document:
          known.append((document, match))
  for term in sorted(users):
    for index, (document, match) in enumerate(users[term]):
      for other, _ in users[term][index + 1 :]:
        evidence = _around(document, match)
        yield Relation("shares_term", keys[document.id], keys[other.id], evidence)


def _around(document: Document, match: re.Match[str]) -> Span:
  """The words of the line, at most some forty characters to each side, that hold a match."""
  text = document.text
  start = max(text.rfind("\n", 0, match.start()) + 1, match.start() - 40)
  stop = text.find("\n", match.end())
  end = min(len(text) if stop < 0 else stop, match.end() + 40)
  while start < match.start() and start and not text[start - 1].isspace():
    start += 1
  while end > match.end() and end < len(text) and not text[end].isspace():
    end -= 1
  start += len(text[start:end]) - len(text[start:end].lstrip())
  return Span(document.id, start, start + len(text[start:end].strip()))
