"""Positions of document and chunk ids in a token sequence, for tokenizers that keep them whole.

`scripts/train_tokenizer.py` makes the numbers 0 to 999, "_0" to "_999" and the strings before an id
single tokens. In sequences of other tokenizers nothing is found.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxrl_agents.chat.chat import Chat

DOCUMENT_MARKS = (
  "\n# DOCUMENT ID: ",
  "<Document id=",
  '{"chunk_ids": ["',
  '{"doc_id": "',
  '", "',
)
"""Fixed strings before the number of a document."""


@dataclasses.dataclass(frozen=True)
class DocumentNumbers:
  """The tokens that ids consist of.

  Attributes:
    mark_ids: ids before the number of a document, int32 [n].
    number_ids: ids of the numbers 0 to 999, one token each, ascending int32 [1000].
    chunk_ids: ids of "_0" to "_999", which end the id of a chunk; ascending int32 [n].
  """

  mark_ids: np.ndarray
  number_ids: np.ndarray
  chunk_ids: np.ndarray

  def document_places(self, tokens: np.ndarray) -> np.ndarray:
    """Indices of the tokens that are the number of a document, int64 [n]; `tokens` int32 [T]."""
    marked = np.isin(tokens[:-1], self.mark_ids) & np.isin(tokens[1:], self.number_ids)
    return 1 + np.flatnonzero(marked)

  def chunk_places(self, tokens: np.ndarray) -> np.ndarray:
    """Indices of the tokens after those, which are the number of a chunk in its document, int64
    [n].
    """
    after = self.document_places(tokens[:-1]) + 1  # nothing follows the last token
    return after[np.isin(tokens[after], self.chunk_ids)]


def of(chat: Chat) -> DocumentNumbers:
  """The document numbers of a chat's tokenizer."""
  known = lambda texts: [i for i in map(chat.id_of, texts) if i is not None]
  return DocumentNumbers(
    mark_ids=np.array(known(DOCUMENT_MARKS), np.int32),
    number_ids=np.array(sorted(known(str(n) for n in range(1000))), np.int32),
    chunk_ids=np.array(sorted(known(f"_{n}" for n in range(1000))), np.int32),
  )
