"""The tensors of a checkpoint folder by name, for all shards and number formats."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxrl_agents.hf import files, quantised

INDEX = "model.safetensors.index.json"


class LazyTensor(NamedTuple):
  """A tensor that is read, and decoded, when `read` is called.

  Attributes:
    shape: of the decoded tensor.
    read: () -> the tensor, a view of the file where nothing has to be decoded.
  """

  shape: tuple[int, ...]
  read: Callable[[], np.ndarray]


def json_object(file: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file. Raises ValueError if the file holds no such, and names it."""
  try:
    found = json.loads(file.read_text("utf-8"))
  except ValueError as error:
    raise ValueError(f"{file} is damaged ({error}); download it again") from error
  if not isinstance(found, dict):
    raise ValueError(f"{file} holds a {type(found).__name__}, not an object; download it again")
  return found


def tensors(folder: str | pathlib.Path) -> dict[str, np.ndarray]:
  """Views of all tensors of a folder, of all shards.

  An index says which files belong to the checkpoint; without one all *.safetensors do.

  Raises:
    ValueError: there are none, the index and the shards disagree, or two shards set one tensor.
  """
  folder = pathlib.Path(folder)
  index = folder / INDEX
  listed = json_object(index).get("weight_map") if index.is_file() else None
  if index.is_file() and not isinstance(listed, dict):
    raise ValueError(f"{index} has no weight_map; download it again")
  names = sorted(set(listed.values()) if listed else {f.name for f in folder.glob("*.safetensors")})
  if not names:
    raise ValueError(f"no *.safetensors in {folder}; name the folder of a checkpoint")
  found: dict[str, np.ndarray] = {}
  shard_of: dict[str, str] = {}
  for shard in names:
    if not (folder / shard).is_file():
      raise ValueError(f"{index} names {shard}, which is not there; download it")
    for name, view in files.read(folder / shard).items():
      if name in found:
        raise ValueError(f"{name} is set twice, in {shard_of[name]} and {shard} of {folder}")
      found[name], shard_of[name] = view, shard
  for name, shard in (listed or {}).items():
    if shard_of.get(name) != shard:
      raise ValueError(f"{index} has {name} in {shard}; it is in {shard_of.get(name, 'no shard')}")
  return found


def decoded(found: dict[str, np.ndarray], config: dict[str, Any]) -> dict[str, LazyTensor]:
  """All tensors, those of a quantised checkpoint under the names of plain ones.

  Args:
    found: from `tensors`.
    config: config.json; its `quantization_config` says how weights are quantised.

  Raises:
    ValueError: the format is not one of DECODERS, or what belongs to a weight is missing.
  """
  quantisation = config.get("quantization_config") or {}
  method = quantisation.get("quant_method")
  if method is not None and method not in DECODERS:
    raise ValueError(f"quant_method is {method!r}; readable are {', '.join(DECODERS)}, and none")
  sources = DECODERS[method](found, quantisation) if method else {}
  taken = {part for parts, _ in sources.values() for part in parts}
  decodable = {name: source for name, (_, source) in sources.items()}
  for name, view in found.items():
    if name in taken:
      continue
    if name in decodable:
      raise ValueError(f"{name} is set twice, quantised and plain")
    if view.dtype == files.DTYPES["F8_E4M3"]:
      raise ValueError(f"{name} is in 8 bits, and config.json has no quant_method for it")
    decodable[name] = _plain(view)
  return decodable


def _plain(view: np.ndarray) -> LazyTensor:
  return LazyTensor(view.shape, lambda: view)


def _mxfp4(found: dict[str, np.ndarray], quantisation: dict[str, Any]) -> dict[str, Any]:
  """NAME_blocks and NAME_scales are NAME (gpt-oss)."""
  sources = {}
  for name, blocks in found.items():
    if name.endswith("_blocks"):
      plain = name.removesuffix("_blocks")
      scales = _partner(found, name, f"{plain}_scales", blocks.shape[:-1])
      experts, rows, groups, half = blocks.shape
      read = functools.partial(quantised.from_mxfp4, blocks, scales)
      source = LazyTensor((experts, groups * half * 2, rows), read)
      sources[plain] = (name, f"{plain}_scales"), source
  return sources


def _block_fp8(found: dict[str, np.ndarray], quantisation: dict[str, Any]) -> dict[str, Any]:
  """NAME and NAME_scale_inv are NAME (DeepSeek-V3, Kimi K2)."""
  block = tuple(quantisation.get("weight_block_size") or ())
  if len(block) != 2:
    raise ValueError(f"weight_block_size is {block or None}; readable are tiles of two sizes")
  sources = {}
  for name, view in found.items():
    if view.dtype == files.DTYPES["F8_E4M3"]:
      tiles = tuple(-(-size // tile) for size, tile in zip(view.shape, block, strict=True))
      scales = _partner(found, name, f"{name}_scale_inv", tiles)
      read = functools.partial(quantised.from_block_fp8, view, scales, block)
      sources[name] = (name, f"{name}_scale_inv"), LazyTensor(view.shape, read)
  return sources


def _packed_int4(found: dict[str, np.ndarray], quantisation: dict[str, Any]) -> dict[str, Any]:
  """NAME_packed, NAME_scale and NAME_shape are NAME (Kimi K2 Thinking, Kimi K2.5)."""
  groups = list((quantisation.get("config_groups") or {}).values())
  weights = (groups[0].get("weights") or {}) if len(groups) == 1 else {}
  wanted = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
  stated = {name: weights.get(name) for name in wanted}
  if quantisation.get("format") != "pack-quantized" or stated != wanted:
    raise ValueError(
      f"format is {quantisation.get('format')!r} with {stated}; readable is 'pack-quantized' with "
      f"{wanted}, of one group"
    )
  sources = {}
  for name, packed in found.items():
    if name.endswith("_packed"):
      plain = name.removesuffix("_packed")
      rows, columns = map(int, _partner(found, name, f"{plain}_shape", (2,)))
      size = int(weights["group_size"])
      if columns % size or packed.shape != (rows, -(-columns // 8)):
        raise ValueError(
          f"{name} is {packed.shape}; {rows} rows of {columns} numbers, eight to a word and {size} "
          "to a scale, do not fit"
        )
      scales = _partner(found, name, f"{plain}_scale", (rows, columns // size))
      read = functools.partial(quantised.from_packed_int4, packed, scales, columns)
      parts = (name, f"{plain}_scale", f"{plain}_shape")
      sources[plain] = parts, LazyTensor((rows, columns), read)
  return sources


def _partner(
  found: dict[str, np.ndarray], name: str, partner: str, shape: tuple[int, ...]
) -> np.ndarray:
  if partner not in found or found[partner].shape != shape:
    there = found[partner].shape if partner in found else "missing"
    raise ValueError(f"{partner} is {there}; {name} needs one of {shape}")
  return found[partner]


DECODERS: dict[str, Callable[[dict[str, np.ndarray], dict[str, Any]], dict[str, Any]]] = {
  "mxfp4": _mxfp4,
  "fp8": _block_fp8,
  "compressed-tensors": _packed_int4,
}
"""(tensors, quantization_config) -> {plain name: (names of its parts, source)}."""
