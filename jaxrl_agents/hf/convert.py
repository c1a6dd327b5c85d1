"""Converts weights from a Hugging Face checkpoint into a file of this package, and back.

Tensors are copied one by one from memory-mapped shards into a memory-mapped file. Besides the
system's file cache, memory holds one tensor and its transposed (or decoded) copy, whatever the
model's size.

Tensors imported as bfloat16 are exported with the same bytes: parameters keep the dtype of the
checkpoint, routers are float32 (`params.table`), and a tensor that would lose bits is an error.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxrl_agents import file_digests
from jaxrl_agents.hf import checkpoint_reader, families, files, tensors, tiktoken
from jaxrl_agents.hf.families import Model
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig

SHARD_BYTES = 4 * 10**9

TOKENIZER = "tokenizer.json"

IGNORED = ".rotary_emb.inv_freq"
"""End of the names of rotary frequencies, which some checkpoints hold although config.json
determines them.
"""

NOT_COPIED = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf")
"""Ends of the names of weight files; all other files of a checkpoint's folder describe it."""

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}


def import_weights(folder: str | pathlib.Path, file: str | pathlib.Path) -> PolicyConfig:
  """Writes the weights of a checkpoint folder into `file`, a safetensors file with our paths as
  names.

  The file appears when it is complete. Returns the sizes of the policy.

  Raises:
    ValueError: config.json asks for something that the policy does not support; or a tensor is
      unknown, missing, set twice, of another shape, or differs from the one that it should repeat.
  """
  model = families.read(folder)
  found = checkpoint_reader.decoded(
    _language(checkpoint_reader.tensors(folder), model.wrapper), model.config
  )
  _check_names(model, found, folder)
  file = pathlib.Path(file)
  file.parent.mkdir(parents=True, exist_ok=True)
  partial = file.with_name(file.name + ".partial")
  try:
    _fill(files.create(partial, _parameters(model.cfg, model.dtype)), model, found)
  except BaseException:
    partial.unlink(missing_ok=True)  # the whole file would still take its room on the disk
    raise
  (file.parent / file_digests.NAME).unlink(missing_ok=True)  # of weights that were there before
  os.replace(partial, file)
  return model.cfg


def export_weights(
  file: str | pathlib.Path,
  hf_config: str | pathlib.Path,
  out: str | pathlib.Path,
  *,
  shard_bytes: int = SHARD_BYTES,
) -> list[pathlib.Path]:
  """Writes a file of this package as a checkpoint folder: shards, their index and their
  description.

  Args:
    file: as `import_weights` or runs.weight_files wrote it, in float32 or bfloat16.
    hf_config: folder of the model that it came from; its config.json and tokenizer are copied. Of
      a model of images and text, only the language model is written, as a model of its own.
    out: the folder to write. Weights are rounded to the dtype of config.json and not quantised.
    shard_bytes: largest size of a shard with more than one tensor.

  Returns:
    The shards.

  Raises:
    ValueError: the weights do not fit config.json, or one of them has no place in a checkpoint.
  """
  model = families.read(hf_config)
  ours = files.read(file)
  _check_parameters(ours, model, file)
  out = pathlib.Path(out)
  if out.resolve() == pathlib.Path(hf_config).resolve():
    raise ValueError(f"out and hf_config are both {out}; the original would be overwritten")
  out.mkdir(parents=True, exist_ok=True)
  shards = list(_shards(model, shard_bytes))
  paths: list[pathlib.Path] = []
  shard_of: dict[str, str] = {}
  partial = lambda path: path.with_name(path.name + ".partial")
  try:
    for number, names in enumerate(shards, start=1):
      path = out / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
      paths.append(path)
      views = files.create(partial(path), {name: _stored(model, name) for name in names})
      for name, view in views.items():
        place = model.places[model.repeats.get(name, name)]
        files.copy(place.layout.to_theirs(ours[place.path][place.index], view.shape), view)
      shard_of |= dict.fromkeys(names, path.name)
  except BaseException:
    for path in paths:
      partial(path).unlink(missing_ok=True)  # else it would keep its room on the disk
    raise
  (out / checkpoint_reader.INDEX).unlink(missing_ok=True)  # of what was exported here before
  for path in paths:
    os.replace(partial(path), path)
  total = sum(_bytes(model, name) for names in shards for name in names)
  index = {"metadata": {"total_size": total}, "weight_map": shard_of}
  (out / checkpoint_reader.INDEX).write_text(json.dumps(index, indent=2) + "\n")
  _copy_description(pathlib.Path(hf_config), out, model.config)
  return paths


def _fill(
  ours: dict[str, np.ndarray], model: Model, found: dict[str, checkpoint_reader.LazyTensor]
) -> None:
  """Writes each tensor to its place, and checks those that repeat another."""
  for name, place in model.places.items():
    target = ours[place.path][place.index]
    files.copy(
      _exactly(place.layout.to_ours(found[name].read(), target.shape), target, name), target
    )
  for name, original in model.repeats.items():
    if name in found and not np.array_equal(found[name].read(), found[original].read()):
      raise ValueError(f"{name} differs from {original}, which the policy uses in its place")


