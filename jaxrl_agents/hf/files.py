"""Safetensors files as memory-mapped numpy arrays, for reading and for writing in place.

The safetensors library has no bfloat16 in numpy, and writes a file only from arrays that are all in
memory. The format is simple enough to map instead: eight bytes with the length of a JSON header,
the header {name: dtype, shape, data_offsets}, the data
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
  "F64": np.dtype(np.float64),
  "F32": np.dtype(np.float32),
  "F16": np.dtype(np.float16),
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
  "I64": np.dtype(np.int64),
  "I32": np.dtype(np.int32),
  "U8": np.dtype(np.uint8),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"


def read(file: str | pathlib.Path) -> dict[str, np.ndarray]:
  """Read-only views of all tensors of a file; nothing is read before it is used.

  Raises:
    ValueError: the file is not in the format, or has a dtype that is not in DTYPES.
  """
  if not os.path.getsize(file):
    raise ValueError(f"{file} is not a safetensors file: it is empty")
  raw = np.memmap(file, np.uint8, mode="r")
  start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
  if len(raw) < 8 or start > len(raw):
    raise ValueError(f"{file} is not a safetensors file: it ends before its header does")
  try:
    header = json.loads(raw[8:start].tobytes())
    return {
      name: _view(raw[start:], entry, f"{file}: {name}")
      for name, entry in header.items()
      if name != _METADATA
    }
  except (KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError) as error:
    raise ValueError(
      f"{file} is not a safetensors file: its header is damaged ({type(error).__name__}: {error})"
    ) from error
  except json.JSONDecodeError as error:
    raise ValueError(f"{file} is not a safetensors file: its header is no JSON") from error


def create(
  file: str | pathlib.Path, arrays: Mapping[str, tuple[tuple[int, ...], Any]]
) -> dict[str, np.ndarray]:
  """Makes a file with room for {name: (shape, dtype)}; returns views of zeros to write into.

  What is written reaches the disk as the system sees fit, at the latest when the views are gone.

  Raises:
    OSError: the disk has no room for the whole file; told here, as a write to a view cannot.
  """
  # Wide dtypes first, so that every array is aligned.
  order = sorted(arrays, key=lambda name: (-np.dtype(arrays[name][1]).itemsize, name))
  header: dict[str, Any] = {_METADATA: {"format": "pt"}}
  end = 0
  for name in order:
    shape, dtype = arrays[name][0], np.dtype(arrays[name][1])
    begin, end = end, end + math.prod(shape) * dtype.itemsize
    entry = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    header[name] = entry
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)
  with open(file, "wb") as out:
    out.write(len(text).to_bytes(8, "little") + text)
    out.flush()
    if end:
      os.posix_fallocate(out.fileno(), 8 + len(text), end)
  raw = np.memmap(file, np.uint8, mode="r+")[8 + len(text) :]
  return {name: _view(raw, header[name], name) for name in order}


STRIPE = 16
"""Numbers side by side in the target of a turned copy: of 2 bytes, they fill half a cache line."""

STRIPE_LENGTH = 1024
"""Numbers side by side in its source."""


def copy(source: np.ndarray, target: np.ndarray) -> None:
  """target[...] = source, a stripe at a time where one is the other turned.

  Numpy walks along the rows of the target and jumps through the source, a cache line for every
  number: 0.9 GB/s of a 2-byte matrix [768, 1024] on one core, against 4.3 GB/s in stripes.
  """
  if source.dtype == target.dtype:  # what bfloat16 is to numpy is copied number by number
    bits = np.dtype(f"u{source.dtype.itemsize}")
    source, target = source.view(bits), target.view(bits)
  row, column = (int(np.argmin(np.abs(x.strides))) if x.ndim else 0 for x in (source, target))
  if row == column or min(source.shape[row], source.shape[column]) <= STRIPE:
    target[...] = source
    return
  source, target = (np.moveaxis(x, (row, column), (-2, -1)) for x in (source, target))
  for place in np.ndindex(source.shape[:-2]):
    for i in range(0, source.shape[-2], STRIPE_LENGTH):
      rows = slice(i, i + STRIPE_LENGTH)
      for j in range(0, source.shape[-1], STRIPE):
        stripe = slice(j, j + STRIPE)
        target[place][rows, stripe] = source[place][rows, stripe]


def _view(data: np.ndarray, entry: dict[str, Any], where: str) -> np.ndarray:
  if entry["dtype"] not in DTYPES:
    raise ValueError(f"{where} has dtype {entry['dtype']}; readable are {', '.join(DTYPES)}")
  begin, end = entry["data_offsets"]
  dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
  if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
    raise ValueError(f"{where}: bytes {begin} to {end} of {len(data)} are not a {shape} {dtype}")
  return np.ndarray(shape, dtype, buffer=data[begin:end])
