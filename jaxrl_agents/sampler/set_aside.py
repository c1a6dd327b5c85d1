"""Tasks that kill their workers are set aside, so that one of them cannot end a run."""

from __future__ import annotations

import collections
import sys
from typing import Any

from jaxrl_agents.types import Group, Trajectory

MAX_RETRIES = 2
"""How often a job is played again after its worker died."""


class SetAside:
  """Counts how often the worker of each job died."""

  def __init__(self, max_retries: int):
    self._max_retries = max_retries
    self._deaths: collections.Counter[str] = collections.Counter()

  def after_death(self, job: Any, text: str) -> Group | None:
    """None if the job is to be played again; else its group, all of whose rollouts have failed.

    Args:
      job: a harness.worker_process.Job, which the worker played when it died.
      text: how it died.
    """
    self._deaths[job.group_id] += 1
    if self._deaths[job.group_id] <= self._max_retries:
      return None
    error = f"its worker died {self._deaths.pop(job.group_id)} times, lastly: {text}"
    print(f"task {job.task.id} was set aside: {error}", file=sys.stderr, flush=True)
    lost = Trajectory(job.task.id, (), (), {}, "", error=f"WorkerDied: {error}")
    return Group(job.task, (lost,) * job.num_rollouts, job.group_id)
