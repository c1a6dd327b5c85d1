"""Decodes quantised weights to bfloat16.

Alphabet: E experts, R rows, C columns.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

FP4 = np.array(
  [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0],
  np.float32,
)
"""The values of the sixteen 4-bit floats with two bits of exponent and one of mantissa (E2M1)."""


def from_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Microscaling 4-bit floats, 32 to a scale: value * 2^(scale - 127), exact in bfloat16.

  (OCP Microscaling Formats 1.0, https://www.opencompute.org/documents/
  ocp-microscaling-formats-mx-v1-0-spec-final-pdf.) One expert after another, to save memory.

  Args:
    blocks: uint8 [E, R, C / 32, 16], two numbers to a byte, the low four bits first.
    scales: uint8 [E, R, C / 32].

  Returns:
    bfloat16 [E, C, R]: the matrices [out, in] of a checkpoint as [in, out].
  """
  experts, rows, groups, half = blocks.shape
  columns = groups * half * 2
  out = np.empty((experts, columns, rows), BFLOAT16)
  for expert in range(experts):
    packed = np.stack([blocks[expert] & 0x0F, blocks[expert] >> 4], axis=-1)
    values = FP4[packed.reshape(rows, groups, half * 2)]
    exponent = scales[expert].astype(np.int32)[..., None] - 127
    out[expert] = np.ldexp(values, exponent).reshape(rows, columns).T
  return out


def from_block_fp8(weight: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
  """8-bit floats with a scale for each tile of `block` rows and columns (DeepSeek-V3, section 3.3).

  Args:
    weight: float8_e4m3fn [R, C].
    scales: float32 [ceil(R / block rows), ceil(C / block columns)], factors.
    block: rows and columns of a tile.

  Returns:
    bfloat16 [R, C], rounded.
  """
  rows, columns = weight.shape
  wide = np.repeat(np.repeat(scales, block[0], axis=0)[:rows], block[1], axis=1)[:, :columns]
  return (weight.astype(np.float32) * wide).astype(BFLOAT16)


def from_packed_int4(packed: np.ndarray, scales: np.ndarray, columns: int) -> np.ndarray:
  """Signed 4-bit numbers, eight to a word: the experts of Kimi K2 Thinking and Kimi K2.5.

  Each is stored with 8 added to it, the lowest four bits of a word first. The scales divide the
  columns of a row evenly.

  Args:
    packed: int32 [R, ceil(C / 8)].
    scales: bfloat16 [R, groups], factors.
    columns: C, a multiple of `groups`.

  Returns:
    bfloat16 [R, C], rounded.
  """
  shifts = np.arange(0, 32, 4, dtype=np.uint32)
  codes = (packed.view(np.uint32)[..., None] >> shifts) & 0xF
  codes = codes.reshape(len(packed), -1)[:, :columns].astype(np.int8) - 8
  wide = scales.astype(np.float32).repeat(columns // scales.shape[1], axis=1)
  return (codes * wide).astype(BFLOAT16)
