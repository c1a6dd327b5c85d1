r"""How close asynchronous rollouts come to what the slower of the two sides allows.

    python scripts/bench_async.py --json=FILE
    python scripts/bench_async.py --config=configs/search_cpu.py --set search.tool_latency_s=3 \
      --set workers.episodes=128

First with simulated services: learning sleeps for a fixed time, and so does each episode;
pacing, threads and swaps are those of a run. `share_of_bound_depth_D` is max(play, learn) over the
time taken, by turns (depth 0) and ahead.

With --config then the run itself, by turns and ahead, from policy.init. `ratio` is that of steps
a second, and so of trajectories; the first two steps, which compile, are left out.
"""

from __future__ import annotations

import heapq
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from jaxrl_agents.fleet.async_rollouts import AsyncRollouts
from jaxrl_agents.fleet.pacing import Pacing
from jaxrl_agents.types import Group, Task

_JSON = flags.DEFINE_string("json", None, "file to write")
_CONFIG = flags.DEFINE_string("config", None, "config of a real run")
_STEPS = flags.DEFINE_integer("steps", 6, "steps of the real run")
_SET = flags.DEFINE_multi_string("set", [], "overrides of the real run")

BATCH, STEPS = 8, 40
LEARN_S = 0.2


class Sleeping:
  """A server whose episodes end after a time of their own; `slots` of them run at once."""

  def __init__(self, durations: dict[str, float], slots: int):
    self._durations, self._free = durations, slots
    self._running: list[tuple[float, str, Group]] = []

  def round(self, next_job):
    """Starts what there is room for; waits a little for one to end."""
    while self._free and (draw := next_job()) is not None:
      self._free -= 1
      ends = time.monotonic() + self._durations[draw.task.id]
      heapq.heappush(self._running, (ends, draw.label, Group(draw.task, (), draw.label)))
    if self._running:
      time.sleep(min(max(self._running[0][0] - time.monotonic(), 0.0), 0.01))
    ended = []
    while self._running and self._running[0][0] <= time.monotonic():
      ended.append(heapq.heappop(self._running)[2])
      self._free += 1
    return ended


def simulated(depth: int, durations: dict[str, float], slots: int) -> float:
  """Seconds that STEPS steps took."""
  drawn = lambda batch: [Task(f"{batch} {i}", "", "", {}) for i in range(BATCH)]
  pacing = Pacing(drawn, batch=BATCH, depth=depth, batches=STEPS)
  began = time.monotonic()
  with AsyncRollouts(Sleeping(durations, slots), pacing, lambda draw: draw) as ahead:
    for _ in range(STEPS):
      ahead.take(BATCH)
      time.sleep(LEARN_S)
      ahead.between_steps(lambda: None)
      ahead.learnt(BATCH)
  return time.monotonic() - began


def simulations() -> list[dict[str, float | str]]:
  """A row for each kind of latency."""
  rng = random.Random(0)
  names = [f"{batch} {i}" for batch in range(STEPS) for i in range(BATCH)]
  kinds = {
    "playing as long as learning": dict.fromkeys(names, LEARN_S),
    "playing half as long": dict.fromkeys(names, LEARN_S / 2),
    "playing twice as long": dict.fromkeys(names, 2 * LEARN_S),
    "log-normal, a hundredth of it 20 times the median": {
      name: LEARN_S / 4 * rng.lognormvariate(0, 1.3) for name in names
    },
  }
  rows: list[dict[str, float | str]] = []
  for kind, durations in kinds.items():
    slots = 2 * BATCH if "normal" in kind else BATCH
    play_s = sum(durations.values()) / slots
    bound = max(play_s, STEPS * LEARN_S)
    row: dict[str, float | str] = {"latencies": kind, "play_s": play_s, "learn_s": STEPS * LEARN_S}
    for depth in (0, 1, 2):
      row[f"share_of_bound_depth_{depth}"] = bound / simulated(depth, durations, slots)
    rows.append(row)
    print("  ".join(f"{k} {v if isinstance(v, str) else round(v, 3)}" for k, v in row.items()))
  return rows


def real(config: str) -> dict[str, float]:
  """Seconds a step by turns and ahead, and their ratio."""
  common = [f"--config={config}"]
  for override in (f"learner.steps={_STEPS.value}", "eval.tasks=2", *_SET.value):
    common += ["--set", override]
  found = {}
  with tempfile.TemporaryDirectory() as folder:
    for name, depth in (("by_turns", 0), ("ahead", 1)):
      workdir = pathlib.Path(folder) / name
      command = [sys.executable, "scripts/train_rl.py", f"--workdir={workdir}", *common]
      subprocess.run([*command, "--set", f"fleet.depth={depth}"], check=True)
      lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
      rows = [row for row in lines if row["phase"] == "rl"]
      times = [row["time"] for row in rows][1:]
      found[f"{name}_step_s"] = statistics.mean(b - a for a, b in itertools.pairwise(times))
  found["ratio"] = found["by_turns_step_s"] / found["ahead_step_s"]
  print(json.dumps(found))
  return found


def main(_: list[str]) -> None:
  """Runs both and writes the figures."""
  found: dict[str, object] = {"simulated": simulations()}
  if _CONFIG.value:
    found["real"] = real(_CONFIG.value)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
  app.run(main)
