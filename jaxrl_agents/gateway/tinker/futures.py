"""Results that clients ask for later, and requests that run in the order of their numbers."""

from __future__ import annotations

import asyncio
import collections
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from jaxrl_agents.gateway.requests import Refusal

HOLD_S = 120.0
"""Seconds that requests wait for one that was to come before them."""

KEPT_BYTES = 1 << 30
"""Results that are kept for clients that ask again; the oldest are dropped first."""

_JSON_BYTES = 1_024

Result = bytes | dict[str, Any]
"""A message in Tinker's binary form, or JSON."""

Work = Callable[[], Awaitable[Result]]


def failure(error: BaseException) -> dict[str, Any]:
  """The result of a request that failed. What is the client's to change has the category "user"."""
  by_user = isinstance(error, (ValueError, Refusal))
  text = str(error) if by_user else f"{type(error).__name__}: {error}"
  return {"error": text, "category": "user" if by_user else "server"}


class Futures:
  """Results by the id of their request.

  Invariant: an id stands for one request: who repeats a request gets its first result, as long as
  it is kept.
  """

  def __init__(self, kept_bytes: int = KEPT_BYTES):
    self._kept_bytes = kept_bytes
    self._futures: dict[str, asyncio.Future[Result]] = {}
    self._kinds: dict[str, str] = {}
    self._bytes = 0
    self._done: collections.OrderedDict[str, int] = collections.OrderedDict()
    self._tasks: set[asyncio.Task[None]] = set()

  def open(self, request_id: str, kind: str) -> bool:
    """Makes the future of a request of a kind; False if this is a repetition.

    Raises:
      Refusal: 400, a request of another kind had this id.
    """
    if request_id in self._futures:
      if self._kinds[request_id] != kind:
        raise Refusal(
          400,
          f"{request_id} was a request for {self._kinds[request_id]}, and is now one for {kind}; "
          "count seq_id up for each request",
          retry=False,
        )
      return False
    self._futures[request_id] = asyncio.get_running_loop().create_future()
    self._kinds[request_id] = kind
    return True

  def start(self, request_id: str, work: Work) -> None:
    """Does the work of a request and keeps its result."""
    task = asyncio.get_running_loop().create_task(self.settle(request_id, work))
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)

  async def settle(self, request_id: str, work: Work) -> None:
    """Does the work of a request, waits for it, and keeps the result."""
    try:
      self.keep(request_id, await work())
    except Exception as error:
      if not isinstance(error, (ValueError, Refusal)):
        traceback.print_exception(error)
      self.keep(request_id, failure(error))

  def keep(self, request_id: str, result: Result) -> None:
    """Keeps a result, and drops the oldest if there are too many."""
    future = self._futures[request_id]
    if future.done():
      return
    future.set_result(result)
    self._done[request_id] = size = len(result) if isinstance(result, bytes) else _JSON_BYTES
    self._bytes += size
    while self._bytes > self._kept_bytes and len(self._done) > 1:
      oldest, size = self._done.popitem(last=False)
      self._bytes -= size
      del self._futures[oldest], self._kinds[oldest]

  async def wait(self, request_id: str, timeout_s: float) -> Result | None:
    """The result of a request; None if it has none within the time.

    Raises:
      Refusal: 410, there is no such request, or its result is no longer kept.
    """
    future = self._futures.get(request_id)
    if future is None:
      raise Refusal(
        410, f"{request_id} is unknown, or its result was dropped; make the request again"
      )
    done, _ = await asyncio.wait([future], timeout=timeout_s)
    return future.result() if done else None


class Ordered:
  """The requests of one model, which run one after another by their `seq_id`, from 1 on.

  Clients send the later parts of a batch before the first, and do not wait for replies: a request
  that came early is held until all before it have come.

  Invariant: each number runs at most once, and only after all smaller ones ended. If one does not
  come within `hold_s`, those that wait for it fail, and so does it if it comes later.

  Args:
    futures: that hold the results.
    name: first part of the ids of requests.
    lost: called when requests fail because one before them did not come.
    hold_s: seconds that requests are held.
  """

  def __init__(
    self,
    futures: Futures,
    name: str,
    *,
    lost: Callable[[], None] = lambda: None,
    hold_s: float = HOLD_S,
  ):
    self._futures, self._name, self._lost, self._hold_s = futures, name, lost, hold_s
    self._next = 1
    self._held: dict[int, tuple[Work, float]] = {}
    self._task: asyncio.Task[None] | None = None
    self._came = asyncio.Event()

  def add(self, seq_id: int, kind: str, work: Work) -> str:
    """Takes a request, or a repetition of it; returns its id.

    Raises:
      Refusal: 400, the number is not positive, or another request had it.
    """
    if seq_id < 1:
      raise Refusal(400, f"seq_id={seq_id}; number the requests of a model from 1 on", retry=False)
    request_id = f"{self._name}:{seq_id}"
    if not self._futures.open(request_id, kind):
      return request_id
    if seq_id < self._next:
      error = ValueError(f"seq_id {seq_id} came after those that follow it had failed without it")
      self._futures.keep(request_id, failure(error))
      return request_id
    self._held[seq_id] = (work, time.monotonic())
    self._came.set()
    if self._task is None or self._task.done():
      self._task = asyncio.get_running_loop().create_task(self._run())
    return request_id

  @property
  def running(self) -> int:
    """The number of the request that runs, or runs next."""
    return self._next

  def waits_for(self) -> str:
    """What held requests wait for, in words; "" if nothing is held or the next one runs."""
    if not self._held or self._next in self._held:
      return ""
    return f"{self._name} waits for seq_id {self._next}, which has not come yet"

  async def _run(self) -> None:
    while self._held:
      if self._next in self._held:
        work, _ = self._held.pop(self._next)
        await self._futures.settle(f"{self._name}:{self._next}", work)
        self._next += 1
        continue
      left_s = min(came for _, came in self._held.values()) + self._hold_s - time.monotonic()
      if left_s <= 0:
        self._give_up()
        return
      self._came.clear()
      try:
        await asyncio.wait_for(self._came.wait(), left_s)
      except TimeoutError:
        continue

  def _give_up(self) -> None:
    """Fails what is held."""
    error = TimeoutError(
      f"seq_id {self._next} did not come within {self._hold_s:g} s after those that follow it"
    )
    for seq_id in sorted(self._held):
      self._futures.keep(f"{self._name}:{seq_id}", failure(error))
    self._next = max(self._held) + 1
    self._held.clear()
    self._lost()
