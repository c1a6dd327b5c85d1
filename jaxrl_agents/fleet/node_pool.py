"""The pool of rollout workers on the nodes of a Ray cluster, as the main process sees it."""

from __future__ import annotations

import collections
import dataclasses
import sys
import time
from typing import Any

from jaxrl_agents.fleet import cluster
from jaxrl_agents.fleet.worker_node import Report, WorkerNode
from jaxrl_agents.harness.worker_pool import WorkerPoolError, check_new
from jaxrl_agents.harness.worker_process import Job, WorkerSpec

_POLL_S = 2.0
"""Seconds between two looks for nodes that have come."""
_SILENCE_S = 60.0
"""Seconds without an answer after which a node counts as lost; its actor answers every second. Ray
itself notices most losses at once.
"""
_NUMBERS = 1 << 20
"""Worker numbers that each node has for itself; a worker that is replaced takes another."""
_GET_S = 60.0
_MAX_FAILED_STARTS = 3
_MAX_LOSSES = 2
"""How often a group is played again after its node was lost, before it counts as a cause."""


@dataclasses.dataclass(eq=False)
class _Node:
  """A node with an actor. Invariant: `jobs` were sent to it and have not come back.

  Attributes:
    id: of the node, as Ray knows it.
    name: for messages.
    actor: its WorkerNode.
    pending: the answer that is being waited for.
    first: the number of its first worker; its pool counts from 0.
    heard: time of the last answer, as time.monotonic.
    answered: whether it has ever answered.
    num_ready: its workers that have built their services.
    workers: numbers of those that have sent anything but their groups.
  """

  id: str
  name: str
  actor: Any
  pending: Any
  first: int
  heard: float = dataclasses.field(default_factory=time.monotonic)
  answered: bool = False
  num_ready: int = 0
  workers: set[int] = dataclasses.field(default_factory=set)
  jobs: dict[str, Job] = dataclasses.field(default_factory=dict)


