"""The tasks of each step: levels are drawn by phase, and every task comes once per epoch of its
level.

The state of the stream is a small JSON object that is saved with each checkpoint. A run that is
killed and restarted continues with the next task: no task is lost, and none is trained twice in an
epoch.

Source: Context-1's difficulty curriculum (few hops first, many hops later).
"""

from __future__ import annotations

import hashlib
import json
import numbers
import random
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.types import Task


class TaskStream:
  """A resumable stream of tasks, either endless or of a single epoch.

  Invariant: within one epoch of a level, a task is handed out at most once; equal (tasks, seed,
  state) give equal streams. A single epoch keeps this promise across restarts from `state`, even
  with additional tasks or another seed.
  """

  def __init__(
    self,
    tasks: Sequence[Task],
    seed: int,
    state: dict[str, Any] | None = None,
    *,
    single_epoch: bool = False,
  ):
    self._levels = levels = by_level(tasks)
    self._seed, self._single_epoch = seed, single_epoch
    self._drawn = {int(k): v for k, v in (state or {}).get("drawn", {}).items()}
    self._trained = set((state or {}).get("trained", ()))
    self._epoch: dict[int, dict[str, Task]] = {}
    if single_epoch:
      orders = {level: self._order(level, 0) for level in levels}
      self._epoch = {level: {mark(t): t for t in order} for level, order in orders.items()}

  def next(self, count: int, step: int, level_weights: Sequence[float]) -> list[Task]:
    """The `count` tasks of `step`, of levels drawn by their `shares`. In a single epoch, the share
    of exhausted levels goes to the others, and the last draw may have fewer tasks.

    Raises:
      ValueError: no level present has weight, or a single epoch has no task left.
    """
    rng = random.Random(f"{self._seed} step {step}")
    share = shares(self._levels, level_weights)
    if not self._single_epoch:
      return [self._draw(level) for level in rng.choices([*share], [*share.values()], k=count)]
    left = {level: len(self._fresh(level)) for level, weight in share.items() if weight}
    if not any(left.values()):
      raise ValueError(
        f"a single epoch has 0 tasks left, and step {step} needs {count} of the levels {[*left]}; "
        "make more tasks, or lower learner.steps, learner.groups_per_step or "
        "learner.resample_constant"
      )
    drawn = []
    for _ in range(min(count, sum(left.values()))):
      open_levels = [level for level, n in left.items() if n]
      level = rng.choices(open_levels, [share[each] for each in open_levels])[0]
      left[level] -= 1
      drawn.append(self._draw_once(level))
    return drawn

  def state(self) -> dict[str, Any]:
    """For JSON: how many tasks of each level were handed out; in a single epoch, which ones."""
    drawn = {str(level): count for level, count in self._drawn.items()}
    return {"drawn": drawn} | ({"trained": sorted(self._trained)} if self._single_epoch else {})

  def _fresh(self, level: int) -> list[str]:
    """The keys of a level's tasks that were never handed out, in the order of the epoch."""
    return [mark for mark in self._epoch[level] if mark not in self._trained]

  def _draw_once(self, level: int) -> Task:
    mark = self._fresh(level)[0]
    self._trained.add(mark)
    self._drawn[level] = self._drawn.get(level, 0) + 1
    return self._epoch[level][mark]

  def _order(self, level: int, epoch: int) -> list[Task]:
    tasks = self._levels[level]
    return random.Random(f"{self._seed} level {level} epoch {epoch}").sample(tasks, len(tasks))

  def _draw(self, level: int) -> Task:
    count = self._drawn.get(level, 0)
    epoch, position = divmod(count, len(self._levels[level]))
    self._drawn[level] = count + 1
    return self._order(level, epoch)[position]


def by_level(tasks: Sequence[Task]) -> dict[int, list[Task]]:
  """The tasks of each level, by their ids. The level is the fact "level", 0 where it is missing.

  Raises:
    ValueError: there are no tasks, or the level of one is not a whole number from 0 on.
  """
  if not tasks:
    raise ValueError("no tasks to train on; make some with scripts/make_search_tasks.py")
  levels: dict[int, list[Task]] = {}
  for task in sorted(tasks, key=lambda t: t.id):
    level = task.facts.get("level", 0)
    if not isinstance(level, numbers.Integral) or level < 0:
      raise ValueError(
        f"task {task.id!r} has the field level={level!r}, which learner.level_weights_early takes "
        "as a whole number from 0 on; write such numbers, or give the field another name"
      )
    levels.setdefault(int(level), []).append(task)
  return dict(sorted(levels.items()))


def shares(
  levels: Mapping[int, Sequence[Task]], level_weights: Sequence[float]
) -> dict[int, float]:
  """The share of each level in what is drawn, relative to the others.

  It is `level_weights[level]`, the last one for all higher levels. Without any weights it is the
  number of its tasks, so that all tasks are drawn equally often.

  Raises:
    ValueError: no level present has weight.
  """
  if not level_weights:
    return {level: float(len(tasks)) for level, tasks in levels.items()}
  found = {level: level_weights[min(level, len(level_weights) - 1)] for level in levels}
  if not any(found.values()):
    raise ValueError(
      f"level weights {tuple(level_weights)} give no weight to the levels present, {[*levels]}; "
      "set learner.level_weights_early and learner.level_weights_late, or make other tasks"
    )
  return found


def mark(task: Task) -> str:
  """A key of the task's content, since its id may be reused."""
  what = json.dumps([task.prompt, task.facts], sort_keys=True, default=str)
  return hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
