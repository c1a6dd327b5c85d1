"""Files of the differences between two versions: streams of bytes through tensorstore, verified.

Each process that publishes writes one array of bytes for each kind of stream (weights.streams),
with those of all its shards one after the other: zarr3, zstd. The manifest says where those of a
shard begin, and has their digest.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorstore as ts

from jaxrl_agents import full_disk
from jaxrl_agents.weights import boxes, places, streams, timeouts
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights.manifest import CorruptWeights, Manifest, Shard, Tensor
from jaxrl_agents.weights.places import Folder, Place

ZSTD_LEVEL = 1
"""Level of compression: higher ones find nothing more in literals that hardly repeat."""

CHUNK_BYTES = 1 << 20

_CACHE_BYTES = 64 * CHUNK_BYTES

_THREADS = min(8, os.cpu_count() or 1)

Piece = tuple[str, tuple[int, ...], np.ndarray]
"""(name of the tensor, offset of a shard, its differences: unsigned, in the shape of the shard)"""


def write_part(
  pieces: Iterable[Piece], tensors: Sequence[Tensor], version: int, folder: Folder, *, part: int = 0
) -> None:
  """Writes the differences that this process holds of a version that was begun (store.begin).

  Args:
    pieces: its shards; each is encoded in a thread.
    tensors: all tensors, without shards, with their digests; the same in every process.
    version: the same in every process.
    folder: of all versions.
    part: number of this process.
  """
  target = manifest_lib.files(folder, version)
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    encoded = list(pool.map(_encoded, pieces))
  ends = dict.fromkeys(streams.NAMES, 0)
  shards: dict[str, list[Shard]] = {tensor.name: [] for tensor in tensors}
  for name, offset, shape, found in encoded:
    located = []
    for kind, stream in found.items():
      located.append((kind, ends[kind], stream.size))
      ends[kind] += stream.size
    shards[name].append(Shard(offset, shape, _digest(found), part, tuple(located)))
  with full_disk.named(target):
    for kind, size in ends.items():
      if size:
        whole = np.concatenate([found[kind] for *_, found in encoded if kind in found])
        opening = ts.open(_spec(target, part, kind, size), create=True, open=True)
        timeouts.result(timeouts.result(opening, target).write(whole), target)
    written = Manifest(version, None, tuple(_with(t, shards[t.name]) for t in tensors))
    manifest_lib.part(target, part).write_text(manifest_lib.text_of(written), encoding="utf-8")


class Differences:
  """The differences of one version to its base, read by boxes. Any number of threads may read.

  Args:
    folder: of all versions.
    manifest: of the version.

  Raises:
    CorruptWeights: a file is missing or unreadable.
  """

  def __init__(self, folder: Folder, manifest: Manifest):
    self._version = manifest.version
    self._tensors = {tensor.name: tensor for tensor in manifest.tensors}
    target = manifest_lib.files(folder, manifest.version)
    kinds = {
      (shard.part, kind)
      for tensor in manifest.tensors
      for shard in tensor.shards
      for kind, *_ in shard.streams
    }
    self._arrays: dict[tuple[int, str], Any] = {}
    # Small shards share chunks, which are then decoded once.
    context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
    for part, kind in sorted(kinds):
      try:
        location = _location(target, part, kind)
        # They never change, so that what is in the cache needs not be asked for again.
        opening = ts.open(location, read=True, recheck_cached_data="open", context=context)
        self._arrays[part, kind] = timeouts.result(opening, target)
      except ValueError as error:
        raise CorruptWeights(
          f"differences of version {self._version}: {kind!r} of part {part} cannot be opened: "
          f"{error}"
        ) from None

  def add(self, name: str, box: tuple[slice, ...], onto: np.ndarray) -> None:
    """Adds the differences of a box of a tensor to `onto`, of the shape of the box, in place.

    Raises:
      CorruptWeights: streams are damaged, or no shard holds a part of the box.
    """
    left = onto.size
    for shard in self._tensors[name].shards:
      both = boxes.overlap(shard.offset, shard.shape, box)
      if both is None:
        continue
      target = onto[boxes.within(both, tuple(s.start for s in box))]
      left -= target.size
      if not shard.streams:
        continue
      try:
        self._add(shard, both, target)
      except ValueError as error:
        raise CorruptWeights(
          f"differences of version {self._version}: {name}, shard at {list(shard.offset)} of shape "
          f"{list(shard.shape)}, cannot be used: {error}"
        ) from None
    if left:
      raise CorruptWeights(
        f"differences of version {self._version}: {left} numbers of {name} are in no shard"
      )

  def _add(self, shard: Shard, both: tuple[slice, ...], target: np.ndarray) -> None:
    reads = {
      kind: self._arrays[shard.part, kind][first : first + size].read()
      for kind, first, size in shard.streams
    }
    place = f"version {self._version}"
    found = {kind: np.asarray(timeouts.result(read, place)) for kind, read in reads.items()}
    if _digest(found) != shard.sha256:
      raise ValueError("it does not have its published digest")
    if target.flags.c_contiguous and target.shape == shard.shape:
      streams.add(found, target.reshape(-1))
      return
    whole = np.zeros(shard.shape, target.dtype)
    streams.add(found, whole.reshape(-1))
    target += whole[boxes.within(both, shard.offset)]


def _encoded(piece: Piece) -> tuple[str, tuple[int, ...], tuple[int, ...], dict[str, np.ndarray]]:
  name, offset, values = piece
  return name, offset, values.shape, streams.encode(np.ascontiguousarray(values).reshape(-1))


def _digest(found: Mapping[str, np.ndarray]) -> str:
  whole = hashlib.sha256()
  for kind in streams.NAMES:
    if kind in found:
      whole.update(np.ascontiguousarray(found[kind]).data)
  return whole.hexdigest()


def _with(tensor: Tensor, shards: Sequence[Shard]) -> Tensor:
  return Tensor(tensor.name, tensor.shape, tensor.dtype, tuple(shards), tensor.before, tensor.after)


def _location(target: Place, part: int, kind: str) -> dict[str, Any]:
  return {"driver": "zarr3", "kvstore": places.kvstore(target / f"part_{part}" / kind)}


def _spec(target: Place, part: int, kind: str, size: int) -> dict[str, Any]:
  metadata = {
    "shape": [size],
    "data_type": "uint8",
    "chunk_grid": {
      "name": "regular",
      "configuration": {"chunk_shape": [min(size, CHUNK_BYTES)]},
    },
    "codecs": [
      {"name": "bytes"},
      {"name": "zstd", "configuration": {"level": ZSTD_LEVEL}},
    ],
  }
  return {**_location(target, part, kind), "metadata": metadata}
