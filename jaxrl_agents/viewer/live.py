"""Where a run stands now, from the files that it is writing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_agents import file_digests, service_log
from jaxrl_agents.service_log import State
from jaxrl_agents.viewer import inputs, stories

_ROWS = 400


@dataclasses.dataclass(frozen=True)
class Live:
  """A look at a run.

  Attributes:
    name: of its folder.
    now: time of the look, seconds since the epoch.
    rows: {phase: its newest rows of metrics, by step}.
    held_out: as of inputs.Run.
    services: {service: its newest states}.
    steps: of reinforcement learning in all; 0 if the summary does not say it yet.
  """

  name: str
  now: float
  rows: Mapping[str, Sequence[Mapping[str, Any]]]
  held_out: Sequence[Mapping[str, Any]]
  services: Mapping[str, Sequence[State]]
  steps: int


def read(workdir: str | Path) -> Live:
  """Looks at the folder of a run. Files that are missing, damaged, or just being written are no
  errors: what they hold is left out.

  Raises:
    ValueError: there is no such folder.
  """
  folder = Path(workdir)
  if not folder.is_dir():
    raise ValueError(f"no folder {folder}; --workdir names the folder that a run writes to")
  try:
    summary = file_digests.read_record((folder / "summary.json").read_bytes())
  except (OSError, ValueError):
    summary = {}
  steps = stories.options(summary).get("learner.steps", "")
  return Live(
    folder.resolve().name,
    time.time(),
    _rows(folder / "metrics.jsonl"),
    inputs.read_held_out(folder / "evaluations"),
    service_log.read(folder / "services"),
    int(steps) if steps.isdecimal() else 0,
  )


def _rows(path: Path) -> dict[str, list[Mapping[str, Any]]]:
  """The last writing of each step counts, as a resumed run repeats some."""
  found: dict[str, dict[int, Mapping[str, Any]]] = {}
  for line in service_log.tail(path)[-_ROWS:]:
    try:
      row = file_digests.read_record(line)
      phase, step = str(row["phase"]), int(row["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
      continue
    found.setdefault(phase, {})[step] = row
  return {phase: [rows[step] for step in sorted(rows)] for phase, rows in found.items()}
