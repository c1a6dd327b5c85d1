"""Reads the folder of a training run, complete or not, and samples the episodes to show.

A run that is in progress, was interrupted, or lost a line still gets a page: what could not be read
becomes a sentence in `Run.problems`, which the page shows.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_agents import file_digests, service_log
from jaxrl_agents.service_log import State
from jaxrl_agents.types import Group, Trajectory

_ORDER = ("base", "warm", "trained")


@dataclasses.dataclass(frozen=True)
class Run:
  """The scalar record of one run.

  Attributes:
    name: name of the run's folder.
    rows: one mapping per (phase, step), in the order first written; the last writing of a step
      wins, because an interrupted run repeats the steps after its checkpoint.
    summary: summary.json, empty while the run has not finished.
    problems: sentences about what is missing or unreadable.
    held_out: what the evaluator found of each version, see `read_held_out`.
    services: {service: its states} (service_log).
  """

  name: str
  rows: tuple[Mapping[str, Any], ...]
  summary: Mapping[str, Any]
  problems: tuple[str, ...]
  held_out: tuple[Mapping[str, Any], ...] = ()
  services: Mapping[str, Sequence[State]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """Groups of one moment of a run: `key` is the file's stem, `title` its name on the page."""

  key: str
  title: str
  groups: tuple[Group, ...]


def names(workdirs: Sequence[str | Path]) -> list[str]:
  """The last parts of each folder's path, as many as tell all of them apart: ["runs/0"] is "0", and
  ["a/run", "b/run"] stay as they are. The same folder twice has the same name twice.
  """
  paths = [Path(workdir).resolve() for workdir in workdirs]
  ends = lambda count: ["/".join(path.parts[-count:]) for path in paths]
  apart = lambda found: len(set(found)) == len(set(paths))
  return next(filter(apart, map(ends, itertools.count(1))))


def read_run(workdir: str | Path) -> Run:
  """Reads metrics.jsonl and summary.json of `workdir`.

  Raises:
    ValueError: the folder does not exist, or holds none of metrics.jsonl, summary.json,
      trajectories/.
  """
  workdir = Path(workdir)
  if not workdir.is_dir():
    raise ValueError(
      f"no folder {workdir}; --workdir names the folder that a training run wrote to"
    )
  expected = ("metrics.jsonl", "summary.json", "trajectories")
  if not any((workdir / name).exists() for name in expected):
    raise ValueError(
      f"{workdir} holds none of {', '.join(expected)}; it is not the folder of a training run"
    )
  problems: list[str] = []
  rows = _read_rows(workdir / "metrics.jsonl", problems)
  summary = _read_summary(workdir / "summary.json", problems)
  return Run(
    workdir.resolve().name,
    tuple(rows),
    summary,
    tuple(problems),
    tuple(read_held_out(workdir / "evaluations")),
    service_log.read(workdir / "services"),
  )


def read_held_out(folder: Path) -> list[Mapping[str, Any]]:
  """The records of an evaluator (fleet.version_scores), by version; damaged ones are left out.

  Each has "version", "step" (steps learnt before it), "time" and "scores", {metric: mean over
  tasks}.
  """
  found: list[Mapping[str, Any]] = []
  for path in sorted(folder.glob("v*.json")):
    try:
      record = file_digests.read_record(path.read_bytes())
      int(record["version"]), int(record["step"]), float(record["time"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
      continue
    if isinstance(record.get("scores"), Mapping):
      found.append(record)
  return found


def _read_rows(path: Path, problems: list[str]) -> list[Mapping[str, Any]]:
  if not path.exists():
    problems.append("No metrics.jsonl: there are no curves to draw.")
    return []
  rows: dict[tuple[str, int], Mapping[str, Any]] = {}
  bad_lines = []
  with path.open("rb") as file:
    for number, line in enumerate(file, start=1):
      if not line.strip():
        continue
      try:
        row = file_digests.read_record(line)
        key = (str(row["phase"]), int(row["step"]))
      except (ValueError, KeyError, TypeError, OverflowError):
        bad_lines.append(number)
        continue
      rows[key] = {**row, "phase": key[0], "step": key[1]}
  if bad_lines:
    listed = ", ".join(map(str, bad_lines[:5])) + (" …" if len(bad_lines) > 5 else "")
    problems.append(
      f"metrics.jsonl: {len(bad_lines)} unreadable line(s) left out (line {listed}); "
      "a line is a JSON object with phase and step."
    )
  return list(rows.values())


def _read_summary(path: Path, problems: list[str]) -> Mapping[str, Any]:
  if not path.exists():
    problems.append(
      "No summary.json yet: the run has not finished, so there is no final evaluation."
    )
    return {}
  try:
    return file_digests.read_record(path.read_bytes())
  except ValueError as error:
    problems.append(f"summary.json is damaged: {error}; the final evaluation is left out.")
    return {}


def sample_files(folder: Path) -> list[tuple[str, str, Path]]:
  """Chooses the trajectory files to show: (key, title, path), in the order of the run.

  Files are named by series and step, "rl_00040.npz": of each series the first, middle and last are
  taken. A name without a step, "eval_trained.npz", is a moment of its own and always taken.
  """
  series: dict[str, list[tuple[int, Path]]] = {}
  single: list[tuple[str, str, Path]] = []
  for path in sorted(folder.glob("*.npz")):
    match = re.fullmatch(r"(.*?)[-_.]?(\d+)", path.stem)
    if match:
      series.setdefault(match[1], []).append((int(match[2]), path))
    else:
      title = re.sub(r"^eval(uation)?[-_]", "evaluation, ", path.stem).replace("_", " ")
      single.append((path.stem, title, path))
  single.sort(
    key=lambda entry: (next((i for i, w in enumerate(_ORDER) if w in entry[0]), 9), entry)
  )
  chosen = []
  for name, numbered in series.items():
    numbered.sort()
    positions = sorted({0, (len(numbered) - 1) // 2, len(numbered) - 1})
    for step, path in (numbered[i] for i in positions):
      words = name.replace("_", " ").strip()
      title = f"step {step}" if words in ("", "rl", "step") else f"{words} step {step}"
      chosen.append((path.stem, title, path))
  return chosen + single


def total_reward(trajectory: Trajectory) -> float | None:
  """The weighted reward that the run recorded, or None (a failed episode has none)."""
  return None if trajectory.error else trajectory.metrics.get("reward")


def spread(count: int, limit: int) -> list[int]:
  """`limit` of the positions 0..count-1, evenly spaced, both ends included."""
  if count <= limit:
    return list(range(count))
  if limit == 1:
    return [0]
  return sorted({round(i * (count - 1) / (limit - 1)) for i in range(limit)})


def sample_rollouts(trajectories: Sequence[Trajectory], limit: int) -> list[int]:
  """Positions of at most `limit` rollouts, evenly spaced by reward; failures count as the worst."""
  order = sorted(
    range(len(trajectories)),
    key=lambda i: (
      total_reward(trajectories[i]) is not None,
      total_reward(trajectories[i]) or 0.0,
      i,
    ),
  )
  return sorted(order[position] for position in spread(len(order), limit))
