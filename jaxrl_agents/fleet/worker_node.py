"""The rollout workers of one node of a Ray cluster: the actor that holds their pool.

The workers are plain processes of the node, which send checked messages over pipes
(`harness.messages`), and no Ray processes themselves: what Ray carries to the run are pickles, and
come from this actor alone, in whose process no policy's text is run.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import time
from multiprocessing.connection import Pipe
from typing import Any

from jaxrl_agents.fleet import cluster
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import WorkerSpec

POLL_S = 1.0
"""Longest time between two answers of `WorkerNode.poll`."""


@dataclasses.dataclass(frozen=True)
class Report:
  """What `WorkerNode.poll` returns.

  Attributes:
    messages: as of WorkerPool.poll.
    num_ready: workers that have built their services.
  """

  messages: list[tuple[int, tuple[Any, ...]]]
  num_ready: int


class WorkerNode:
  """A pool of worker processes for another machine; `fleet.node_pool` makes a Ray actor of it.

  Invariant: one thread calls `poll` and `close` and has the pool; another calls `tell`.

  Args:
    code: `cluster.code()` of the run.
    spec: how a worker builds its services.
    num_workers: processes.
    options: further arguments of `WorkerPool`.
  """

  def __init__(self, code: str, spec: WorkerSpec, num_workers: int, options: dict[str, Any]):
    self._code, self._spec = code, spec
    self._num_workers, self._options = num_workers, options
    self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
    self._woken, self._wake = Pipe(duplex=False)
    self._pool: WorkerPool | None = None

  def tell(self, method: str, *arguments: Any) -> None:
    """Has the thread of `poll` call a method of the pool, in the order of these calls."""
    self._calls.put((method, arguments))
    self._wake.send_bytes(b"\0")

  def poll(self) -> Report:
    """Makes the calls that were told, and returns the messages that came within POLL_S.

    Raises:
      ClusterError: the node has other code than the run.
      WorkerPoolError: see WorkerPool.
    """
    if self._pool is None:
      cluster.check_code(self._code)
      os.environ["OMP_NUM_THREADS"] = "1"  # of a worker; Ray has set it to all that the actor has
      self._pool = WorkerPool(self._spec, self._num_workers, wake=self._woken, **self._options)
    deadline = time.monotonic() + POLL_S
    while True:
      while not self._calls.empty():
        method, arguments = self._calls.get()
        getattr(self._pool, method)(*arguments)
      left_s = deadline - time.monotonic()
      messages = self._pool.poll(max(left_s, 0.0))
      if messages or left_s <= 0:
        return Report(messages, self._pool.num_ready)

  def close(self, timeout_s: float) -> None:
    """See WorkerPool.close."""
    if self._pool is not None:
      self._pool.close(timeout_s)