class NodePool:
  """Worker processes on every node that has the CPUs for them: a `WorkerPool` of many machines.

  Use within `cluster.joined`, as a context manager. Nodes may come and go. The groups of a node
  that is lost are played again by others; the requests that its workers waited for are reported by
  ("died", text, ()).

  Invariant: a submitted job is in the backlog, with exactly one node, or was returned by `poll`.

  Args:
    ray: the package.
    spec: how a worker builds its services; its module must be importable on every node.
    num_workers: processes on each node, and the CPUs that a node must have.
    groups_per_worker: groups that each plays at once.
    stall_s: seconds without progress of a worker's event loop after which it is killed.
    start_deadline_s: for building the services.
  """

  def __init__(
    self,
    ray: Any,
    spec: WorkerSpec,
    num_workers: int,
    *,
    groups_per_worker: int = 4,
    stall_s: float = 120.0,
    start_deadline_s: float = 300.0,
  ):
    if num_workers < 1 or groups_per_worker < 1:
      raise ValueError(
        f"num_workers={num_workers} and groups_per_worker={groups_per_worker} must be at least 1"
      )
    self._ray, self._spec, self._num_workers = ray, spec, num_workers
    self._options = {
      "groups_per_worker": groups_per_worker,
      "stall_s": stall_s,
      "start_deadline_s": start_deadline_s,
    }
    self._most_jobs = num_workers * groups_per_worker
    self._start_deadline_s = start_deadline_s
    self._nodes: dict[str, _Node] = {}
    self._backlog: collections.OrderedDict[str, Job] = collections.OrderedDict()
    self._losses: collections.Counter[str] = collections.Counter()
    self._actors_made = 0
    self._failed_starts = 0  # in a row
    self._looked = -_POLL_S

  def __enter__(self) -> NodePool:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  @property
  def unfinished(self) -> int:
    """Jobs submitted and neither finished nor reported lost."""
    return len(self._backlog) + sum(len(node.jobs) for node in self._nodes.values())

  def describe(self) -> str:
    """One line on the state, for messages about a lack of progress."""
    each = [
      f"{node.name}: {node.num_ready} of {self._num_workers} workers ready, {len(node.jobs)} groups"
      for node in self._nodes.values()
    ]
    return f"{len(each)} nodes ({'; '.join(each)}), {len(self._backlog)} groups wait for one"

  def wait_until_ready(self) -> None:
    """Returns once a worker of any node is ready; to be called before any job is submitted.

    Raises:
      WorkerPoolError: none became ready within start_deadline_s.
    """
    deadline = time.monotonic() + self._start_deadline_s
    while not any(node.num_ready for node in self._nodes.values()):
      self.poll(timeout_s=0.2)
      if time.monotonic() > deadline:
        raise WorkerPoolError(
          f"no worker was ready within {self._start_deadline_s:g} s: {self.describe()}; a node "
          f"needs workers.processes={self._num_workers} CPUs that nothing else has taken "
          "(ray start --num-cpus; ray status shows them)"
        )

  @property
  def places(self) -> dict[str, dict[str, int]]:
    """{service: counts} of each node for whoever watches the run, from any thread."""
    return {
      f"workers-{node.name}": {"ready": node.num_ready, "groups": len(node.jobs)}
      for node in list(self._nodes.values())
    }

  def submit(self, job: Job) -> None:
    """Queues a group; it starts as soon as a node has room.

    Raises:
      ValueError: a job without rollouts, or whose group id is already unfinished.
    """
    check_new(job, [self._backlog, *(n.jobs for n in self._nodes.values())])
    self._backlog[job.group_id] = job
    self._dispatch()

  def poll(self, timeout_s: float) -> list[tuple[int, tuple[Any, ...]]]:
    """Waits for messages and returns them with the numbers of their workers; see WorkerPool.poll.

    Raises:
      WorkerPoolError: the workers of a node cannot be started, or too many of them have died.
    """
    self._look()
    pending = {node.pending: node for node in self._nodes.values()}
    if pending:
      self._ray.wait(list(pending), num_returns=1, timeout=timeout_s)
      come, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
    else:
      time.sleep(min(timeout_s, _POLL_S / 4))
      come = []
    messages = [message for ref in come for message in self._hear(pending[ref])]
    for node in list(self._nodes.values()):
      silent_s = time.monotonic() - node.heard
      allowed_s = _SILENCE_S if node.answered else self._start_deadline_s
      if node.pending not in come and silent_s > allowed_s:
        messages += self._lose(node, f"no answer for {silent_s:.0f} s")
    self._dispatch()
    return messages

  def send(self, number: int, message: tuple[Any, ...]) -> bool:
    """Sends to a worker; False if its node is gone."""
    for node in self._nodes.values():
      if node.first <= number < node.first + _NUMBERS:
        node.actor.tell.options(concurrency_group="tell").remote(
          "send", number - node.first, message
        )
        return True
    return False

  def close(self, timeout_s: float = 10.0) -> None:
    """Ends all workers; those that do not end by themselves are killed with their node's actor."""
    closing = [
      node.actor.close.options(concurrency_group="poll").remote(timeout_s / 2)
      for node in self._nodes.values()
      if node.answered
    ]
    if closing:
      self._ray.wait(closing, num_returns=len(closing), timeout=timeout_s)
    for node in self._nodes.values():
      self._ray.kill(node.actor)
    self._nodes.clear()
    self._backlog.clear()

  def _look(self) -> None:
    """Starts an actor on each node that has come."""
    now = time.monotonic()
    if now - self._looked < _POLL_S:
      return
    self._looked = now
    for node in cluster.nodes(self._ray, CPU=self._num_workers):
      if node.id not in self._nodes:
        self._nodes[node.id] = self._started(node)

  def _started(self, found: cluster.Node) -> _Node:
    made = self._ray.remote(
      num_cpus=self._num_workers,
      scheduling_strategy=found.strategy(self._ray),
      concurrency_groups={"poll": 1, "tell": 1},
    )
    actor = made(WorkerNode).remote(cluster.code(), self._spec, self._num_workers, self._options)
    self._actors_made += 1
    first = self._actors_made * _NUMBERS
    node = _Node(found.id, found.name, actor, None, first)
    self._ask(node)
    return node

  def _ask(self, node: _Node) -> None:
    node.heard = time.monotonic()
    node.pending = node.actor.poll.options(concurrency_group="poll").remote()

  def _hear(self, node: _Node) -> list[tuple[int, tuple[Any, ...]]]:
    """Takes an answer of a node, or the news that it is lost."""
    try:
      report: Report = self._ray.get(node.pending, timeout=_GET_S)
    except self._ray.exceptions.RayTaskError as error:
      raise WorkerPoolError(f"the workers of node {node.name}: {error.cause}") from None
    except self._ray.exceptions.RayError as error:
      self._failed_starts += not node.answered
      if self._failed_starts > _MAX_FAILED_STARTS:
        raise WorkerPoolError(f"no workers can be started on node {node.name}: {error}") from None
      return self._lose(node, str(error).partition("\n")[0])
    self._failed_starts = 0
    node.answered, node.num_ready = True, report.num_ready
    for number, message in report.messages:
      node.workers.add(node.first + number)
      if message[0] == "group":
        node.jobs.pop(message[1].id, None)
        self._losses.pop(message[1].id, None)
      elif message[0] == "died":
        node.workers.discard(node.first + number)
        for job in message[2]:
          node.jobs.pop(job.group_id, None)
    self._ask(node)
    return [(node.first + number, message) for number, message in report.messages]

  def _lose(self, node: _Node, how: str) -> list[tuple[int, tuple[Any, ...]]]:
    """A node is gone: what it played goes to others; returns the deaths of its workers and the ids
    of the groups that moved.

    A group whose node was lost too often is handed back with a death, as that of its worker is.
    """
    del self._nodes[node.id]
    self._looked = time.monotonic()  # Ray itself may need a moment to notice
    self._ray.kill(node.actor)
    text = f"node {node.name} is lost: {how}"
    print(
      f"{text}; its {len(node.jobs)} groups go to others ({len(self._nodes)} nodes are left)",
      file=sys.stderr,
      flush=True,
    )
    suspects, moved = [], []
    for job in node.jobs.values():
      self._losses[job.group_id] += 1
      if self._losses[job.group_id] > _MAX_LOSSES:
        suspects.append(job)
      else:
        self._backlog[job.group_id] = job
        moved.append(job.group_id)
    deaths: list[tuple[int, tuple[Any, ...]]]
    deaths = [(number, ("died", text, ())) for number in sorted(node.workers)]
    if suspects:
      deaths.append((node.first, ("died", text, tuple(suspects))))
    return [*deaths, (node.first, ("moved", text, tuple(moved)))]

  def _dispatch(self) -> None:
    """Gives waiting jobs to the nodes with the fewest for each ready worker."""
    ready = [node for node in self._nodes.values() if node.num_ready]
    while self._backlog and ready:
      node = min(ready, key=lambda each: len(each.jobs) / each.num_ready)
      if len(node.jobs) >= self._most_jobs:
        return
      _, job = self._backlog.popitem(last=False)
      node.jobs[job.group_id] = job
      node.actor.tell.options(concurrency_group="tell").remote("submit", job)
