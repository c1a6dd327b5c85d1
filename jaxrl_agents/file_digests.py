"""Digests of what a run writes: damage on the disk is found before anything is made of it.

A folder (a checkpoint, weights, an index) has files beside its own:

    digests-0.json    {"parts": P, "files": {path: sha256}}, one such file for each of P processes

Each process hashes every P-th file, since hashing a large checkpoint takes as long as reading it.
A folder is complete when all P digest files exist. A JSON object that is a file or a line of its
own (a summary, a manifest, a line of metrics) holds its digest as its last field:

    {"phase": "rl", "step": 3, ..., "record_sha256": digest of the other fields}
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxrl_agents import durable

FIELD = "record_sha256"
_PATTERN = "digests-{part}.json"
NAME = _PATTERN.format(part=0)
_THREADS = 8


def write(folder: pathlib.Path, *, part: int = 0, parts: int = 1) -> None:
  """Hashes this process's files of a complete folder, and writes its digest file atomically."""
  found = _hashed(folder, _files(folder)[part::parts])
  target = folder / _PATTERN.format(part=part)
  fresh = target.with_suffix(".tmp")
  with fresh.open("w") as file:
    json.dump({"parts": parts, "files": found}, file, indent=1, sort_keys=True)
  durable.replace(fresh, target)


def damage(
  folder: pathlib.Path, *, part: int = 0, parts: int = 1, only: Collection[str] = ()
) -> str:
  """What is wrong with this process's share of a folder's files; "" if nothing is.

  With `only`, the other files are not looked at.
  """
  try:
    expected = _expected(folder)
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    return f"its digests cannot be read ({type(error).__name__}: {error}); the save did not end"
  names = sorted(expected)[part::parts]
  if only:
    names = [name for name in names if name in only]
  missing = [name for name in names if not (folder / name).is_file()]
  if missing:
    return f"{missing[0]} is missing"
  try:
    found = _hashed(folder, [pathlib.PurePath(name) for name in names])
  except OSError as error:
    return f"{error.filename} cannot be read: {error.strerror}"
  wrong = [name for name in names if found[name] != expected[name]]
  return f"{wrong[0]} has other content than was saved" if wrong else ""


def is_there(folder: pathlib.Path) -> bool:
  """Whether a folder has digests; folders that other programs wrote have none."""
  return (folder / NAME).exists()


def of_files(files: Sequence[pathlib.Path]) -> str:
  """One digest of the names and contents of small files, wherever they lie."""
  found = hashlib.sha256()
  for file in files:
    for part in (file.name.encode(), file.read_bytes()):
      found.update(len(part).to_bytes(8) + part)
  return found.hexdigest()


def with_digest(record: Mapping[str, Any]) -> dict[str, Any]:
  """The record with its digest as the last field; it must be plain JSON."""
  plain = json.loads(json.dumps({**record, FIELD: None}))
  del plain[FIELD]
  return {**plain, FIELD: _digest(plain)}


def read_record(text: str | bytes) -> dict[str, Any]:
  """The record in a text, without its digest. One without a digest is taken as it is.

  Raises:
    ValueError: the text is no JSON object, or has another digest; says which.
  """
  try:
    record = json.loads(text, parse_int=_whole)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"it is no JSON ({error})") from None
  if not isinstance(record, dict):
    raise ValueError("it is no JSON object")
  digest = record.pop(FIELD, None)
  if digest is not None and digest != _digest(record):
    raise ValueError("it has other content than was written")
  return record


def _whole(text: str) -> float:
  """The number of a JSON integer; infinite if no float holds it, as its readers need."""
  return int(text) if len(text) < 300 else math.copysign(math.inf, int(text[:2]))


def _digest(record: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _expected(folder: pathlib.Path) -> dict[str, str]:
  first = json.loads((folder / NAME).read_text("utf-8"))
  found = dict(first["files"])
  for part in range(1, int(first["parts"])):
    found |= json.loads((folder / _PATTERN.format(part=part)).read_text("utf-8"))["files"]
  if not all(isinstance(digest, str) for digest in found.values()):
    raise ValueError("a digest is not text")
  return found


def _files(folder: pathlib.Path) -> list[pathlib.PurePath]:
  every = (path for path in folder.rglob("*") if path.is_file())
  return sorted(path.relative_to(folder) for path in every if not path.match("digests-*"))


def _hashed(folder: pathlib.Path, names: list[pathlib.PurePath]) -> dict[str, str]:
  def digest(name: pathlib.PurePath) -> str:
    with (folder / name).open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()

  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    return {
      name.as_posix(): found for name, found in zip(names, pool.map(digest, names), strict=True)
    }
