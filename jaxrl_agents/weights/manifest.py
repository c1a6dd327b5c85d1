"""The manifest of a published version of the weights. On a disk it needs the standard library only.

A version exists when its manifest does: shard files are written first, the manifest last, at once.
A process that watches for versions (samplers, the real-time loop) needs only this file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import re
import time
from typing import Any, overload

from jaxrl_agents.weights import places
from jaxrl_agents.weights.places import Folder, Place

NAME = re.compile(r"manifest_v(\d{10})\.json")


class CorruptWeights(Exception):
  """The data read differ from the data published; the message names the file or the shard."""


@dataclasses.dataclass(frozen=True)
class Shard:
  """A box of a tensor, and the digest of its content.

  Attributes:
    offset: first index along each axis.
    shape: extent along each axis.
    sha256: of the values' bytes in C order after reading, hexadecimal; of differences, of their
      streams one after the other.
    part: of differences, the number of the process that wrote them.
    streams: of differences, (name, first byte, number of bytes) of each stream in that part.
  """

  offset: tuple[int, ...]
  shape: tuple[int, ...]
  sha256: str
  part: int = 0
  streams: tuple[tuple[str, int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One array: its place in the tree ("moe_layers.attention.qkv"), sizes and shards.

  Attributes:
    before, after: digests (weights.ordered_bits) of the array that the differences are added to,
      and of the sum; (0, 0) where they are not recorded.
  """

  name: str
  shape: tuple[int, ...]
  dtype: str
  shards: tuple[Shard, ...]
  before: tuple[int, int] = (0, 0)
  after: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True)
class Manifest:
  """One version of the weights.

  Attributes:
    version: number of optimizer steps.
    base: the version that its files are differences from; None if they are complete.
    tensors: every array, in the order of the tree.
    created_s: seconds since the epoch.
  """

  version: int
  base: int | None
  tensors: tuple[Tensor, ...]
  created_s: float = dataclasses.field(default_factory=time.time)


def path(folder: Folder, version: int) -> Place:
  """The path of the manifest of a version."""
  return places.of(folder) / f"manifest_v{version:010d}.json"


@overload
def files(folder: pathlib.Path, version: int) -> pathlib.Path: ...


@overload
def files(folder: Folder, version: int) -> Place: ...


def files(folder: Folder, version: int) -> Place:
  """The folder of the shard files of a version."""
  return places.of(folder) / f"v{version:010d}"


def differences(folder: Folder) -> Place:
  """The folder of versions that are differences from others, beside the complete ones."""
  return places.of(folder) / "differences"


def part(target: Place, number: int) -> Place:
  """What a process says of the shards that it wrote to the files of a version, until all have."""
  return target / f"part_{number}.json"


def write(folder: Folder, manifest: Manifest) -> None:
  """Makes a version visible, atomically and durably; its shard files must be complete."""
  places.write_durably(path(folder, manifest.version), text_of(manifest))


def read(folder: Folder, version: int) -> Manifest:
  """The manifest of a version.

  Raises:
    FileNotFoundError: there is none; names the versions there are.
    CorruptWeights: the file is damaged.
  """
  place = path(folder, version)
  try:
    found = parse(place.read_bytes(), place)
    if found.version != version:
      raise CorruptWeights(f"{place} is the manifest of version {found.version}; publish it again")
    return found
  except FileNotFoundError:
    raise FileNotFoundError(
      f"no weights of version {version} in {folder}; it holds versions {versions(folder)}"
    ) from None


def text_of(manifest: Manifest) -> str:
  """The content of a manifest's file: {"sha256": digest of what follows, "manifest": fields}."""
  content = dataclasses.asdict(manifest)
  return json.dumps({"sha256": _digest(content), "manifest": content})


def parse(text: bytes, place: Place) -> Manifest:
  """The manifest in the content of the file `place`.

  Raises:
    CorruptWeights: it is not what `text_of` wrote.
  """
  try:
    whole = json.loads(text)
    raw = whole["manifest"]
    if whole["sha256"] != _digest(raw):
      raise ValueError("its content does not have its digest")
    tensors = tuple(map(_tensor, raw["tensors"]))
    return Manifest(raw["version"], raw["base"], tensors, raw["created_s"])
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise CorruptWeights(
      f"{place} is damaged ({type(error).__name__}: {error}); publish the version again, or fetch "
      f"another of versions {versions(place.parent)}"
    ) from None


def _tensor(raw: dict[str, Any]) -> Tensor:
  shards = tuple(
    Shard(
      tuple(s["offset"]),
      tuple(s["shape"]),
      s["sha256"],
      s["part"],
      tuple((name, first, size) for name, first, size in s["streams"]),
    )
    for s in raw["shards"]
  )
  before, after = ((int(first), int(second)) for first, second in (raw["before"], raw["after"]))
  return Tensor(raw["name"], tuple(raw["shape"]), raw["dtype"], shards, before, after)


def _digest(content: Any) -> str:
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def versions(folder: Folder) -> list[int]:
  """All published versions, ascending; none if the folder does not exist."""
  matches = map(NAME.fullmatch, places.names(places.of(folder), "manifest_v"))
  return sorted(int(m.group(1)) for m in matches if m)


def stored_bytes(folder: Folder, version: int) -> int:
  """Bytes of the shard files of a version on a disk; of its differences, if it was published so."""
  found = (places.stored_bytes(files(each, version)) for each in (differences(folder), folder))
  return next(filter(None, found), 0)
