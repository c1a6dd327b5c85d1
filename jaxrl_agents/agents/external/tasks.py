"""Tasks of an existing agent: rows of a file, or of a function."""

from __future__ import annotations

import hashlib
import json
import pathlib
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import import_path
from jaxrl_agents.types import Split, Task

REPLY_S = 60.0
"""Seconds between bytes of the reply of a URL with tasks."""

SPLITS: tuple[Split, ...] = get_args(Split)
_OF_TEN: Mapping[int, Split] = {8: "dev", 9: "test"}
"""Rows without a split go by a digest of their id: eight tenths are for training."""


class ExternalTasks(Tasks):
  """The rows as tasks.

  Args:
    source: a file or a URL of JSON lines, or the import path of a function.

  Raises:
    ValueError: there are no rows, or one of them is no task; it says which.
  """

  def __init__(self, source: str):
    if not source:
      raise ValueError(
        "external.tasks names no tasks; set it to a file or a URL of JSON lines, or to a function "
        "package.module:name"
      )
    rows = list(_rows(source))
    found: dict[str, list[Task]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for i, row in enumerate(rows):
      task = _task(row, f"row {i + 1} of external.tasks={source}")
      if task.id in seen:
        raise ValueError(f"external.tasks={source} has two rows with the id {task.id!r}")
      seen.add(task.id)
      found[task.split].append(task)
    if not seen:
      raise ValueError(f"external.tasks={source} has no rows")
    self._tasks = found
    text = json.dumps([dict(row) for row in rows], sort_keys=True, default=str)
    self._digest = hashlib.sha256(text.encode()).hexdigest()

  @property
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split."""
    return self._tasks

  @property
  def digest(self) -> str:
    """A digest of the rows."""
    return self._digest


def _rows(source: str) -> Iterable[Any]:
  if source.startswith(("http://", "https://")):
    try:
      with urllib.request.urlopen(source, timeout=REPLY_S) as reply:
        return _parsed(reply.read().decode("utf-8"), source)
    except OSError as error:
      raise ValueError(f"external.tasks={source}: {error}") from error
  file = pathlib.Path(source)
  if ":" in source and not file.exists():
    return import_path.load(source, "external.tasks")()
  if not file.is_file():
    raise ValueError(f"external.tasks={source}: there is no such file")
  return _parsed(file.read_text("utf-8"), source)


def _parsed(lines: str, source: str) -> list[Any]:
  rows = []
  for number, line in enumerate(lines.split("\n"), 1):
    if line.strip():
      try:
        rows.append(json.loads(line))
      except ValueError as error:
        raise ValueError(f"{source} line {number} is not valid JSON: {error}") from None
  return rows


def _task(row: Any, place: str) -> Task:
  if not isinstance(row, Mapping):
    raise ValueError(f"{place} is a {type(row).__name__}; write an object with id and prompt")
  for name in ("id", "prompt"):
    if not isinstance(row.get(name), str) or not row[name]:
      raise ValueError(f"{place} has no text {name!r}")
  last = hashlib.sha256(row["id"].encode()).digest()[-1] % 10
  split = row.get("split", _OF_TEN.get(last, "train"))
  if split not in SPLITS:
    raise ValueError(f"{place} has split={split!r}; it must be one of {', '.join(SPLITS)}")
  facts = {k: v for k, v in row.items() if k not in ("id", "prompt", "split")}
  return Task(row["id"], "external", row["prompt"], facts, split)
