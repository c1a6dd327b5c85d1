"""Weights as safetensors: the shipped policies, and policies exported for others.

A folder holds `policy.safetensors` (names are paths in the parameter table; float32, or bfloat16
where imported or trained so), `policy.json` (the sizes), the tokenizer, and the digests of them,
which are verified before weights are loaded. Tensors go one by one between the mapped file and the
devices: memory of the host holds this process's share of one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import shutil
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents import chat, durable, file_digests, full_disk
from jaxrl_agents.chat import loading
from jaxrl_agents.hf import files
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import processes
from jaxrl_agents.weights import store

WEIGHTS = "policy.safetensors"
SIZES = "policy.json"
WRITERS = "scripts/export_policy.py or scripts/import_hf.py"

SHIPPED = ("base", "search_base", "swarm_base")
"""Policies of the package: that of the coding and swarm agents, that of the search agent, and that
of the swarm for tables of every size.
"""


def save(
  params: dict[str, Any], cfg: PolicyConfig, folder: str | pathlib.Path, *, tokenizer: str = "base"
) -> pathlib.Path:
  """Writes weights, sizes and a tokenizer, as `chat.load` takes it, into `folder`; returns it.

  Arrays keep their dtypes. Adapters must be merged before (policy.lora.merged). Of several
  processes all call it, on one disk: each leaves its shards there, and the first joins them.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  flat = _flat(params)
  pieces: Iterable[tuple[str, Any, np.ndarray]]
  pieces = ((path, ..., np.asarray(x)) for path, x in flat.items())
  parts = folder / "parts"
  if jax.process_count() > 1:
    part, count = jax.process_index(), jax.process_count()
    if processes.is_first():
      shutil.rmtree(parts, ignore_errors=True)  # left by a save that was killed
    store.publish(params, 0, parts, part=part, parts=count, meet=processes.wait_for_all)
    if not processes.is_first():
      processes.wait_for_all("saved")
      return folder
    pieces = store.shards(parts, 0)
  with full_disk.named(folder):
    _write({path: (x.shape, x.dtype) for path, x in flat.items()}, pieces, folder)
    shutil.rmtree(parts, ignore_errors=True)
    save_sizes(cfg, folder)
    copied = chat.tokenizer_files(tokenizer)
    for name in {loading.TOKENIZER_CONFIG, loading.CHAT_TEMPLATE} - {file.name for file in copied}:
      (folder / name).unlink(missing_ok=True)  # of another tokenizer that was here before
    for file in copied:
      if file.resolve() != (folder / file.name).resolve():
        partial = folder / f"{file.name}.partial"
        shutil.copyfile(file, partial)
        durable.replace(partial, folder / file.name)
    file_digests.write(folder)
  processes.wait_for_all("saved")
  return folder


def _write(
  arrays: dict[str, tuple[tuple[int, ...], Any]],
  pieces: Iterable[tuple[str, Any, np.ndarray]],
  folder: pathlib.Path,
) -> None:
  """Writes the file of weights, which appears when it is whole and on the disk."""
  partial = folder / f"{WEIGHTS}.partial"
  try:
    views = files.create(partial, arrays)
    for path, place, values in pieces:
      views[path][place] = values
    views.clear()
    durable.replace(partial, folder / WEIGHTS)
  finally:
    partial.unlink(missing_ok=True)  # else a file that failed would keep its room on the disk


def save_sizes(cfg: PolicyConfig, folder: str | pathlib.Path) -> None:
  """Writes the sizes that `policy.model` must have to load the weights of `folder`."""
  partial = pathlib.Path(folder) / f"{SIZES}.partial"
  partial.write_text(json.dumps(dataclasses.asdict(cfg), indent=2) + "\n")
  durable.replace(partial, partial.with_name(SIZES))


def place(name: str | pathlib.Path) -> pathlib.Path:
  """The folder of weights that a name stands for: one of `SHIPPED`, or a path."""
  return chat.ASSETS / name if str(name) in SHIPPED else pathlib.Path(name).expanduser()


def check_there(name: str) -> pathlib.Path:
  """The file of weights that `policy.init` names. Raises ValueError if there is none."""
  file = place(name) / WEIGHTS
  if not file.is_file():
    raise ValueError(
      f"policy.init={name!r}: no {WEIGHTS} in {file.parent}; name a folder that {WRITERS} wrote or "
      f"one of the shipped policies ({', '.join(SHIPPED)}), or set policy.init=scratch"
    )
  return file


