"""Publishes and fetches versions of the weights through tensorstore: zarr3, zstd, verified.

A tree of nested dicts of arrays becomes one zarr array per leaf, one file per shard, in its own
dtype. The digest of each shard is computed in memory before it is written and compared after
reading, so that a fault anywhere between the learner's memory and the sampler's is detected and
named. No process holds more of an array than the shards that it writes or reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from jaxrl_agents import full_disk
from jaxrl_agents.weights import boxes, chain, places, timeouts
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights.manifest import CorruptWeights, Manifest, Shard, Tensor
from jaxrl_agents.weights.places import Folder, Place

ZSTD_LEVEL = 1
"""Whole float32 weights barely compress (about 8 %); a higher level only costs time."""

_FILES = re.compile(r"v\d{10}")


def publish(
  params: dict[str, Any],
  version: int,
  folder: Folder,
  *,
  keep: int = 2,
  part: int = 0,
  parts: int = 1,
  meet: Callable[[str], None] = lambda name: None,
) -> None:
  """Writes a version and makes it visible; deletes all but the newest `keep` versions.

  Each of several processes calls it and writes its shards. The version is visible once it has
  returned in the process of part 0.

  Args:
    params: nested dicts of arrays, the same tree in every process; dtypes are kept. Arrays that are
      not distributed over devices are written by part 0.
    version: not published before.
    folder: of all versions, on a disk that all processes share or in a bucket; created if missing.
    keep: versions to keep, this one included. Readers use a version only during a fetch.
    part, parts: number of this process, and of all that hold shards.
    meet: (name) returns when all of them have called it.

  Raises:
    ValueError: the version exists, the tree has something else than dicts and arrays, a part is
      missing, or the parts together do not make a whole tensor.
  """
  if keep < 1:
    raise ValueError(f"keep={keep} would delete the version that is published; keep at least 1")
  if not part:
    begin(version, folder)
  meet("version begun")
  write_part(params, version, folder, part)
  meet("version written")
  if not part:
    join_parts(version, folder, parts=parts)
    delete_before(min(manifest_lib.versions(folder)[-keep:]), folder)


def begin(version: int, folder: Folder) -> None:
  """Makes the folder of a version. Raises ValueError if the version exists."""
  if version in manifest_lib.versions(folder):
    raise ValueError(f"version {version} is published in {folder} and never changes; count up")
  target = manifest_lib.files(folder, version)
  places.remove_tree(target)  # left by a process that died before its manifest
  target.mkdir(parents=True)


def write_part(params: dict[str, Any], version: int, folder: Folder, part: int) -> None:
  """Writes this process's shards of a version that was begun; every shard is written by one
  process.
  """
  target = manifest_lib.files(folder, version)
  tensors, writes = [], []
  for name, leaf in flatten(params):
    spread = isinstance(leaf, jax.Array)
    shape = leaf.sharding.shard_shape(leaf.shape) if spread else np.shape(leaf)
    spec = _spec(target, name, leaf.shape, leaf.dtype, shape)
    with full_disk.named(target):
      array = timeouts.result(ts.open(spec, create=True, open=True), target)
    held = list(shards_of(leaf)) if spread or not part else []
    writes += [array[boxes.of(offset, values.shape)].write(values) for offset, values in held]
    shards = tuple(Shard(offset, tuple(v.shape), digest(v)) for offset, v in held)
    tensors.append(Tensor(name, tuple(leaf.shape), np.dtype(leaf.dtype).name, shards))
  with full_disk.named(target):
    for write in writes:
      timeouts.result(write, target)
    found = Manifest(version, None, tuple(tensors))
    manifest_lib.part(target, part).write_text(manifest_lib.text_of(found), encoding="utf-8")


def join_parts(version: int, folder: Folder, *, parts: int, base: int | None = None) -> None:
  """Writes the manifest of a version from its `parts`, which makes it visible.

  Raises:
    ValueError: a part is missing, or the parts together do not make a whole tensor.
  """
  target = manifest_lib.files(folder, version)
  try:
    written_to = [manifest_lib.part(target, i) for i in range(parts)]
    texts = [place.read_bytes() for place in written_to]
  except FileNotFoundError as error:
    raise ValueError(f"version {version}: {error.filename} was not written") from None
  written = [
    manifest_lib.parse(text, place).tensors for text, place in zip(texts, written_to, strict=True)
  ]
  tensors = []
  for same in zip(*written, strict=True):
    whole = dataclasses.replace(same[0], shards=tuple(s for tensor in same for s in tensor.shards))
    if sum(math.prod(s.shape) for s in whole.shards) != math.prod(whole.shape):
      raise ValueError(f"version {version}: the parts do not make up {whole.name}")
    tensors.append(whole)
  with full_disk.named(folder):
    manifest_lib.write(folder, Manifest(version, base, tuple(tensors)))
  for place in written_to:
    place.unlink()


def fetch(folder: Folder, version: int, shardings: dict[str, Any] | None = None) -> dict[str, Any]:
  """Reads a version and verifies every shard that it reads.

  Args:
    folder: of all versions.
    version: one of `manifest.versions(folder)`.
    shardings: a tree like that of the parameters: each device is given its slice, and this process
      reads the shards that its devices have a part of. None: all of it, on the host.

  Returns:
    Nested dicts of arrays, bitwise as published: of numpy, or of jax where there are shardings.

  Raises:
    FileNotFoundError: no such version (it may have been deleted since).
    CorruptWeights: a shard is unreadable or its content differs.
  """
  try:
    return _fetched(folder, version, shardings)
  except CorruptWeights as error:
    if manifest_lib.path(folder, version).exists():
      raise
    text = f"version {version} in {folder} was deleted while it was read"
    raise FileNotFoundError(text) from error


def _fetched(folder: Folder, version: int, shardings: dict[str, Any] | None) -> dict[str, Any]:
  manifest = manifest_lib.read(folder, version)
  target = manifest_lib.files(folder, version)
  stored = [_Stored(target, tensor, version) for tensor in manifest.tensors]
  if shardings is None:
    whole = [boxes.of([0] * len(t.shape), t.shape) for t in manifest.tensors]
    started = [each.start(box) for each, box in zip(stored, whole, strict=True)]
    parts = zip(stored, whole, started, strict=True)
    arrays: list[Any] = [each.finish(*read) for each, *read in parts]
  else:
    spread = dict(flatten(shardings))
    arrays = [each.placed(spread[each.tensor.name]) for each in stored]
  return tree_of({each.tensor.name: array for each, array in zip(stored, arrays, strict=True)})


def shards(folder: Folder, version: int) -> Iterator[tuple[str, tuple[slice, ...], np.ndarray]]:
  """(name, place in the array, values) of every shard of a version, verified, one at a time."""
  for tensor in manifest_lib.read(folder, version).tensors:
    stored = _Stored(manifest_lib.files(folder, version), tensor, version)
    for shard in tensor.shards:
      box = boxes.of(shard.offset, shard.shape)
      yield tensor.name, box, stored.finish(box, stored.start(box))


def delete_before(version: int, folder: Folder) -> None:
  """Deletes all versions below one that is published.

  Manifests are deleted first, so that no reader starts on a version that is being deleted. Files of
  publications that died before their manifest are deleted likewise.
  """
  for v in manifest_lib.versions(folder):
    if v < version:
      manifest_lib.path(folder, v).unlink(missing_ok=True)
  kept = manifest_lib.versions(folder)
  for name in filter(_FILES.fullmatch, places.names(places.of(folder), "v")):
    number = int(name[1:])
    if number < version or (number not in kept and number < max(kept, default=0)):
      places.remove_tree(manifest_lib.files(folder, number))


def withdraw_after(version: int, folder: Folder) -> list[int]:
  """Deletes the versions above `version`, complete ones and differences, and returns them; and all
  requests of receivers.

  A learner that restarts from a checkpoint calls it: versions that the killed run published later
  are not part of the continued run.
  """
  chain.forget_requests(folder)
  withdrawn = set()
  for place in (manifest_lib.differences(folder), folder):
    for v in manifest_lib.versions(place):
      if v > version:
        manifest_lib.path(place, v).unlink(missing_ok=True)
        places.remove_tree(manifest_lib.files(place, v))
        withdrawn.add(v)
  return sorted(withdrawn)


def flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  """(dotted name, array or sharding) of every leaf of nested dicts, sorted by key."""
  for key in sorted(tree):
    if not isinstance(key, str) or "." in key or "/" in key:
      raise ValueError(f"{key!r} under {prefix!r} cannot name a tensor; use strings without . or /")
    if isinstance(tree[key], dict):
      yield from flatten(tree[key], f"{prefix}{key}.")
    elif isinstance(tree[key], jax.sharding.Sharding) or hasattr(tree[key], "dtype"):
      yield prefix + key, tree[key]
    else:
      raise ValueError(
        f"{prefix}{key} is a {type(tree[key]).__name__}; publish nested dicts of arrays"
      )


def tree_of(named: Mapping[str, Any]) -> dict[str, Any]:
  """The nested dicts of `flatten`."""
  tree: dict[str, Any] = {}
  for name, leaf in named.items():
    *path, last = name.split(".")
    node = tree
    for key in path:
      node = node.setdefault(key, {})
    node[last] = leaf
  return tree


def digest(values: np.ndarray) -> str:
  """sha256 of the values' bytes in C order, hex."""
  return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest()


