"""The pool of worker processes that play episodes, as the main process sees it.

A worker is a fresh interpreter (never a fork: a fork after jax has started can deadlock), connected
by one duplex pipe. `harness.worker_process` lists the messages. On other machines a
`fleet.worker_node` holds such a pool.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from jaxrl_agents.harness import messages as messages_lib
from jaxrl_agents.harness import schema
from jaxrl_agents.harness.schema import MessageError
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.types import Group, Trajectory

_BOOT = (
  "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
  "from jaxrl_agents.harness.worker_process import worker_main; worker_main(int(sys.argv[1]))"
)


class WorkerPoolError(RuntimeError):
  """The pool cannot go on: a worker did not start, or too many died."""


@dataclasses.dataclass
class _Worker:
  """A live process. Invariant: `jobs` are the groups sent to it and not yet returned.

  Attributes:
    process: its process.
    connection: to the worker.
    started: time of the start, as time.monotonic.
    ready: whether it has built its services.
  """

  process: subprocess.Popen[bytes]
  connection: Connection
  started: float = dataclasses.field(default_factory=time.monotonic)
  ready: bool = False
  last_error: str = ""
  jobs: dict[str, Job] = dataclasses.field(default_factory=dict)


def check_new(job: Job, unfinished: Iterable[Container[str]]) -> None:
  """Raises ValueError for a job without rollouts, or with the group id of an unfinished one."""
  if job.num_rollouts < 1 or any(job.group_id in ids for ids in unfinished):
    raise ValueError(
      f"group {job.group_id!r} with {job.num_rollouts} rollouts: a group needs at least one "
      "rollout and an id that no unfinished group has"
    )


class WorkerPool:
  """Worker processes, each with up to `groups_per_worker` groups. Use as a context manager.

  `poll` reports a worker that died, and the pool starts another under a new number; numbers are
  never used twice, so an answer for a dead worker reaches no other.

  Invariant: a submitted job is in the backlog, with exactly one worker, or was returned by `poll`.

  Args:
    spec: how a worker builds its services.
    num_workers: processes.
    groups_per_worker: groups that each plays at once.
    stall_s: seconds without progress of a worker's event loop after which it is killed.
    start_deadline_s: for building the services.
    max_deaths: workers that may die without any group finished between.
    wake: a message on this connection ends a wait of `poll`, whichever thread sent it.
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
    wake: Connection | None = None,
  ):
    if num_workers < 1 or groups_per_worker < 1:
      raise ValueError(
        f"num_workers={num_workers} and groups_per_worker={groups_per_worker} must be at least 1"
      )
    self._wake = wake
    self._spec, self._stall_s, self._start_deadline_s = spec, stall_s, start_deadline_s
    self._groups_per_worker = groups_per_worker
    self._max_deaths, self._deaths_left = max_deaths, max_deaths
    self._backlog: collections.OrderedDict[str, Job] = collections.OrderedDict()
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
    return {n: worker.process.pid for n, worker in self._workers.items()}

  @property
  def num_ready(self) -> int:
    """Workers that have built their services."""
    return sum(worker.ready for worker in self._workers.values())

  @property
  def places(self) -> dict[str, dict[str, int]]:
    """{service: counts} for whoever watches the run, from any thread."""
    workers = list(self._workers.values())
    groups = len(self._backlog) + sum(len(worker.jobs) for worker in workers)
    return {"workers": {"ready": sum(worker.ready for worker in workers), "groups": groups}}

  def describe(self) -> str:
    """One line on the state, for messages about a lack of progress."""
    return f"{len(self._workers)} workers ({self.num_ready} ready) with {self.unfinished} groups"

  def wait_until_ready(self) -> None:
    """Returns once a worker is ready; to be called before any job is submitted.

    Raises:
      WorkerPoolError: none became ready within start_deadline_s.
    """
    deadline = time.monotonic() + self._start_deadline_s
    while not self.num_ready:
      self.poll(timeout_s=0.2)
      if time.monotonic() > deadline:
        raise WorkerPoolError(
          f"no worker was ready within start_deadline_s={self._start_deadline_s:g}: "
          f"{self.describe()}"
        )

  def submit(self, job: Job) -> None:
    """Queues a group; it starts as soon as a worker has room.

    Raises:
      ValueError: a job without rollouts, or whose group id is already unfinished.
    """
    check_new(job, [self._backlog, *(w.jobs for w in self._workers.values())])
    self._backlog[job.group_id] = job
    self._dispatch()

  def poll(self, timeout_s: float) -> list[tuple[int, tuple[Any, ...]]]:
    """Waits for messages and returns them with the numbers of their workers, oldest first.

    Beside what a worker sends (`worker_process`): ("died", text, jobs) when one is gone,
    with the jobs that went with it, for the caller to submit again.

    Raises:
      WorkerPoolError: a worker failed to start or too many have died; the message says why.
    """
    self._check_starts()
    numbers = {worker.connection: number for number, worker in self._workers.items()}
    woken = [self._wake] if self._wake else []
    heard = [c for c in wait([*numbers, *woken], timeout_s) if isinstance(c, Connection)]
    if self._wake in heard:
      self._wake.recv_bytes()
      heard.remove(self._wake)
    messages = []
    for number in sorted(numbers[connection] for connection in heard):
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
    except OSError:  # it is gone, or has not read for stall_s and has half of the message now
      worker.process.kill()
      return False
    return True

  def close(self, timeout_s: float = 10.0) -> None:
    """Asks all workers to end and kills them after `timeout_s` seconds; none is left."""
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
    process = subprocess.Popen(command, pass_fds=(fd,), stdin=subprocess.DEVNULL, env=environment())
    theirs.close()
    _set_timeouts(ours, self._stall_s)
    self._workers[self._next_number] = _Worker(process, ours)
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
      _, job = self._backlog.popitem(last=False)
      ready[number].jobs[job.group_id] = job
      if not self.send(number, ("group", job)):
        del ready[number]  # poll reports its death, with this job

  def _receive(self, number: int) -> tuple[Any, ...] | None:
    """One message of a worker, its death included; None if it is for the pool alone."""
    worker = self._workers[number]
    try:
      message = messages_lib.decode(worker.connection.recv_bytes(schema.MAX_BYTES))
      if message[0] == "group":
        message = ("group", _finished(worker, *message[1:]))
    except BlockingIOError:
      worker.last_error = f"It sent half of a message, and for {self._stall_s:g} s no more."
      worker.process.kill()
      return self._mark_dead(number)
    except (EOFError, OSError):
      return self._mark_dead(number)
    except MessageError as error:
      worker.last_error = f"It sent an invalid message: {error}"
      worker.process.kill()
      return self._mark_dead(number)
    if message[0] == "ready":
      worker.ready = True
      return None
    if message[0] == "error":
      worker.last_error = message[1]
    elif message[0] == "group":
      self._deaths_left = self._max_deaths  # counted in a row: a few bad tasks must not end a run
    return message

  def _mark_dead(self, number: int) -> tuple[Any, ...]:
    """Replaces a worker by another; returns the message of its death."""
    worker = self._workers.pop(number)
    cause = self._cause(worker)
    text = f"worker {number} (process {worker.process.pid}) died: {cause}. {worker.last_error}"
    if not worker.ready and worker.process.returncode >= 0:  # by itself: another would fail too
      raise WorkerPoolError(f"{text.strip()} It never became ready; see {self._spec.build}.")
    self._deaths_left -= 1
    if self._deaths_left < 0:
      raise WorkerPoolError(
        f"{text} Too many workers have died, so none is started again; mend the cause, then run "
        "the same command again."
      )
    self._start_worker()
    return ("died", text.strip(), tuple(worker.jobs.values()))

  def _cause(self, worker: _Worker) -> str:
    code = _reap(worker, timeout_s=5.0)
    if code >= 0:
      return f"exit status {code}"
    still = f", its event loop stood still for {self._stall_s:g} s"
    return signal.Signals(-code).name + (still if code == -signal.SIGALRM else "")


