"""Tasks that kill their workers are set aside, so that one of them cannot end a run."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable
from typing import Any

from jaxrl_agents.types import Group, Trajectory

MAX_RETRIES = 2
"""How often a job is played again after its worker died."""


class CrashingTasks:
  """The jobs whose workers died (harness.worker_process.Job).

  Any of the jobs of a worker may have killed it. Therefore at most one of them is in play at a
  time: one that is innocent loses no second worker, and only the guilty one is set aside.

  Invariant: `_suspects` are to be played again, and are not in play.
  """

  def __init__(self, max_retries: int):
    self._max_retries = max_retries
    self._deaths: collections.Counter[str] = collections.Counter()
    self._suspects: collections.deque[Any] = collections.deque()
    self._in_play = ""

  def after_death(self, jobs: Iterable[Any], text: str) -> list[Group]:
    """Takes in the jobs of a worker that died; `next_job` gives those that are to be played again.

    Args:
      jobs: what the worker played.
      text: how it died.

    Returns:
      The groups of the others, all of whose rollouts have failed.
    """
    failed = []
    for job in jobs:
      self.finished(job.group_id)
      self._deaths[job.group_id] += 1
      if self._deaths[job.group_id] <= self._max_retries:
        self._suspects.append(job)
        continue
      error = f"its worker died {self._deaths.pop(job.group_id)} times, lastly: {text}"
      print(f"task {job.task.id} was set aside: {error}", file=sys.stderr, flush=True)
      lost = Trajectory(job.task.id, (), (), {}, "", error=f"WorkerDied: {error}")
      failed.append(Group(job.task, (lost,) * job.num_rollouts, job.group_id))
    return failed

  def next_job(self, *, even_beside_others: bool = False) -> Any | None:
    """The next job to submit again; None if there is none, or if another one is in play.

    Args:
      even_beside_others: for callers that need all of their jobs in play at once.
    """
    if not self._suspects or (self._in_play and not even_beside_others):
      return None
    job = self._suspects.popleft()
    self._in_play = job.group_id
    return job

  def finished(self, group_id: str) -> None:
    """Takes note that a job is in play no more."""
    if self._in_play == group_id:
      self._in_play = ""
