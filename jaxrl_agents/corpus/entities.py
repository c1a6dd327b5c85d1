"""Statements of a corpus: entities that a sentence describes, and relations that a line proves.

Every statement is a span of a document, so that it can be quoted word for word. Statements are
extracted by rules: from the syntax tree of Python source (`python_facts`), and from titles and rare
terms of other text (`text_facts`).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping

from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.documents import Document


@dataclasses.dataclass(frozen=True)
class Span:
  """Characters start .. end (exclusive) of the text of document `doc_id`."""

  doc_id: str
  start: int
  end: int


@dataclasses.dataclass(frozen=True)
class Entity:
  """Something that a question can ask for.

  Attributes:
    key: unique in the domain, as "urllib.parse:unquote".
    name: the answer to a question for it, as "unquote".
    kind: "routine", "method", "class", "exception", "module" or "text".
    group: decides its split: the module, or the document.
    summary: the sentence that describes it; None if there is none.
    truth: the line that names it; None if it cannot be an answer.
  """

  key: str
  name: str
  kind: str
  group: str
  summary: Span | None
  truth: Span | None


@dataclasses.dataclass(frozen=True)
class Relation:
  """`source` has the relation `kind`, a key of PHRASES, to `target`; `evidence` states it."""

  kind: str
  source: str
  target: str
  evidence: Span


@dataclasses.dataclass(frozen=True)
class Domain:
  """The statements of a corpus. Relations name keys of `entities`."""

  entities: Mapping[str, Entity]
  relations: tuple[Relation, ...]


PHRASES = {
  "calls": ("using {}", "used by {}"),
  "makes": ("making {}", "made by {}"),
  "raises": ("raising {}", "raised by {}"),
  "catches": ("catching {}", "caught by {}"),
  "extends": ("built on {}", "extended by {}"),
  "holds": ("holding {}", "kept in {}"),
  "shares_input": ("sharing an input name with {}", "sharing an input name with {}"),
  "shares_constant": ("reading a constant of {}", "reading a constant of {}"),
  "mentions": ("mentioning {}", "mentioned by {}"),
  "shares_term": ("sharing a rare term with {}", "sharing a rare term with {}"),
}
"""{kind: (wording of a clue about the source, about the target)}."""

SYMMETRIC = frozenset({"shares_input", "shares_constant", "shares_term"})


class ChunkMap:
  """Finds the chunk that holds a span. Invariant: a chunk is the part of the text that begins at
  its start.
  """

  def __init__(self, documents: Iterable[Document], chunks: Iterable[Chunk]):
    """Raises ValueError for a chunk that is not a passage of its document."""
    self.texts = {document.id: document.text for document in documents}
    self.chunk_texts: dict[str, str] = {}
    self._chunks: dict[str, list[Chunk]] = {}
    for chunk in chunks:
      if not self.texts.get(chunk.doc_id, "").startswith(chunk.text, chunk.start):
        raise ValueError(
          f"chunk {chunk.id} is not a passage of document {chunk.doc_id}; cut the chunks anew from "
          "these documents"
        )
      self.chunk_texts[chunk.id] = chunk.text
      self._chunks.setdefault(chunk.doc_id, []).append(chunk)
    self._starts = {key: [chunk.start for chunk in value] for key, value in self._chunks.items()}

  def quote(self, span: Span) -> str:
    """The text of a span."""
    return self.texts[span.doc_id][span.start : span.end]

  def find(self, span: Span | None) -> Chunk | None:
    """The chunk that holds the whole span; None if the span crosses a boundary."""
    if span is None or span.doc_id not in self._starts:
      return None
    index = bisect.bisect_right(self._starts[span.doc_id], span.start) - 1
    if index < 0:
      return None
    chunk = self._chunks[span.doc_id][index]
    return chunk if span.end <= chunk.start + len(chunk.text) else None