def _finished(worker: _Worker, group_id: str, trajectories: tuple[Trajectory, ...]) -> Group:
  """The group that a worker has played, no longer among its jobs; MessageError if it was not to."""
  job = worker.jobs.get(group_id)
  if job is None or len(trajectories) != job.num_rollouts:
    wanted = f"{job.num_rollouts} were asked for" if job else "it is none of its groups"
    raise MessageError(f"group {group_id!r} of {len(trajectories)} rollouts, and {wanted}")
  del worker.jobs[group_id]
  return Group(job.task, trajectories, group_id)


def environment() -> dict[str, str]:
  """The environment of a worker process: one thread each, since there are many workers, and neither
  address nor token of a Ray cluster, which what a worker plays has no use for.
  """
  own = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
  return own | {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def _set_timeouts(connection: Connection, seconds: float) -> None:
  """Has the kernel end a read or write that stands still in the middle of a message: an OSError."""
  with socket.socket(fileno=os.dup(connection.fileno())) as shared:  # a duplex pipe is a socket
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
      value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
      shared.setsockopt(socket.SOL_SOCKET, option, value)


def _reap(worker: _Worker, timeout_s: float) -> int:
  """Closes the connection; the process is killed if it does not end; returns its exit code."""
  try:
    worker.process.wait(timeout_s)
  except subprocess.TimeoutExpired:
    worker.process.kill()
    worker.process.wait(10.0)
  worker.connection.close()
  return worker.process.returncode