def load_sizes(folder: str | pathlib.Path) -> PolicyConfig:
  """The sizes of the weights of `folder`. Raises ValueError where no policy is, or damaged."""
  file = pathlib.Path(folder) / SIZES
  if not file.is_file():
    raise ValueError(f"no {SIZES} in {folder}; name a folder that {WRITERS} wrote")
  try:
    return PolicyConfig(**json.loads(file.read_bytes()))
  except (ValueError, TypeError, RecursionError) as error:
    raise ValueError(
      f"{file} does not hold the sizes of a policy ({error}); restore it from a copy, or write the "
      f"folder again with {WRITERS}"
    ) from None


def load(
  name: str, cfg: PolicyConfig, *, dtype: Any = jnp.float32, shardings: Any = None
) -> dict[str, Any]:
  """The parameters of a folder, or of a shipped policy.

  Args:
    name: the folder, or one of `SHIPPED`.
    cfg: sizes that they must have.
    dtype: of all arrays but the routers', which are float32.
    shardings: tree of shardings like the parameters (policy.sharding.shardings): each device is
      given its slice, and no more of the file is read. None: the first device holds all.

  Raises:
    ValueError: there are no weights, they are damaged, or they have other shapes than `cfg` asks
      for.
  """
  file = check_there(name)
  folder = file.parent
  _verify(folder)
  stored = files.read(file)
  wanted = _flat(params_lib.abstract(cfg, dtype))
  for path, array in wanted.items():
    found = stored.get(path)
    if found is None or found.shape != array.shape:
      raise ValueError(
        f"{file}: parameter {path!r} is {'missing' if found is None else found.shape}, "
        f"policy.model asks for {array.shape}; pass the config of these weights, or set "
        f"policy.model as in {folder / SIZES}"
      )
  extra = sorted(set(stored) - set(wanted))
  if extra:
    raise ValueError(f"{file}: policy.model has no place for {extra[0]!r} ({len(extra)} in all)")
  _check_sizes(folder, cfg)
  first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  places = dict.fromkeys(wanted, first) if shardings is None else _flat(shardings)
  placed = [_placed(stored[path], like.dtype, places[path]) for path, like in wanted.items()]
  return jax.tree.unflatten(jax.tree.structure(params_lib.abstract(cfg)), placed)


def _check_sizes(folder: pathlib.Path, cfg: PolicyConfig) -> None:
  """Raises ValueError if the weights were written for another network of the same shapes."""
  if not (folder / SIZES).is_file():
    return
  theirs, ours = dataclasses.asdict(load_sizes(folder)), dataclasses.asdict(cfg)
  differ = [name for name in ours if name != "kernels" and ours[name] != theirs[name]]
  if differ:
    listed = ", ".join(f"{name}={theirs[name]!r}, not {ours[name]!r}" for name in differ)
    raise ValueError(
      f"the weights in {folder} are of a policy with {listed}: set policy.model as in "
      f"{folder / SIZES} (load_sizes returns it); to compute otherwise, change that file and "
      f"remove the {file_digests.NAME} beside it"
    )


def digest(folder: pathlib.Path) -> str:
  """A digest of the weights that `save` wrote to a folder; "" if there are none."""
  if not file_digests.is_there(folder):
    return ""
  return hashlib.sha256((folder / file_digests.NAME).read_bytes()).hexdigest()


def _verify(folder: pathlib.Path) -> None:
  """Raises ValueError if this process's share of the files differs from what was written."""
  if file_digests.is_there(folder):
    part, parts = jax.process_index(), jax.process_count()
    if problem := file_digests.damage(folder, part=part, parts=parts):
      raise ValueError(
        f"the weights in {folder} are damaged: {problem}; restore the folder from a copy, or "
        "remove it and run the script that wrote it again"
      )


def _placed(stored: np.ndarray, dtype: Any, place: jax.sharding.Sharding) -> jax.Array:
  """A copy of a mapped tensor on its devices, complete when this returns."""
  own = lambda index: np.array(stored[index], dtype)
  return jax.make_array_from_callback(stored.shape, place, own).block_until_ready()


def _flat(tree: Any) -> dict[str, Any]:
  return {_name(path): leaf for path, leaf in jax.tree.flatten_with_path(tree)[0]}


def _name(path: tuple[Any, ...]) -> str:
  return ".".join(str(key.key) for key in path)
