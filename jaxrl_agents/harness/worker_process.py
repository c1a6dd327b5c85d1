"""The main function of a worker process: plays groups, requests generations of the main process.

    main -> worker   ("group", Job)  ("generation", request_id, Generation)
                     ("refused", request_id, text)  ("close",)
    worker -> main   ("ready",)  ("generate", request_id, prompt int32[P], SamplingLimits, group_id)
                     ("cancel", request_id)  ("playing", more)
                     ("group", group_id, trajectories)  ("error", text)

A worker ends on "close", when the connection breaks because the main process died, or when its
event loop makes no progress for `stall_s`: the kernel's alarm then kills it. What it sends is
checked on receipt (`harness.messages`); what it receives are pickles.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.harness import messages, schema
from jaxrl_agents.harness.rollout import (
  Grade,
  MakeRollout,
  Record,
  SamplerRefused,
  Sampling,
  failed,
  run_group,
)
from jaxrl_agents.harness.schema import MessageError
from jaxrl_agents.types import Generation, SamplingLimits, Task, Trajectory

UNFIT = 2
"""Exit status of a worker that could not build its services: another would not either."""


@dataclasses.dataclass(frozen=True)
class Services:
  """What a worker needs to play: the chat, an episode for a task, and who grades it, if anyone."""

  chat: Chat
  make_episode: MakeRollout
  grade: Grade | None = None


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
  """How a worker builds its services: "package.module:function" and its picklable arguments.

  The function returns `Services`; its module must not import jax.
  """

  build: str
  arguments: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
  """A group to play."""

  group_id: str
  task: Task
  num_rollouts: int
  sampling: Sampling


class RemoteSampler:
  """A sampler in another process. Invariant: `_waiting` has one future per unanswered request."""

  def __init__(self, send: Callable[[tuple[Any, ...]], None]):
    self._send = send
    self._waiting: dict[int, asyncio.Future[Generation]] = {}
    self._next_id = 0

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits, group_id: str) -> Generation:
    """Asks for a generation and waits for it; the caller sets the deadline. The sampler is told if
    the caller waits no longer.
    """
    request_id, self._next_id = self._next_id, self._next_id + 1
    future = asyncio.get_running_loop().create_future()
    self._waiting[request_id] = future
    try:
      self._send(("generate", request_id, prompt, limits, group_id))
      return await future
    except asyncio.CancelledError:
      self._send(("cancel", request_id))
      raise
    finally:
      del self._waiting[request_id]

  def playing(self, more: int) -> None:
    """Tells the main process that so many more players ask at once."""
    self._send(("playing", more))

  def answer(self, request_id: int, generation: Generation) -> None:
    """Delivers a generation; one that nobody waits for any more is dropped."""
    future = self._waiting.get(request_id)
    if future is not None and not future.done():
      future.set_result(generation)

  def refuse(self, request_id: int, text: str) -> None:
    """Fails a request with the sampler's own words."""
    future = self._waiting.get(request_id)
    if future is not None and not future.done():
      future.set_exception(SamplerRefused(f"the sampler refused: {text}"))


@dataclasses.dataclass(frozen=True)
class _OfGroup:
  """The sampler of the rollouts of one group."""

  remote: RemoteSampler
  group_id: str

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """Asks for a generation in the name of the group."""
    return await self.remote.generate(prompt, limits, self.group_id)

  def playing(self, more: int) -> None:
    """See RemoteSampler.playing."""
    self.remote.playing(more)


def worker_main(fd: int) -> NoReturn:
  """The life of a worker process; `fd` is its end of the pipe.

  The exit status is 0 where it was told to close or the main process is gone, UNFIT where it could
  not build its services.
  """
  connection = Connection(fd)
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the main process to handle
  try:
    packed = connection.recv_bytes()
  except (EOFError, OSError):
    os._exit(0)
  try:
    spec, stall_s = pickle.loads(packed)
    module, _, function = spec.build.partition(":")
    services = getattr(importlib.import_module(module), function)(*spec.arguments)
    asyncio.run(_serve(connection, services, stall_s))
  except BaseException:
    text = traceback.format_exc()
    print(text, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
      connection.send_bytes(schema.encode(("error", text)))
  os._exit(UNFIT)


async def _serve(connection: Connection, services: Services, stall_s: float) -> None:
  loop = asyncio.get_running_loop()
  outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
  send = lambda message: outbox.put(schema.encode(message))
  sampler = RemoteSampler(send)
  jobs: set[asyncio.Task[None]] = set()

  def receive(message: tuple[Any, ...]) -> None:
    kind, *content = message
    if kind == "generation":
      sampler.answer(*content)
    elif kind == "refused":
      sampler.refuse(*content)
    elif kind == "group":
      task = loop.create_task(_play(content[0], services, sampler, outbox.put))
      jobs.add(task)
      task.add_done_callback(jobs.discard)
    else:
      send(("error", f"a worker knows no message {kind!r}"))

  def read() -> None:
    try:
      while (message := connection.recv()) != ("close",):
        loop.call_soon_threadsafe(receive, message)
    except (EOFError, OSError):
      pass
    os._exit(0)  # closed, or the main process is gone: nothing is worth finishing

  def write() -> None:
    while True:
      try:
        connection.send_bytes(outbox.get())
      except OSError:
        os._exit(0)

  send(("ready",))
  threading.Thread(target=read, daemon=True).start()
  threading.Thread(target=write, daemon=True).start()
  signal.signal(signal.SIGALRM, signal.SIG_DFL)
  while True:
    signal.setitimer(signal.ITIMER_REAL, stall_s)
    await asyncio.sleep(stall_s / 4)


async def _play(
  job: Job, services: Services, sampler: RemoteSampler, send: Callable[[bytes], None]
) -> None:
  """Plays a group and sends it; what goes wrong outside a single episode fails all of them."""

  def pack(trajectories: tuple[Trajectory, ...]) -> bytes:
    packed = schema.encode(("group", job.group_id, trajectories))
    messages.decode(packed)  # as it is checked on receipt, where a wrong value costs this process
    return packed

  try:
    group = await run_group(
      services.make_episode,
      job.task,
      job.num_rollouts,
      chat=services.chat,
      sampler=_OfGroup(sampler, job.group_id),
      sampling=job.sampling,
      group_id=job.group_id,
      grade=services.grade,
    )
    try:
      packed = await asyncio.to_thread(pack, group.trajectories)
    except MessageError:
      packed = pack(tuple(_sendable(job.task, each) for each in group.trajectories))
  except Exception as error:
    packed = pack((failed(job.task, Record(), error),) * job.num_rollouts)
  send(packed)


def _sendable(task: Task, trajectory: Trajectory) -> Trajectory:
  """The trajectory, or a failed one if an agent put into it what cannot be sent."""
  try:
    messages.decode(schema.encode(("group", "", (trajectory,))))
    return trajectory
  except MessageError as error:
    return failed(task, Record(), error)
