"""The folder of a run: where everything it leaves is found again.

metrics.jsonl     one JSON object per optimizer step or batch: phase, step, wall_s, numbers
trajectories/     what was played, a file per step
checkpoints/      orbax steps: parameters, optimizer, key, cursor, ledger
weights/          published versions
warm_start/       the policy after supervised warm-up (policy.safetensors)
trained/          the policy after reinforcement learning
summary.json      the result
report.html       the result, to look at
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import psutil


class Workdir:
  """Paths and append-only metrics of one run. Invariant: a line of metrics is whole or absent."""

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path).expanduser().resolve()
    self.path.mkdir(parents=True, exist_ok=True)
    self.trajectories = self._folder("trajectories")
    self.checkpoints = self._folder("checkpoints")
    self.weights = self._folder("weights")
    self.demonstrations = self.path / "demonstrations"
    self.warm_start = self.path / "warm_start"
    self.trained = self.path / "trained"
    self.metrics = self.path / "metrics.jsonl"
    self.summary = self.path / "summary.json"
    self.report = self.path / "report.html"

  def log(self, phase: str, step: int, numbers: Mapping[str, float]) -> None:
    """Appends one line to metrics.jsonl; numbers that are not finite become null."""
    finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
    line = json.dumps({"phase": phase, "step": step, "time": time.time(), **finite})
    with self.metrics.open("a") as file:
      file.write(line + "\n")

  def drop_metrics_from(self, phase: str, step: int) -> None:
    """Removes the lines of `phase` at or after `step`: a resumed run writes them again."""
    if not self.metrics.exists():
      return
    kept = [line for line in self.lines() if line["phase"] != phase or line["step"] < step]
    fresh = self.metrics.with_suffix(".new")
    fresh.write_text("".join(json.dumps(line) + "\n" for line in kept))
    os.replace(fresh, self.metrics)

  def lines(self) -> list[dict[str, Any]]:
    """The metrics so far; a line cut off by a crash is left out."""
    found = []
    for text in self.metrics.read_text().splitlines() if self.metrics.exists() else []:
      try:
        found.append(json.loads(text))
      except json.JSONDecodeError:
        continue
    return found

  def read_summary(self) -> dict[str, Any]:
    """summary.json so far."""
    return json.loads(self.summary.read_text()) if self.summary.exists() else {}

  def merge_summary(self, part: Mapping[str, Any]) -> dict[str, Any]:
    """Adds `part` to summary.json, section by section, by an atomic rename; returns the whole."""
    whole = self.read_summary()
    for key, value in part.items():
      old = whole.get(key)
      whole[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    fresh = self.summary.with_suffix(".new")
    fresh.write_text(json.dumps(whole, indent=2) + "\n")
    os.replace(fresh, self.summary)
    return whole

  def _folder(self, name: str) -> pathlib.Path:
    folder = self.path / name
    folder.mkdir(exist_ok=True)
    return folder


def rss_mib() -> float:
  """Resident memory of this process and its children, MiB."""
  me = psutil.Process()
  total = me.memory_info().rss
  for child in me.children(recursive=True):
    try:
      total += child.memory_info().rss
    except psutil.Error:
      continue
  return total / 2**20
