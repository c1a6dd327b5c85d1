"""Cuts documents into chunks without losing a character.

Python source is cut at its definitions (`definitions`), other text is halved at the best boundary
near its middle as often as needed (`halving`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from jaxrl_agents.corpus import python_definitions
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.halving import CountTokens, Cutter

_WORDS_AND_MARKS = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class Chunk:
  """A piece of a document.

  Attributes:
    id: "{doc_id}_{i}", i counting the chunks of the document from 0.
    doc_id: the document's id.
    title: the document's title; searched with the text, no part of it.
    text: a verbatim piece; the texts of a document's chunks in order make up its text.
    start: offset in characters of the piece in the document's text.
  """

  id: str
  doc_id: str
  title: str
  text: str
  start: int


def count_words_and_marks(text: str) -> int:
  """Returns the number of words and punctuation marks: a token count that needs no tokenizer."""
  return len(_WORDS_AND_MARKS.findall(text))


def cut(
  documents: Iterable[Document],
  count_tokens: CountTokens = count_words_and_marks,
  *,
  max_tokens: int = 612,
  max_bytes: int = 16_384,
) -> list[Chunk]:
  """Returns the chunks of all documents, in order; a blank document has none.

  A chunk has at most `max_tokens` tokens and `max_bytes` bytes (UTF-8), unless it is one character.
  """
  if max_tokens < 1 or max_bytes < 1:
    raise ValueError(f"max_tokens={max_tokens}, max_bytes={max_bytes}; both must be at least 1")
  cutter = Cutter(count_tokens, max_tokens, max_bytes)
  chunks = []
  for document in documents:
    start = 0
    for i, text in enumerate(_pieces(cutter, document)):
      chunks.append(Chunk(f"{document.id}_{i}", document.id, document.title, text, start))
      start += len(text)
  return chunks


def _pieces(cutter: Cutter, document: Document) -> list[str]:
  text = document.text
  if not text.strip():
    return []
  tree = python_definitions.parse(text) if document.metadata.get("kind") == "python" else None
  atoms = cutter.atoms(text, code=tree is not None)
  if tree is None:
    spans = cutter.halves(atoms, 0, len(atoms.texts))
  else:
    spans = python_definitions.spans(cutter, atoms, tree)
  return [piece for start, end in spans for piece in cutter.checked(atoms, start, end)]
