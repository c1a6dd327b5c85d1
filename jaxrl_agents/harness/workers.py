"""The pool of worker processes that play episodes, as the main process sees it.

A worker is a fresh interpreter (never a fork: a fork after jax has started can deadlock) joined to
the main process by one duplex pipe. What goes over it is in `harness.process`.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from jaxrl_agents.harness.process import Job, WorkerSpec

_BOOT = (
  "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
  "from jaxrl_agents.harness.process import worker_main; worker_main(int(sys.argv[1]))"
)


class WorkerPoolError(RuntimeError):
  """The pool cannot go on: a worker did not start, or too many died."""


@dataclasses.dataclass
class _Worker:
  """A live process. Invariant: `jobs` are the groups sent to it and not yet returned."""

  process: subprocess.Popen[bytes]
  connection: Connection
  started: float
  ready: bool = False
  last_error: str = ""
  jobs: dict[str, Job] = dataclasses.field(default_factory=dict)


class WorkerPool:
  """Worker processes, each with up to `groups_per_worker` groups. Use as a context manager.

  A worker that dies is replaced under a new number and reported by `poll`; numbers are never used
  twice, so that an answer for a dead worker reaches nobody.

  Invariant: a submitted job is in the backlog, with exactly one worker, or was returned by `poll`.
  """

  def __init__(
    self,
    spec: WorkerSpec,
    num_workers: int,
    *,
    groups_per_worker: int = 4,
    stall_s: float = 120.0,
    start_deadline_s: float = 300.0,
    max_deaths: int = 8,
  ):
    if num_workers < 1 or groups_per_worker < 1:
      raise ValueError(
        f"num_workers={num_workers} and groups_per_worker={groups_per_worker} must be at least 1"
      )
    self._spec, self._stall_s, self._start_deadline_s = spec, stall_s, start_deadline_s
    self._groups_per_worker, self._deaths_left = groups_per_worker, max_deaths
    self._backlog: collections.deque[Job] = collections.deque()
    self._workers: dict[int, _Worker] = {}
    self._next_number = 0
    for _ in range(num_workers):
      self._start_worker()

  def __enter__(self) -> WorkerPool:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  @property
  def unfinished(self) -> int:
    """Jobs submitted and neither finished nor reported lost."""
    return len(self._backlog) + sum(len(worker.jobs) for worker in self._workers.values())

  @property
  def pids(self) -> dict[int, int]:
    """Process id of each live worker, by its number."""
    return {number: worker.process.pid for number, worker in self._workers.items()}

  def submit(self, job: Job) -> None:
    """Queues a group; it starts as soon as a worker has room.

    Raises:
      ValueError: a job without rollouts, or whose group id is already unfinished.
    """
    ids = {j.group_id for j in self._backlog}.union(*(w.jobs for w in self._workers.values()))
    if job.num_rollouts < 1 or job.group_id in ids:
      raise ValueError(
        f"group {job.group_id!r} with {job.num_rollouts} rollouts: a group needs at least one "
        "rollout and an id that no unfinished group has"
      )
    self._backlog.append(job)
    self._dispatch()

  def poll(self, timeout_s: float) -> list[tuple[int, tuple[Any, ...]]]:
    """Waits for messages and returns them with the numbers of their workers, oldest first.

    Beside a worker's own "generate", "group" and "error": ("died", text, jobs) when one is gone,
    with the jobs that went with it, for the caller to submit again.

    Raises:
      WorkerPoolError: a worker failed to start or too many have died; the message says why.
    """
    self._check_starts()
    numbers = list(self._workers)
    wait([worker.connection for worker in self._workers.values()], timeout_s)
    messages = []
    for number in numbers:
      while number in self._workers and self._workers[number].connection.poll():
        message = self._receive(number)
        if message is not None:
          messages.append((number, message))
    self._dispatch()
    return messages

  def send(self, number: int, message: tuple[Any, ...]) -> bool:
    """Sends to a worker; False if it is gone (`poll` then reports or has reported its death)."""
    worker = self._workers.get(number)
    if worker is None:
      return False
    try:
      worker.connection.send(message)
    except OSError:
      return False
    return True

  def close(self, timeout_s: float = 10.0) -> None:
    """Ends all workers: asks first, kills after `timeout_s` seconds. No process is left."""
    for number in list(self._workers):
      self.send(number, ("close",))
    deadline = time.monotonic() + timeout_s
    for worker in self._workers.values():
      _reap(worker, max(0.0, deadline - time.monotonic()))
    self._workers.clear()
    self._backlog.clear()

  def _start_worker(self) -> None:
    ours, theirs = Pipe()
    fd = theirs.fileno()
    command = [sys.executable, "-c", _BOOT, str(fd), json.dumps(sys.path)]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
      command,
      pass_fds=(fd,),
      stdin=subprocess.DEVNULL,
      env={"TOKENIZERS_PARALLELISM": "false"} | one_thread | dict(os.environ),
    )
    theirs.close()
    self._workers[self._next_number] = _Worker(process, ours, time.monotonic())
    self.send(self._next_number, (self._spec, self._stall_s))
    self._next_number += 1

  def _check_starts(self) -> None:
    for number, worker in self._workers.items():
      waited = time.monotonic() - worker.started
      if not worker.ready and waited > self._start_deadline_s:
        raise WorkerPoolError(
          f"worker {number} is not ready {waited:.0f} s after its start; raise start_deadline_s="
          f"{self._start_deadline_s:g} or see what {self._spec.build} does"
        )

  def _dispatch(self) -> None:
    """Gives waiting jobs to the ready workers with the fewest."""
    ready = {number: worker for number, worker in self._workers.items() if worker.ready}
    while self._backlog and ready:
      number = min(ready, key=lambda n: len(ready[n].jobs))
      if len(ready[number].jobs) >= self._groups_per_worker:
        return
      job = self._backlog.popleft()
      ready[number].jobs[job.group_id] = job
      if not self.send(number, ("group", job)):
        del ready[number]  # poll reports its death, with this job

  def _receive(self, number: int) -> tuple[Any, ...] | None:
    """One message of a worker, its death included; None if it is for the pool alone."""
    worker = self._workers[number]
    try:
      message = worker.connection.recv()
    except (EOFError, OSError):
      return self._bury(number)
    if message[0] == "ready":
      worker.ready = True
      return None
    if message[0] == "error":
      worker.last_error = message[1]
    elif message[0] == "group":
      worker.jobs.pop(message[1].trajectories[0].group_id, None)
    return message

  def _bury(self, number: int) -> tuple[Any, ...]:
    worker = self._workers.pop(number)
    code = _reap(worker, timeout_s=5.0)
    cause = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
    if code == -signal.SIGALRM:
      cause += f", its event loop stood still for {self._stall_s:g} s"
    text = f"worker {number} (process {worker.process.pid}) died: {cause}. {worker.last_error}"
    if not worker.ready:
      raise WorkerPoolError(f"{text.strip()} It never became ready; see {self._spec.build}.")
    self._deaths_left -= 1
    if self._deaths_left < 0:
      raise WorkerPoolError(f"{text.strip()} Too many workers have died; none is started any more.")
    self._start_worker()
    return ("died", text.strip(), tuple(worker.jobs.values()))


def _reap(worker: _Worker, timeout_s: float) -> int:
  """Waits for a process to end, kills it if it does not, and returns its exit code."""
  try:
    worker.process.wait(timeout_s)
  except subprocess.TimeoutExpired:
    worker.process.kill()
    worker.process.wait(10.0)
  worker.connection.close()
  return worker.process.returncode
