"""Encodes a corpus with MiniLM, in numpy on a CPU and in jax on an accelerator; caches the vectors.

The only file of this room that imports jax: `index.build` imports it if MiniLM is asked for, and
workers that only search never do. Alphabet: B texts, T word pieces, D width, N heads, H head width.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.corpus import frozen_sets
from jaxrl_agents.corpus.index import host_encoder, minilm

_VECTORS = "vectors.npy"
_BATCH_PIECES = 8_192
_LENGTH_STEP = 32  # few shapes need few compilations
_PAD = 0  # the word piece [PAD]


def cached_vectors(texts: Sequence[str], cache_dir: str | os.PathLike[str]) -> np.ndarray:
  """Returns `vectors(texts)`, from a folder in cache_dir if these texts were encoded before.

  Raises:
    ValueError: the folder is damaged.
  """
  digest = hashlib.sha256(minilm.WEIGHTS_SHA256.encode())
  for text in texts:
    digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
  folder = pathlib.Path(cache_dir) / f"minilm-{digest.hexdigest()[:32]}"
  if folder.exists():
    maker = f"the same command once {folder} is removed"
    manifest = frozen_sets.read_manifest(folder, maker=maker)
    return np.load(io.BytesIO(frozen_sets.read(folder, _VECTORS, manifest, maker=maker)))
  encoded, content = vectors(texts), io.BytesIO()
  np.save(content, encoded)
  frozen_sets.write(folder, {_VECTORS: content.getvalue()}, {"weights": minilm.WEIGHTS_SHA256})
  return encoded


def vectors(texts: Sequence[str]) -> np.ndarray:
  """Returns unit vectors, float32 [number of texts, 384]; a text is cut at 256 word pieces."""
  encoder = minilm.load()
  rows = minilm.pieces(encoder, texts)
  encode = on_cpu if jax.default_backend() == "cpu" else on_device
  return encode(encoder.weights, rows)


def on_cpu(weights: Mapping[str, Any], rows: Sequence[Sequence[int]]) -> np.ndarray:
  """Unit vectors of word pieces, float32 [B, D], by numpy in one thread for each core.

  Each thread encodes batches of its own. Threads within a product (of OpenBLAS) would wait for one
  another, and for all that is not a product.
  """
  import threadpoolctl

  encoder = host_encoder.laid_out(weights)
  encoded = np.empty((len(rows), encoder.words.shape[1]), np.float32)

  def fill(batch: list[int]) -> None:
    encoded[batch] = host_encoder.vectors(encoder, [rows[i] for i in batch])

  cores = len(os.sched_getaffinity(0))
  with (
    threadpoolctl.threadpool_limits(1, "blas"),
    concurrent.futures.ThreadPoolExecutor(cores) as pool,
  ):
    list(pool.map(fill, host_encoder.batches(rows)))
  return encoded


def on_device(weights: Mapping[str, Any], rows: Sequence[Sequence[int]]) -> np.ndarray:
  """Unit vectors of word pieces, float32 [B, D], by jax on its default device."""
  placed = jax.tree.map(jnp.asarray, dict(weights))
  by_length = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
  encoded = np.empty((len(rows), weights["embeddings.LayerNorm.bias"].size), np.float32)
  at = 0
  while at < len(by_length):
    length = -(-len(rows[by_length[at]]) // _LENGTH_STEP) * _LENGTH_STEP
    left = len(by_length) - at
    num_rows = min(_BATCH_PIECES // length, 1 << (left - 1).bit_length())
    batch = by_length[at : at + num_rows]
    ids, mask = padded([rows[i] for i in batch], num_rows, length)
    encoded[batch] = np.asarray(_forward(placed, ids, mask))[: len(batch)]
    at += num_rows
  return encoded


def padded(rows: Sequence[Sequence[int]], num_rows: int, length: int) -> tuple[np.ndarray, ...]:
  """Returns ids int32 and mask float32, [num_rows, length]; a missing row is one unmasked pad."""
  ids, mask = np.full((num_rows, length), _PAD, np.int32), np.zeros((num_rows, length), np.float32)
  mask[:, 0] = 1
  for i, row in enumerate(rows):
    ids[i, : len(row)] = row
    mask[i, : len(row)] = 1
  return ids, mask


@jax.jit
def _forward(weights: dict[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
  """Unit vectors float32 [B, D] of ids int32 [B, T], where mask float32 [B, T] is 1."""

  def norm(x: jax.Array, name: str) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    scaled = (x - mean) / jnp.sqrt(variance + host_encoder.EPSILON)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

  def linear(x: jax.Array, name: str) -> jax.Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

  def heads(x: jax.Array) -> jax.Array:
    return x.reshape(*ids.shape, host_encoder.HEADS, -1)

  x = weights["embeddings.word_embeddings.weight"][ids]
  x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
  x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
  hidden_keys = (1 - mask)[:, None, None, :] * np.float32(-1e9)
  num_layers = sum(name.endswith("intermediate.dense.bias") for name in weights)
  for layer in (f"encoder.layer.{i}" for i in range(num_layers)):
    q, k, v = (heads(linear(x, f"{layer}.attention.self.{n}")) for n in ("query", "key", "value"))
    logits = jnp.einsum("BTNH,BSNH->BNTS", q, k) / np.float32(np.sqrt(q.shape[-1])) + hidden_keys
    mixed = jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(logits), v)
    attended = linear(mixed.reshape(x.shape), f"{layer}.attention.output.dense")
    x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
    widened = jax.nn.gelu(linear(x, f"{layer}.intermediate.dense"), approximate=False)
    x = norm(x + linear(widened, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
  mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
  return mean / jnp.sqrt((mean**2).sum(-1, keepdims=True))
