"""What an episode costs beside its model and its tools: worker, queue, ingest, scheduler.

    python scripts/bench_harness.py --json=FILE

1. A null environment in a real worker process. Whole trajectories of eight steps come back to this
   process, checked; an engine that answers at once takes the place of a model. `steps_per_core_s`
   are steps over the seconds of CPU of both processes; `growth_kib` is the memory that both gain
   from the first tenth of the trajectories on, `at_once` the episodes in flight.
2. The scheduler: pacing, rollout server and ledger of a run with simulated workers, with ever more
   episodes in flight. `us_per_episode_N` is the CPU of an episode of eight requests while N are in
   flight; `ratio` that of the most over that of the fewest.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import random
import tempfile
import time

import numpy as np
from absl import flags
from bench import null_agent

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.fleet.ledger import Ledger
from jaxrl_agents.fleet.pacing import Pacing
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.runs import entry_point
from jaxrl_agents.sampler.server import RolloutServer
from jaxrl_agents.types import Generation, Group, Message, SamplingLimits, Task, Trajectory

GROUP = 8
BATCH = 64

_TRAJECTORIES = flags.DEFINE_integer("trajectories", 10_000, "of the null environment", GROUP)
_AT_ONCE = flags.DEFINE_integer(
  "at_once", 1_000, "episodes of the null environment in flight", GROUP
)
_IN_FLIGHT = flags.DEFINE_list("in_flight", ["1000", "10000", "100000"], "simulated episodes")
_EPISODES = flags.DEFINE_integer("episodes", 10_000, "simulated episodes that are timed", 1)
_JSON = flags.DEFINE_string("json", None, "also write the figures to this file")


class Answering:
  """An engine that answers every request with the same reply, `most` in a step."""

  def __init__(self, reply: np.ndarray, most: int = 1 << 30):
    zeros = np.zeros(len(reply), np.float32)
    self._reply = Generation(reply, zeros, zeros.astype(np.int32), None, "stop")
    self._most = most
    self._asked: collections.deque[int] = collections.deque()
    self._next = 0

  @property
  def num_unfinished(self) -> int:
    """Requests without an answer."""
    return len(self._asked)

  def submit(self, prompt: np.ndarray, limits: SamplingLimits) -> int:
    """Takes a request."""
    self._next += 1
    self._asked.append(self._next)
    return self._next

  def step(self) -> list[tuple[int, Generation]]:
    """Answers the oldest ones."""
    count = min(len(self._asked), self._most)
    return [(self._asked.popleft(), self._reply) for _ in range(count)]

  def cancel(self, request_id: int) -> None:
    """Drops a request."""
    self._asked.remove(request_id)

  def describe(self) -> str:
    """For errors."""
    return f"{len(self._asked)} requests"


def null_environment() -> dict[str, float]:
  """Plays trajectories in one worker process."""
  chat = chat_lib.load("base")
  engine = Answering(chat.encode_reply(Message("assistant", "yes")))
  task = Task("null", "null", "go", {})
  jobs = (
    Job(f"group {i}", task, GROUP, Sampling(seed=i)) for i in range(_TRAJECTORIES.value // GROUP)
  )
  groups = _AT_ONCE.value // GROUP
  with WorkerPool(WorkerSpec("bench.null_agent:build"), 1, groups_per_worker=groups) as pool:
    pool.wait_until_ready()
    server = RolloutServer(engine, pool, max_rollouts=_AT_ONCE.value)
    (worker,) = pool.pids.values()
    began, cpu = time.monotonic(), (time.process_time(), cpu_s(worker))
    done, early_kib = 0, 0.0
    for group in server.collect(jobs):
      done += len(group.trajectories)
      assert not any(each.error for each in group.trajectories), group.trajectories[0].error
      if not early_kib and done >= _TRAJECTORIES.value / 10:
        early_kib = rss_kib(os.getpid()) + rss_kib(worker)
    wall_s = time.monotonic() - began
    ingest_s, worker_s = time.process_time() - cpu[0], cpu_s(worker) - cpu[1]
    growth_kib = rss_kib(os.getpid()) + rss_kib(worker) - early_kib
  steps = done * null_agent.TURNS
  return {
    "trajectories": float(done),
    "at_once": float(_AT_ONCE.value),
    "steps_per_core_s": steps / (ingest_s + worker_s),
    "steps_per_s": steps / wall_s,
    "worker_us_per_step": 1e6 * worker_s / steps,
    "ingest_us_per_step": 1e6 * ingest_s / steps,
    "growth_kib": growth_kib,
  }


def cpu_s(pid: int) -> float:
  """Seconds of CPU of a process."""
  fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
  return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_kib(pid: int) -> float:
  """Resident memory of a process."""
  pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
  return pages * os.sysconf("SC_PAGE_SIZE") / 1024


class Simulated:
  """Workers whose episodes ask TURNS times, each at a random moment, and then end."""

  def __init__(self) -> None:
    self._rng = random.Random(0)
    self._prompt = np.arange(8, dtype=np.int32)
    self._limits = SamplingLimits(8, ())
    self._due: list[tuple[Job, int]] = []  # episodes that may ask or end, and their turns
    self._asked: dict[int, tuple[Job, int]] = {}
    self._next = 0
    self.begun = False  # until then episodes start in the middle, as of a run that goes on

  def submit(self, job: Job) -> None:
    """Starts an episode."""
    self._due.append((job, 0 if self.begun else self._rng.randrange(null_agent.TURNS + 1)))

  def poll(self, timeout_s: float) -> list[tuple[int, tuple]]:
    """What some of the episodes, drawn at random, do next."""
    found = []
    for _ in range(min(len(self._due), BATCH)):
      place = self._rng.randrange(len(self._due))
      self._due[place], self._due[-1] = self._due[-1], self._due[place]
      job, turn = self._due.pop()
      if turn == null_agent.TURNS:
        ended = Trajectory(job.task.id, (), (), {"reward": 1.0}, "answer")
        found.append((0, ("group", Group(job.task, (ended,), job.group_id))))
        continue
      self._next += 1
      self._asked[self._next] = job, turn + 1
      found.append((0, ("generate", self._next, self._prompt, self._limits, job.group_id)))
    return found

  def send(self, number: int, message: tuple) -> bool:
    """A reply, after which an episode goes on."""
    self._due.append(self._asked.pop(message[1]))
    return True

  def describe(self) -> str:
    """For errors."""
    return f"{len(self._due)} episodes"


def scheduler(in_flight: int) -> float:
  """Microseconds of CPU of an episode while so many are in flight."""
  batches = (in_flight + _EPISODES.value) // BATCH + 2
  drawn = lambda batch: [Task(f"{batch} {i}", "", "", {}) for i in range(BATCH)]
  pacing = Pacing(drawn, batch=BATCH, depth=in_flight // BATCH, batches=batches)
  engine, workers = Answering(np.zeros(4, np.int32), BATCH), Simulated()
  server = RolloutServer(engine, workers, max_rollouts=1 << 30)
  with (
    tempfile.TemporaryDirectory() as folder,
    Ledger(pathlib.Path(folder) / "ledger", 0) as ledger,
  ):

    def next_job() -> Job | None:
      if (draw := pacing.next()) is None:
        return None
      ledger.dispatched(draw.label, draw.task.id, 1)
      return Job(draw.label, draw.task, 1, Sampling())

    server.round(next_job)  # which starts all that may be in flight
    assert len(pacing.in_flight) >= in_flight
    workers.begun = True
    began, trained = time.process_time(), 0
    while trained < _EPISODES.value:
      for group in server.round(next_job):
        ledger.finished(group)
        pacing.finished(group)
      if (groups := pacing.take(BATCH)) is not None:
        ledger.learnt(trained // BATCH, {group.id: "" for group in groups})
        pacing.learnt(BATCH)
        trained += BATCH
    return 1e6 * (time.process_time() - began) / trained


def main() -> None:
  """Prints all figures."""
  counts = [int(each) if each.isdecimal() else 0 for each in _IN_FLIGHT.value]
  if min(counts, default=0) < BATCH:
    raise ValueError(
      f"--in_flight={','.join(_IN_FLIGHT.value)}: name numbers of episodes from {BATCH} on, such "
      "as 1000,100000"
    )
  found = null_environment()
  costs = {count: scheduler(count) for count in counts}
  found |= {f"us_per_episode_{count}": cost for count, cost in costs.items()}
  found["ratio"] = costs[max(costs)] / costs[min(costs)]
  for name, value in found.items():
    print(f"{name:24} {value:,.2f}")
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
  entry_point.run(main)