class _Stored:
  """One array of a version, read by boxes and verified shard by shard."""

  def __init__(self, target, tensor: Tensor, version: int):
    self.tensor, self._version = tensor, version
    try:
      self._array = timeouts.result(ts.open(_location(target, tensor.name), read=True), target)
    except ValueError as error:
      raise self._unreadable(error) from error
    found = (tuple(self._array.shape), self._array.dtype.name)
    if found != (tensor.shape, tensor.dtype):
      raise self._unreadable(f"it is {found}, published as {(tensor.shape, tensor.dtype)}")

  def placed(self, sharding: jax.sharding.Sharding) -> jax.Array:
    """The array on its devices; each box that several of them have is read once."""
    shape, read = self.tensor.shape, dict[str, np.ndarray]()

    def box_of(index):
      box = tuple(slice(*s.indices(n)) for s, n in zip(index, shape, strict=True))
      if str(box) not in read:
        read[str(box)] = self.finish(box, self.start(box))
      return read[str(box)]

    return jax.make_array_from_callback(shape, sharding, box_of).block_until_ready()

  def start(self, box):
    """Starts to read the shards that overlap the box."""
    overlaps = (s for s in self.tensor.shards if boxes.overlap(s.offset, s.shape, box) is not None)
    return [(shard, self._array[boxes.of(shard.offset, shard.shape)].read()) for shard in overlaps]

  def finish(self, box, reads) -> np.ndarray:
    """The values of the box.

    Raises:
      CorruptWeights: a shard is damaged, or no shard holds a part of the box.
    """
    left = math.prod(s.stop - s.start for s in box)
    found = np.empty([s.stop - s.start for s in box], np.dtype(self._array.dtype.numpy_dtype))
    for shard, read in reads:
      try:
        values = timeouts.result(read, f"version {self._version}")
      except ValueError as error:
        raise self._unreadable(error) from error
      if digest(values) != shard.sha256:
        raise CorruptWeights(
          f"version {self._version}: {self.tensor.name}, shard at {list(shard.offset)} of shape "
          f"{list(shard.shape)}, does not have its published digest; publish the version again"
        )
      both = boxes.overlap(shard.offset, shard.shape, box)
      assert both is not None  # else `start` would not have read it
      outer = boxes.within(both, [s.start for s in box])
      found[outer] = values[boxes.within(both, shard.offset)]
      left -= found[outer].size
    if left:
      raise self._unreadable(f"{left} of its numbers are in no shard")
    return found

  def _unreadable(self, why):
    return CorruptWeights(
      f"version {self._version}: {self.tensor.name} cannot be read; publish the version again: "
      f"{why}"
    )


def shards_of(leaf: Any) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
  """(offset, values) of each shard of an array that this process must write."""
  if not isinstance(leaf, jax.Array):
    yield (0,) * np.ndim(leaf), np.asarray(leaf)
    return
  for shard in leaf.addressable_shards:
    if shard.replica_id == 0:
      yield tuple(s.start or 0 for s in shard.index), np.asarray(shard.data)


def _location(target: Place, name: str) -> dict[str, Any]:
  return {"driver": "zarr3", "kvstore": places.kvstore(target / name)}


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
