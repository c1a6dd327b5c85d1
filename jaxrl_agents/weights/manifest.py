"""The manifest of a published version of the weights. Standard library only.

A version exists when its manifest does: shard files are written first, the manifest last, by one
atomic rename. A process that watches for versions (samplers, the real-time loop) needs only this
file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import time
from typing import Any

from jaxrl_agents import durable

Folder = str | pathlib.Path
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


def path(folder: Folder, version: int) -> pathlib.Path:
  """The path of the manifest of a version."""
  return pathlib.Path(folder) / f"manifest_v{version:010d}.json"


def files(folder: Folder, version: int) -> pathlib.Path:
  """The folder of the shard files of a version."""
  return pathlib.Path(folder) / f"v{version:010d}"


def differences(folder: Folder) -> pathlib.Path:
  """The folder of versions that are differences from others, beside the complete ones."""
  return pathlib.Path(folder) / "differences"


def part(target: pathlib.Path, number: int) -> pathlib.Path:
  """What a process says of the shards that it wrote to the files of a version, until all have."""
  return target / f"part_{number}.json"


def write(folder: Folder, manifest: Manifest) -> None:
  """Makes a version visible, atomically and durably; its shard files must be complete."""
  final = path(folder, manifest.version)
  partial = final.with_suffix(f".{os.getpid()}.tmp")
  with open(partial, "w", encoding="utf-8") as f:
    f.write(text_of(manifest))
  durable.replace(partial, final)


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


def parse(text: bytes, place: pathlib.Path) -> Manifest:
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
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    return []
  matches = (NAME.fullmatch(entry.name) for entry in folder.iterdir())
  return sorted(int(m.group(1)) for m in matches if m)


def stored_bytes(folder: Folder, version: int) -> int:
  """Bytes of the shard files of a version; of its differences, if it was published as such."""
  places = (files(differences(folder), version), files(folder, version))
  place = next((each for each in places if each.is_dir()), places[-1])
  total = 0
  for path in place.rglob("*"):
    with contextlib.suppress(FileNotFoundError):  # of one that is written, locks come and go
      total += path.stat().st_size if path.is_file() else 0
  return total
