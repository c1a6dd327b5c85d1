"""Frozen sets of files: a folder with a manifest that holds the SHA-256 of every file.

A folder appears complete or not at all, and files whose hashes differ are refused: the ids in a
task have no meaning with another corpus.

    manifest.json     {"sha256": {file: digest of its content}, ..., digest of the manifest}
    NAME.gz           compressed; its digest is that of the content before compression
    NAME              uncompressed
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from jaxrl_agents import file_digests, full_disk
from jaxrl_agents.corpus import readers

MANIFEST = "manifest.json"
MAX_BYTES = 4 << 30
"""Bytes of one file of a set, unpacked."""


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
  """One JSON object a line, keys sorted: equal records give equal bytes."""
  return "".join(json.dumps(record, sort_keys=True) + "\n" for record in records).encode()


def write(
  folder: str | os.PathLike[str], contents: Mapping[str, bytes], manifest: Mapping[str, Any]
) -> None:
  """Writes a set of files and its manifest; does nothing if the folder holds the same set.

  Args:
    folder: does not exist yet, is empty, or holds this set.
    contents: {file name: content}; a name that ends in ".gz" is stored compressed.
    manifest: further entries of the manifest.

  Raises:
    ValueError: the folder holds something else.
  """
  folder = pathlib.Path(folder)
  folder.parent.mkdir(parents=True, exist_ok=True)
  hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
  with (
    full_disk.named(folder.parent),
    tempfile.TemporaryDirectory(dir=folder.parent, prefix=".writing_") as name,
  ):
    place = pathlib.Path(name) / "set"
    place.mkdir()
    for file, content in contents.items():
      stored = gzip.compress(content, 6, mtime=0) if file.endswith(".gz") else content
      (place / file).write_bytes(stored)
    record = file_digests.with_digest({**manifest, "sha256": hashes})
    (place / MANIFEST).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    if folder.exists():
      if _hashes(folder) == hashes:
        return
      if any(folder.iterdir()):
        raise ValueError(
          f"{folder} holds something else, or a set whose {MANIFEST} is missing or damaged; remove "
          "it, or name an empty folder"
        )
      folder.rmdir()
    try:
      place.rename(folder)
    except OSError:
      if _hashes(folder) != hashes:  # else another process was first, with the same content
        raise


def _hashes(folder: pathlib.Path) -> Any:
  """The hashes in the manifest of a folder; None if it cannot be read."""
  try:
    return file_digests.read_record((folder / MANIFEST).read_bytes()).get("sha256")
  except (OSError, ValueError):
    return None


def read_manifest(folder: str | os.PathLike[str], *, maker: str) -> dict[str, Any]:
  """The manifest of a set. `maker` is the script that makes such sets, for the error message.

  Raises:
    ValueError: there is no manifest, or it holds no hashes.
  """
  path = pathlib.Path(folder) / MANIFEST
  if not path.is_file():
    raise ValueError(f"{folder} has no {MANIFEST}; make the set with {maker}")
  try:
    manifest = file_digests.read_record(readers.read_bytes(path))
  except ValueError as error:
    raise ValueError(
      f"{path} is damaged: {error}; restore the folder from a copy, or remove it and make it again "
      f"with {maker}"
    ) from None
  if not isinstance(manifest.get("sha256"), dict):
    raise ValueError(f"{path} has no field 'sha256'; make the set again with {maker}")
  return manifest


def read(
  folder: str | os.PathLike[str], file: str, manifest: Mapping[str, Any], *, maker: str
) -> bytes:
  """The content of one file of a set, checked against the manifest.

  Raises:
    ValueError: the file is missing, is not a whole gzip file, or has other content.
  """
  path = pathlib.Path(folder) / file
  if not path.is_file():
    raise ValueError(f"{path} does not exist; make the set again with {maker}")
  try:
    found = _digest(path)  # before the content is held: what is not of the set takes no memory
    content = b"" if found != manifest["sha256"].get(file) else readers.read_bytes(path, MAX_BYTES)
  except ValueError as error:
    raise ValueError(f"{error}; make the set again with {maker}") from error
  wanted = manifest["sha256"].get(file)
  if found != wanted:
    raise ValueError(
      f"{path} has sha256 {found}, but the manifest says {wanted}; a set is frozen: restore the "
      f"file or make the set again with {maker}"
    )
  return content


def _digest(path: pathlib.Path) -> str:
  digest, size = hashlib.sha256(), 0
  with readers.opened(path) as file:
    while block := file.read(1 << 20):
      digest.update(block)
      size += len(block)
      if size > MAX_BYTES:
        raise readers.too_large(path, MAX_BYTES)
  return digest.hexdigest()
