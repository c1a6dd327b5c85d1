"""Rows of published data sets: a JSON list, JSON lines, CSV or TSV, each also with `.gz`."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl_agents.corpus import folder_files, readers
from jaxrl_agents.types import Split

SUFFIXES = (".json", ".jsonl", ".csv", ".tsv")
SPLIT_NAMES: Mapping[str, Split] = {
  "train": "train",
  "training": "train",
  "dev": "dev",
  "val": "dev",
  "valid": "dev",
  "validation": "dev",
  "test": "test",
}
"""{word in the name of a file: the split of its rows}."""
MAX_FIELD_CHARACTERS = 16 << 20
"""Characters of one field of a CSV or TSV file."""

_PATCHED_REPOSITORY = frozenset({"instance_id", "base_commit", "patch"})
"""Fields of a row of SWE-bench and of the sets in its form."""


def files(path: pathlib.Path) -> list[pathlib.Path]:
  """The file that `path` is, or the files of rows below the folder that it is.

  Raises:
    ValueError: there is none.
  """
  found = [path] if path.is_file() else []
  if path.is_dir():
    every = folder_files.below(path, lambda name: name.startswith("."))
    found = [file for file in every if suffix(file) in SUFFIXES]
  if not found or suffix(found[0]) not in SUFFIXES:
    raise ValueError(
      f"{path}: no file of rows; name a file that ends in {', '.join(SUFFIXES)} (or these with "
      ".gz), or a folder of some. Convert .parquet to JSON lines first"
    )
  return found


def suffix(path: pathlib.Path) -> str:
  """The suffix of a file name, in lower case and without `.gz`."""
  return pathlib.Path(path.name.lower().removesuffix(".gz")).suffix


def split_named(name: str) -> Split | None:
  """The split that a name says as one of its words: "hotpot_dev_distractor_v1" is of "dev"."""
  words = re.findall("[a-z]+", name.lower())
  return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def read(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (place, row) of each row; the place names file and row in error messages.

  Raises:
    ValueError: the file cannot be read as its suffix says, or its rows are tasks about
      repositories, which cannot be run here.
  """
  for place, row in _rows(path):
    refuse_repositories(place, row)
    yield place, row


def refuse_repositories(place: str, row: Mapping[str, Any]) -> None:
  """Raises ValueError if a row is a task of SWE-bench's form."""
  if set(row) >= _PATCHED_REPOSITORY:
    raise ValueError(
      f"{place}: {str(row['instance_id'])[:80]!r} is a task about the repository "
      f"{str(row.get('repo', ''))[:80]!r} at a commit (a row of SWE-bench's form). It is judged by "
      "running tests in an image of that repository with everything that it depends on. The row "
      "holds no image, and this project builds none. If you have the files of the image, "
      "examples/harbor makes a task of the row; or make coding tasks of source that is on this "
      "machine with scripts/make_coding_tasks.py"
    )


def _rows(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  if suffix(path) == ".jsonl":
    yield from ((f"{path}, line {number}", row) for number, row in readers.read_jsonl(path))
  elif suffix(path) == ".json":
    yield from _json_list(path)
  else:
    yield from _table(path, "\t" if suffix(path) == ".tsv" else ",")


def _json_list(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  try:
    listed = json.loads(readers.read_text(path, readers.MAX_COLLECTION_BYTES))
  except (json.JSONDecodeError, RecursionError) as error:
    raise ValueError(
      f"{path}: not JSON ({error}); rename it .jsonl if it has a row a line"
    ) from None
  if not isinstance(listed, list):
    raise ValueError(f"{path}: a JSON {type(listed).__name__}; write a list of rows")
  for number, row in enumerate(listed, 1):
    if not isinstance(row, dict):
      raise ValueError(f"{path}, row {number}: a JSON {type(row).__name__}; write an object")
    yield f"{path}, row {number}", row


def _table(path: pathlib.Path, delimiter: str) -> Iterator[tuple[str, dict[str, Any]]]:
  text = readers.read_text(path, readers.MAX_COLLECTION_BYTES)
  csv.field_size_limit(MAX_FIELD_CHARACTERS)
  table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
  try:
    for number, row in enumerate(table, 1):
      yield f"{path}, row {number}", {name: row[name] for name in row if isinstance(name, str)}
  except csv.Error as error:
    raise ValueError(f"{path}: cannot be read as a table ({error}); write it anew") from None
