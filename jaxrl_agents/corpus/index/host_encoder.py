"""The forward pass of a BERT sentence encoder on the host, in numpy.

Texts are not padded: the word pieces of a batch lie one after the other, and only attention knows
where a text ends. Alphabet: B texts, P word pieces of all texts, T word pieces of one text,
D width, F feed-forward width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

HEADS = 12
EPSILON = 1e-12
QUERY_COLUMNS = 64
"""Columns of a product at a time for a query. OpenBLAS copies the weights before a product of more
than 10^6 multiplications, which takes longer than the product where there are few rows.
"""
_BATCH_PIECES = 1024
_BLOCK_ROWS = 64  # of the widened activations: they and three more arrays fit a core's cache


@dataclasses.dataclass(frozen=True)
class Linear:
  """y = x W + b. W is cut into blocks of D rows (of the input) and C columns.

  Attributes:
    blocks: float32 [row blocks, column blocks, D, C].
    bias: float32 [number of columns].
  """

  blocks: np.ndarray
  bias: np.ndarray


@dataclasses.dataclass(frozen=True)
class Layer:
  """One layer; `qkv` gives queries (divided by sqrt(H)), keys and values side by side.

  A norm is its scale and its bias, float32 [D].
  """

  qkv: Linear
  attended: Linear
  attended_norm: tuple[np.ndarray, np.ndarray]
  widened: Linear
  narrowed: Linear
  narrowed_norm: tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class HostEncoder:
  """Weights as the products read them: `words` [V, D] and `positions` [max T, D], float32."""

  words: np.ndarray
  positions: np.ndarray
  norm: tuple[np.ndarray, np.ndarray]
  layers: tuple[Layer, ...]


def laid_out(weights: Mapping[str, Any], columns: int = 0) -> HostEncoder:
  """Returns an encoder of weights by BERT name; `columns` of a product at a time (0: all)."""

  def linear(*names: str, scale: float = 1.0) -> Linear:
    scales = [np.float32(scale), *[np.float32(1)] * (len(names) - 1)]  # of the first name
    pairs = list(zip(names, scales, strict=True))
    matrix = np.concatenate([weights[f"{name}.weight"].T * s for name, s in pairs], axis=1)
    bias = np.concatenate([weights[f"{name}.bias"] * s for name, s in pairs])
    rows, width = matrix.shape
    at_once = columns if columns and width % columns == 0 else width
    cut = matrix.reshape(rows // depth, depth, width // at_once, at_once).swapaxes(1, 2)
    return Linear(np.ascontiguousarray(cut), bias)

  def norm(name: str) -> tuple[np.ndarray, np.ndarray]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]

  def layer(name: str) -> Layer:
    projections = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
    return Layer(
      qkv=linear(*projections, scale=(depth // HEADS) ** -0.5),
      attended=linear(f"{name}.attention.output.dense"),
      attended_norm=norm(f"{name}.attention.output.LayerNorm"),
      widened=linear(f"{name}.intermediate.dense"),
      narrowed=linear(f"{name}.output.dense"),
      narrowed_norm=norm(f"{name}.output.LayerNorm"),
    )

  words = weights["embeddings.word_embeddings.weight"]
  depth = words.shape[1]
  num_layers = sum(name.endswith("intermediate.dense.bias") for name in weights)
  types = weights["embeddings.token_type_embeddings.weight"]
  return HostEncoder(
    words=words,
    positions=weights["embeddings.position_embeddings.weight"] + types[0],
    norm=norm("embeddings.LayerNorm"),
    layers=tuple(layer(f"encoder.layer.{i}") for i in range(num_layers)),
  )


def vectors(encoder: HostEncoder, rows: Sequence[Sequence[int]]) -> np.ndarray:
  """Returns unit vectors of texts given as word pieces, float32 [B, D]: the mean of the last layer.

  Texts of about the same length are encoded together.
  """
  encoded = np.empty((len(rows), encoder.words.shape[1]), np.float32)
  for batch in batches(rows):
    encoded[batch] = _forward(encoder, [rows[i] for i in batch])
  return encoded


def batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
  """Yields the places of rows by rising length, those of at most 1024 word pieces together."""
  batch: list[int] = []
  pieces = 0
  for i in sorted(range(len(rows)), key=lambda i: len(rows[i])):
    if batch and pieces + len(rows[i]) > _BATCH_PIECES:
      yield batch
      batch, pieces = [], 0
    batch.append(i)
    pieces += len(rows[i])
  if batch:
    yield batch


def _forward(encoder: HostEncoder, rows: Sequence[Sequence[int]]) -> np.ndarray:
  """Unit vectors of texts, fastest where those of equal length are together; float32 [B, D]."""
  lengths = np.asarray([len(row) for row in rows])
  ends = np.concatenate([[0], np.cumsum(lengths)])
  x = encoder.words[np.concatenate(rows)]
  x += encoder.positions[np.concatenate([np.arange(length) for length in lengths])]
  _normalise(x, encoder.norm)
  cuts = np.concatenate([[0], np.flatnonzero(np.diff(lengths)) + 1, [len(rows)]])
  spans = [(slice(ends[a], ends[b]), b - a) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
  for layer in encoder.layers:
    qkv, mixed = _product(x, layer.qkv), np.empty_like(x)
    for span, count in spans:
      _attend(qkv[span], mixed[span], count)
    y = _product(mixed, layer.attended)
    y += x
    _normalise(y, layer.attended_norm)
    widened = _product(y, layer.widened)
    gelu(widened)
    x = _product(widened, layer.narrowed)
    x += y
    _normalise(x, layer.narrowed_norm)
  mean = np.add.reduceat(x, ends[:-1], axis=0) / lengths[:, None].astype(np.float32)
  return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def _product(x: np.ndarray, linear: Linear) -> np.ndarray:
  """x W + b, float32 [P, columns]."""
  row_blocks, column_blocks, depth, at_once = linear.blocks.shape
  out = np.empty((len(x), column_blocks * at_once), np.float32)
  columns = out.reshape(len(x), column_blocks, at_once).swapaxes(0, 1)
  np.matmul(x[:, :depth], linear.blocks[0], out=columns)
  for i in range(1, row_blocks):
    columns += np.matmul(x[:, i * depth : (i + 1) * depth], linear.blocks[i])
  out += linear.bias
  return out


def _attend(qkv: np.ndarray, mixed: np.ndarray, count: int) -> None:
  """Fills `mixed` [count T, D] with the attention of `count` texts of equal length."""
  by_part = qkv.reshape(count, -1, 3, HEADS, mixed.shape[1] // HEADS)
  q, k, v = by_part.transpose(2, 0, 3, 1, 4)  # each [count, N, T, H]
  odds = np.matmul(q, k.swapaxes(2, 3))
  odds -= odds.max(-1, keepdims=True)
  np.exp(odds, out=odds)
  out = mixed.reshape(count, -1, HEADS, mixed.shape[1] // HEADS).swapaxes(1, 2)
  np.matmul(odds, v, out=out)
  out /= odds.sum(-1, keepdims=True)


def _normalise(x: np.ndarray, norm: tuple[np.ndarray, np.ndarray]) -> None:
  """Layer norm in place."""
  scale, bias = norm
  x -= x.mean(1, keepdims=True)
  variance = np.einsum("PD,PD->P", x, x) / np.float32(x.shape[1])
  x *= (1 / np.sqrt(variance + np.float32(EPSILON)))[:, None]
  x *= scale
  x += bias


_ERF_SLOPE = 0.3275911
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def gelu(x: np.ndarray) -> None:
  """x Phi(x) in place, with an error below 3e-7 |x|; x is float32 [P, F].

  For z >= 0, erf(z) = 1 - (a1 t + ... + a5 t^5) exp(-z^2) with t = 1 / (1 + p z) (Abramowitz and
  Stegun 1964, 7.1.26), so that x Phi(x) = max(x, 0) - |x| (1 - erf(|x| / sqrt 2)) / 2. The erf of
  scipy takes six times as long as all of this.
  """
  slope = np.float32(_ERF_SLOPE / np.sqrt(2))
  halves = [np.float32(coefficient / 2) for coefficient in _ERF]
  scratch = np.empty((3, min(len(x), _BLOCK_ROWS), x.shape[1]), np.float32)
  for start in range(0, len(x), _BLOCK_ROWS):
    block = x[start : start + _BLOCK_ROWS]
    size, t, tail = scratch[:, : len(block)]
    np.abs(block, out=size)
    np.multiply(size, slope, out=t)
    t += 1
    np.reciprocal(t, out=t)
    np.multiply(t, halves[4], out=tail)
    for coefficient in halves[3::-1]:
      tail += coefficient
      tail *= t
    tail *= size
    np.multiply(block, block, out=t)
    t *= np.float32(-0.5)
    tail *= np.exp(t, out=t)
    np.maximum(block, 0, out=block)
    block -= tail
