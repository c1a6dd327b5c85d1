"""A tokenizer in which text can never become a control token."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers

CACHED_TEXTS = 1_024  # a conversation is rendered again each turn; its texts are encoded once

Part = int | str | np.ndarray
"""A control token by its id, plain text, or ids as they were sampled."""


class Vocabulary:
  """Converts between text and ids. Invariant: `encode` never yields the id of a control token."""

  def __init__(self, tokenizer: tokenizers.Tokenizer):
    tokenizer.encode_special_tokens = True
    self._tokenizer = tokenizer
    self.size = tokenizer.get_vocab_size()
    self._encoded = functools.lru_cache(CACHED_TEXTS)(self._encode)

  def id_of(self, token: str) -> int | None:
    """The id of a token, None if there is none."""
    return self._tokenizer.token_to_id(token)

  def ids_by_name(self, names: Iterable[str]) -> dict[str, int]:
    """The ids of those of `names` that are tokens."""
    found = {name: self._tokenizer.token_to_id(name) for name in names}
    return {name: i for name, i in found.items() if i is not None}

  def encode(self, text: str) -> np.ndarray:
    """Ids of plain text, int32 [T]; control tokens and unpaired surrogates in it are encoded as
    text.
    """
    return self._encoded(text).copy()

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text of ids, with control tokens spelled out; ids beyond the vocabulary are skipped."""
    return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

  def ids(self, parts: Iterable[Part]) -> np.ndarray:
    """The ids of a prompt, int32 [P]. Consecutive texts are encoded as one text, as the model's own
    template does; ids stay as they are.
    """
    pieces: list[np.ndarray] = []
    text = ""
    for part in parts:
      if isinstance(part, str):
        text += part
        continue
      if text:
        pieces.append(self._encoded(text))
        text = ""
      pieces.append(_alone(part) if isinstance(part, int) else np.asarray(part, np.int32))
    pieces.append(self._encoded(text))
    return np.concatenate(pieces)

  def _encode(self, text: str) -> np.ndarray:
    whole = text.encode("utf-8", "replace").decode(
      "utf-8"
    )  # JSON can contain an unpaired surrogate
    return np.asarray(self._tokenizer.encode(whole, add_special_tokens=False).ids, np.int32)


@functools.cache
def _alone(token: int) -> np.ndarray:
  """The ids of one control token, int32 [1]."""
  return np.asarray([token], np.int32)


def with_control_tokens(text: str) -> str:
  """The content of tokenizer.json with every added token marked as a control token.

  Published files mark `<tool_call>`, `<think>` and others as ordinary, so that a document that
  spells them would be read as the model's own markup.
  """
  record = json.loads(text)
  for token in record["added_tokens"]:
    token["special"] = True
  return json.dumps(record)
