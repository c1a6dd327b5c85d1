r"""Plays episodes of a hostile policy and honest ones beside them: what breaks, what it costs.

  python scripts/bench_hostile.py --config=configs/search_cpu.py --episodes=2000
  python scripts/bench_hostile.py --config=configs/swarm_cpu.py --episodes=2000
  python scripts/bench_hostile.py --config=configs/coding_cpu.py --episodes=2000 \
    --set coding.command_s=1

Two pools of one worker each play at once: first honest episodes beside honest ones, then honest
episodes beside hostile ones. Honest episodes are the scripted expert's. The memory is that of the
hostile pool's worker with all its descendants. The exit status is 1 if an episode ended without a
reward, a worker died, or an episode overran its deadline.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil
from absl import flags

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents.agent import DEMONSTRATOR, Tasks
from jaxrl_agents.agents.hostile_player import HOSTILE
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import Job
from jaxrl_agents.runs import agent_setting, config_flags, entry_point, setup
from jaxrl_agents.types import Task, Trajectory

_config = config_flags.define()
_EPISODES = flags.DEFINE_integer("episodes", 2_000, "Hostile episodes.", lower_bound=8)
_HONEST = flags.DEFINE_integer("honest", 200, "Honest episodes timed alone.", lower_bound=8)
_SEED = flags.DEFINE_integer("seed", 0, "Of tasks and draws.")
_JSON = flags.DEFINE_string("json", "", "File that the figures are written to.")

_AT_ONCE = 4
_SAMPLE_S = 1.0


@dataclasses.dataclass
class Played:
  """What the episodes of one pool came to."""

  done: list[Trajectory] = dataclasses.field(default_factory=list)
  rewards: list[float] = dataclasses.field(default_factory=list)
  deaths: list[str] = dataclasses.field(default_factory=list)
  memory_mib: list[float] = dataclasses.field(default_factory=list)

  def seconds(self) -> float:
    """The median time of an episode."""
    return statistics.median(t.metrics["wall_s"] for t in self.done if not t.error)


class Lane:
  """One pool that plays an endless supply of groups of one episode. Invariant: `_AT_ONCE` run."""

  def __init__(self, config: Any, tasks: Tasks, player: str):
    self._agent, self._options = agent_setting.agent(config), config.agent_config
    self._sampling = setup.sampling(config, _SEED.value)
    spec = setup.worker_spec(config, tasks, player)
    self._pool = WorkerPool(spec, 1, groups_per_worker=_AT_ONCE, stall_s=config.workers.stall_s)
    self._pool.wait_until_ready()
    self._tasks: Sequence[Task] = tasks.sample("train", 10**6, _SEED.value)
    self._count, self._next_sample, self.played = 0, 0.0, Played()

  def step(self) -> None:
    """Keeps the pool busy, and takes in what has ended."""
    while self._pool.unfinished < _AT_ONCE:
      task = self._tasks[self._count % len(self._tasks)]
      sampling = dataclasses.replace(self._sampling, seed=self._count)
      self._pool.submit(Job(f"episode {self._count}", task, 1, sampling))
      self._count += 1
    for _, message in self._pool.poll(timeout_s=0.05):
      if message[0] == "group":
        for group in agent_lib.rewarded(self._agent, self._options, [message[1]]):
          (trajectory,) = group.trajectories
          self.played.done.append(dataclasses.replace(trajectory, segments=(), log=()))
          if not trajectory.error:
            self.played.rewards.append(trajectory.metrics["reward"])
      else:
        self.played.deaths.append(str(message[1]))
    if time.monotonic() > self._next_sample:
      self._next_sample = time.monotonic() + _SAMPLE_S
      self.played.memory_mib.append(self._memory_bytes() / (1 << 20))

  def _memory_bytes(self) -> int:
    total = 0
    for pid in self._pool.pids.values():
      try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
          total += each.memory_info().rss
      except psutil.Error:
        continue
    return total

  def start_over(self) -> None:
    """Forgets what was played."""
    self.played = Played()

  def close(self) -> None:
    """Ends the workers."""
    self._pool.close()


def together(lanes: Sequence[Lane], until: int) -> None:
  """Plays until the last of the lanes has so many episodes."""
  for lane in lanes:
    lane.start_over()
  printed = time.monotonic()
  while len(lanes[-1].played.done) < until:
    for lane in lanes:
      lane.step()
    if time.monotonic() - printed > 30.0:
      printed = time.monotonic()
      print(f"  {len(lanes[-1].played.done)} episodes", file=sys.stderr, flush=True)


def summary(config: Any, beside: Played, alone: Played, hostile: Played) -> dict[str, Any]:
  """The figures of a run."""
  deadline_s = setup.sampling(config, 0).episode_deadline_s
  longest_s = max(t.metrics.get("wall_s", 0.0) for t in hostile.done)
  quarter = max(1, len(hostile.memory_mib) // 4)
  return {
    "agent": config.agent,
    "episodes": len(hostile.done),
    "without_reward": sum(bool(t.error) for t in hostile.done),
    "errors": sorted({t.error[:300] for t in hostile.done if t.error})[:5],
    "worker_deaths": hostile.deaths[:5],
    "rewards_finite": all(map(math.isfinite, hostile.rewards)),
    "mean_reward": statistics.fmean(hostile.rewards) if hostile.rewards else None,
    "best_reward": max(hostile.rewards, default=None),
    "stops": dict(collections.Counter(t.stop for t in hostile.done).most_common()),
    "longest_episode_s": round(longest_s, 1),
    "deadline_s": deadline_s,
    "memory_mib_second_quarter": round(
      statistics.median(hostile.memory_mib[quarter : 2 * quarter])
    ),
    "memory_mib_last_quarter": round(statistics.median(hostile.memory_mib[-quarter:])),
    "honest_errors": sum(bool(t.error) for t in beside.done),
    "honest_mean_reward": statistics.fmean(beside.rewards),
    "honest_s_beside_honest": round(alone.seconds(), 4),
    "honest_s_beside_hostile": round(beside.seconds(), 4),
    "slowdown": round(beside.seconds() / alone.seconds(), 3),
  }


def main() -> None:
  """Plays and prints."""
  config = _config()
  tasks = agent_setting.open_tasks(config)
  honest, other, hostile = (
    Lane(config, tasks, name) for name in (DEMONSTRATOR, DEMONSTRATOR, HOSTILE)
  )
  try:
    together((other, honest), until=_HONEST.value)
    alone = honest.played
    together((honest, hostile), until=_EPISODES.value)
    found = summary(config, honest.played, alone, hostile.played)
  finally:
    for lane in (honest, other, hostile):
      lane.close()
  text = json.dumps(found, indent=2)
  print(text)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(text + "\n")
  late = found["longest_episode_s"] > found["deadline_s"] + 60
  if found["without_reward"] or found["worker_deaths"] or late:
    sys.exit(entry_point.FAILED)


if __name__ == "__main__":
  entry_point.run(main)