def copy_tokenizer(folder: str | pathlib.Path, out: str | pathlib.Path) -> bool:
  """Copies tokenizer and chat template beside imported weights; True if there is a tokenizer.

  If there is only a tiktoken.model, tokenizer.json is made from it.
  """
  source, target = pathlib.Path(folder), pathlib.Path(out)
  for name in (TOKENIZER, "tokenizer_config.json", "chat_template.jinja"):
    (target / name).unlink(missing_ok=True)  # of a model that was imported here before
    if (source / name).is_file():
      shutil.copyfile(source / name, target / name)
  if (source / tiktoken.RANKS).is_file() and not (source / TOKENIZER).is_file():
    tiktoken.read(source).save(str(target / TOKENIZER))
  return (target / TOKENIZER).is_file()


def _language(
  found: dict[str, np.ndarray], wrapper: families.Wrapper | None
) -> dict[str, np.ndarray]:
  """The tensors of the language model by their own names; others that are unknown keep theirs."""
  if wrapper is None:
    return found
  return {
    name.removeprefix(wrapper.language): view
    for name, view in found.items()
    if not name.startswith(wrapper.left_out)
  }


def _parameters(cfg: PolicyConfig, dtype: str) -> dict[str, tuple[tuple[int, ...], Any]]:
  """{dotted path: (shape, dtype)} of every parameter of a policy."""
  leaves, _ = jax.tree.flatten_with_path(params_lib.abstract(cfg, DTYPES[dtype]))
  return {".".join(key.key for key in path): (leaf.shape, leaf.dtype) for path, leaf in leaves}


def _exactly(x: np.ndarray, target: np.ndarray, name: str) -> np.ndarray:
  """`x` in the dtype of `target`. Raises ValueError if that would change a number."""
  if x.dtype == target.dtype:
    return x
  y = x.astype(target.dtype)
  wide = np.promote_types(x.dtype, np.float32)
  if not np.array_equal(x.astype(wide), y.astype(wide), equal_nan=True):
    raise ValueError(
      f"{name} is {x.dtype} and loses bits in {y.dtype}, config.json's dtype; set it to float32"
    )
  return y


def _check_names(model: Model, found: dict[str, checkpoint_reader.LazyTensor], folder: Any) -> None:
  missing = [name for name in model.places if name not in found]
  known = model.places.keys() | model.repeats.keys()
  unknown = [name for name in found if name not in known and not name.endswith(IGNORED)]
  if missing or unknown:
    modules = [name for name in missing if model.places[name].path.startswith("mtp.")]
    hint = "; set num_nextn_predict_layers=0 to leave prediction modules out" if modules else ""
    raise ValueError(
      f"{folder} does not hold the {model.config['model_type']} that its config.json describes:"
      f"{_listed('missing', missing)}{_listed('unknown', unknown)}{hint}"
    )
  for name, place in model.places.items():
    if found[name].shape != place.shape:
      raise ValueError(f"{name} is {found[name].shape}; config.json asks for {place.shape}")


def _listed(kind: str, names: list[str]) -> str:
  if not names:
    return ""
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return f" {kind} {', '.join(names[:3])}{more}"


def _check_parameters(ours: dict[str, np.ndarray], model: Model, file: Any) -> None:
  wanted = _parameters(model.cfg, model.dtype)
  for path, (shape, _) in wanted.items():
    if path not in ours or ours[path].shape != shape:
      found = ours[path].shape if path in ours else "missing"
      raise ValueError(f"{file}: {path} is {found}; config.json asks for {shape}")
  held = {place.path for place in model.places.values()}
  for path in ours:
    if path not in wanted:
      raise ValueError(f"{file}: config.json has no place for {path}")
    if path not in held and np.any(ours[path]):
      raise ValueError(
        f"{path} is not zero, and a checkpoint of {model.config['model_type']} has no tensor for it"
      )


def _stored(model: Model, name: str) -> tuple[tuple[int, ...], np.dtype]:
  """Shape and dtype of a tensor of the checkpoint."""
  place = model.places[model.repeats.get(name, name)]
  return place.shape, DTYPES["float32" if place.float32 else model.dtype]


def _bytes(model: Model, name: str) -> int:
  shape, dtype = _stored(model, name)
  return int(np.prod(shape)) * dtype.itemsize


def _shards(model: Model, shard_bytes: int) -> Iterator[list[str]]:
  """Names of all tensors in order, cut where a shard would grow beyond `shard_bytes`."""
  names: list[str] = []
  size = 0
  for name in (*model.places, *(name for name in model.repeats if name != tensors.HEAD)):
    if names and size + _bytes(model, name) > shard_bytes:
      yield names
      names, size = [], 0
    names.append(name)
    size += _bytes(model, name)
  yield names


def _copy_description(source: pathlib.Path, out: pathlib.Path, config: dict[str, Any]) -> None:
  """Everything but weights; config.json without `quantization_config`, as nothing is quantised."""
  for file in _described(source.iterdir()):
    (out / file.name).unlink(missing_ok=True)  # which may be read-only
    shutil.copyfile(file, out / file.name)
  plain = {name: value for name, value in config.items() if name != "quantization_config"}
  (out / "config.json").write_text(json.dumps(plain, indent=2) + "\n")


def _described(entries: Iterable[pathlib.Path]) -> list[pathlib.Path]:
  return [f for f in entries if f.is_file() and not f.name.endswith(NOT_COPIED)]
