"""Which tasks a step trains on: levels drawn by phase, every task once per epoch of its level.

The stream's whole state is a small JSON object that is saved with each checkpoint, so a run that is
killed and started again goes on with the next task: none is lost, none is trained twice in an
epoch.
Source: Context-1's difficulty curriculum (few hops first, many hops later).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from jaxrl_agents.types import Task


class TaskStream:
  """An endless, resumable stream of tasks.

  Invariant: within one epoch of a level, a task is handed out at most once; equal (tasks, seed,
    state) give equal streams.
  """

  def __init__(self, tasks: Sequence[Task], seed: int, state: dict[str, Any] | None = None):
    if not tasks:
      raise ValueError("no tasks to train on; make some with scripts/synthesize.py")
    levels: dict[int, list[Task]] = {}
    for task in sorted(tasks, key=lambda t: t.id):
      levels.setdefault(int(task.facts.get("level", 0)), []).append(task)
    self._levels = levels
    self._seed = seed
    self._drawn = {int(k): v for k, v in (state or {}).get("drawn", {}).items()}

  def next(self, count: int, step: int, level_weights: Sequence[float]) -> list[Task]:
    """The `count` tasks of `step`; `level_weights[i]` is the share of level i (the last: and
    above).
    """
    rng = random.Random(f"{self._seed} step {step}")
    present = sorted(self._levels)
    weights = [level_weights[min(level, len(level_weights) - 1)] for level in present]
    if not sum(weights):
      raise ValueError(
        f"level weights {tuple(level_weights)} give no weight to the levels present, {present}"
      )
    return [self._draw(level) for level in rng.choices(present, weights, k=count)]

  def state(self) -> dict[str, Any]:
    """JSON: how many tasks of each level were handed out."""
    return {"drawn": {str(level): count for level, count in self._drawn.items()}}

  def _draw(self, level: int) -> Task:
    tasks = self._levels[level]
    count = self._drawn.get(level, 0)
    epoch, position = divmod(count, len(tasks))
    self._drawn[level] = count + 1
    order = random.Random(f"{self._seed} level {level} epoch {epoch}").sample(tasks, len(tasks))
    return order[position]


def phase_value(values: Sequence[float], step: int, steps: int) -> float:
  """The value of the phase that `step` of `steps` falls in, the phases being equally long.

  Context-1 anneals beta between epochs: values (4, 3.5, 3, 2.5, 2) are those of its five epochs.
  """
  return values[min(step * len(values) // max(steps, 1), len(values) - 1)]
