"""Publishes and fetches versions of the weights through tensorstore: zarr3 arrays, zstd, checked.

A tree of nested dicts of arrays becomes one zarr array per leaf, one file per shard, in its own
dtype. Each shard's digest is taken from memory before it is written and compared with what was
read, so that a fault anywhere between the learner's memory and the sampler's is found and named.
"""

from __future__ import annotations

import hashlib
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights.manifest import Folder, Manifest, Shard, Tensor

ZSTD_LEVEL = 1
"""Whole float32 weights barely compress (about 8 %); a higher level only costs time."""


class CorruptWeights(Exception):
  """What was read is not what was published; the message names version, tensor and shard."""


def publish(params: dict[str, Any], version: int, folder: Folder, *, keep: int = 2) -> Manifest:
  """Writes a version and makes it visible; older ones beyond the newest `keep` are deleted.

  Args:
    params: nested dicts of arrays, all shards addressable from this process; dtypes are kept.
    version: not published before.
    folder: of all versions; made if missing.
    keep: versions to keep, this one included. Readers hold none open for longer than a fetch.

  Returns:
    The manifest.

  Raises:
    ValueError: the version exists, or the tree has something else than dicts and arrays.
  """
  if version in manifest_lib.versions(folder):
    raise ValueError(f"version {version} is published in {folder} and never changes; count up")
  if keep < 1:
    raise ValueError(f"keep={keep} would delete the version that is published; keep at least 1")
  target = manifest_lib.files(folder, version)
  shutil.rmtree(target, ignore_errors=True)  # of a process that died before its manifest
  target.mkdir(parents=True)
  tensors, writes = [], []
  for name, leaf in flatten(params):
    boxes = list(_shards(name, leaf))
    shape = tuple(boxes[0][1].shape)
    array = ts.open(_spec(target, name, leaf.shape, leaf.dtype, shape), create=True).result()
    writes += [array[_slices(offset, box.shape)].write(box) for offset, box in boxes]
    shards = tuple(Shard(offset, tuple(box.shape), digest(box)) for offset, box in boxes)
    tensors.append(Tensor(name, tuple(leaf.shape), np.dtype(leaf.dtype).name, shards))
  for write in writes:
    write.result()
  manifest = Manifest(version, None, tuple(tensors))
  manifest_lib.write(folder, manifest)
  collect_garbage(folder, keep=keep)
  return manifest


def fetch(folder: Folder, version: int) -> dict[str, Any]:
  """Reads a version and verifies every shard.

  Args:
    folder: of all versions.
    version: one of `manifest.versions(folder)`, e.g. `manifest.latest(folder)`.

  Returns:
    Nested dicts of numpy arrays, bitwise as published.

  Raises:
    FileNotFoundError: no such version (it may have been deleted since).
    CorruptWeights: a shard is unreadable or its content differs.
  """
  manifest = manifest_lib.read(folder, version)
  target = manifest_lib.files(folder, version)
  reads = [(tensor, _start_read(target, tensor, version)) for tensor in manifest.tensors]
  tree: dict[str, Any] = {}
  for tensor, read in reads:
    values = _finish_read(read, tensor, version)
    for shard in tensor.shards:
      if digest(values[_slices(shard.offset, shard.shape)]) != shard.sha256:
        raise CorruptWeights(
          f"version {version}: {tensor.name}, shard at {list(shard.offset)} of shape "
          f"{list(shard.shape)}, does not have its published digest; publish the version again"
        )
    *path, last = tensor.name.split(".")
    node = tree
    for key in path:
      node = node.setdefault(key, {})
    node[last] = values
  return tree


def collect_garbage(folder: Folder, *, keep: int) -> None:
  """Deletes all but the newest `keep` versions and the versions that those are changes to.

  Manifests go first, so that nobody starts to read what is being deleted. Files of publications
  that died before their manifest go too, once a newer version is out.
  """
  versions = manifest_lib.versions(folder)
  needed = set()
  for version in versions[-keep:]:
    while version is not None and version not in needed:
      needed.add(version)
      version = manifest_lib.read(folder, version).base
  for version in versions:
    if version not in needed:
      manifest_lib.path(folder, version).unlink(missing_ok=True)
  for entry in pathlib.Path(folder).glob("v" + "[0-9]" * 10):
    if int(entry.name[1:]) not in needed and int(entry.name[1:]) < max(versions):
      shutil.rmtree(entry, ignore_errors=True)


def withdraw_after(version: int, folder: Folder) -> list[int]:
  """Deletes the versions above `version` and returns them.

  For a learner that starts again from a checkpoint: what a killed run published after it was never
  part of the run that goes on.
  """
  later = [v for v in manifest_lib.versions(folder) if v > version]
  for v in later:
    manifest_lib.path(folder, v).unlink(missing_ok=True)
    shutil.rmtree(manifest_lib.files(folder, v), ignore_errors=True)
  return later


def flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  """(dotted name, array) of every leaf of nested dicts, sorted by key."""
  for key in sorted(tree):
    if not isinstance(key, str) or "." in key or "/" in key:
      raise ValueError(f"{key!r} under {prefix!r} cannot name a tensor; use strings without . or /")
    if isinstance(tree[key], dict):
      yield from flatten(tree[key], f"{prefix}{key}.")
    elif hasattr(tree[key], "shape") and hasattr(tree[key], "dtype"):
      yield prefix + key, tree[key]
    else:
      raise ValueError(
        f"{prefix}{key} is a {type(tree[key]).__name__}; publish nested dicts of arrays"
      )


def digest(values: np.ndarray) -> str:
  """sha256 of the values' bytes in C order, hex."""
  return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8)).hexdigest()


def _shards(name, leaf):
  """(offset, values) of each distinct shard of an array."""
  if not isinstance(leaf, jax.Array):
    yield (0,) * np.ndim(leaf), np.asarray(leaf)
    return
  if not leaf.is_fully_addressable:
    raise ValueError(
      f"{name} is spread over several processes; gather it to this one before publishing"
    )
  for shard in leaf.addressable_shards:
    if shard.replica_id == 0:
      yield tuple(s.start or 0 for s in shard.index), np.asarray(shard.data)


def _slices(offset, shape):
  return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


def _location(target, name):
  return {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(target / name) + "/"}}


def _spec(target, name, shape, dtype, shard_shape):
  codecs = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "zstd", "configuration": {"level": ZSTD_LEVEL}},
  ]
  if np.dtype(dtype).itemsize == 1:
    codecs[0] = {"name": "bytes"}
  grid = {"name": "regular", "configuration": {"chunk_shape": list(shard_shape)}}
  metadata = {
    "shape": list(shape),
    "data_type": np.dtype(dtype).name,
    "chunk_grid": grid,
    "codecs": codecs,
  }
  return {**_location(target, name), "metadata": metadata}


def _start_read(target, tensor, version):
  try:
    array = ts.open(_location(target, tensor.name), read=True).result()
    found = (tuple(array.shape), array.dtype.name)
    if found != (tensor.shape, tensor.dtype):
      raise ValueError(f"it is {found}, published as {(tensor.shape, tensor.dtype)}")
    return array.read()
  except ValueError as error:
    raise _unreadable(version, tensor, error) from error


def _finish_read(read, tensor, version):
  try:
    return read.result()
  except ValueError as error:
    raise _unreadable(version, tensor, error) from error


def _unreadable(version, tensor, error):
  return CorruptWeights(
    f"version {version}: {tensor.name} cannot be read; publish the version again: {error}"
  )
