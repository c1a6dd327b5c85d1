r"""How close asynchronous rollouts come to what the slower of the two sides allows.

    python scripts/bench_async.py --json=FILE
    python scripts/bench_async.py --config=configs/search_cpu.py --seeds=0,1,2 \
      --set search.tool_latency_s=1 --set search.tool_latency_sigma=1.3 --set workers.episodes=512

First with simulated services: learning sleeps for a fixed time, and so does each episode;
pacing, threads and swaps are those of a run. `share_of_bound_depth_D` is max(play, learn) over the
time taken, by turns (depth 0) and ahead; `share_of_bound` the least at depth 1, of
fixed latencies.

With --config then whole runs, warm-up and evaluation included, by turns and ahead. `ratio` is that
of trajectories a second over all steps of reinforcement learning, the mean of the seeds.
"""

from __future__ import annotations

import heapq
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from jaxrl_agents import config as config_lib
from jaxrl_agents.fleet.async_rollouts import AsyncRollouts
from jaxrl_agents.fleet.pacing import Pacing
from jaxrl_agents.types import Group, Task

_JSON = flags.DEFINE_string("json", None, "file to write")
_CONFIG = flags.DEFINE_string("config", None, "config of a real run")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "of the real runs")
_SET = flags.DEFINE_multi_string("set", [], "overrides of the real runs")

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


def simulations() -> list[dict[str, Any]]:
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
  rows: list[dict[str, Any]] = []
  for kind, durations in kinds.items():
    slots = 2 * BATCH if "normal" in kind else BATCH
    play_s = sum(durations.values()) / slots
    bound = max(play_s, STEPS * LEARN_S)
    row: dict[str, Any] = {"latencies": kind, "play_s": play_s, "learn_s": STEPS * LEARN_S}
    for depth in (0, 1, 2):
      row[f"share_of_bound_depth_{depth}"] = bound / simulated(depth, durations, slots)
    rows.append(row)
    print("  ".join(f"{k} {v if isinstance(v, str) else round(v, 3)}" for k, v in row.items()))
  return rows


def real(config: str, seeds: Sequence[str]) -> dict[str, dict[str, float]]:
  """{seed: trajectories a second ahead and by turns, their ratio, and the rewards of the trained
  policies on the test tasks}.
  """
  found = {}
  for seed in seeds:
    with tempfile.TemporaryDirectory() as folder:
      row: dict[str, float] = {}
      # What only the first run compiles counts against rollouts that are ahead.
      for name, depth in (("ahead", 1), ("by_turns", 0)):
        workdir = pathlib.Path(folder) / name
        options = [f"--config={config}"]
        for override in (f"seed={seed}", f"fleet.depth={depth}", *_SET.value):
          options += ["--set", override]
        for script in ("train_sft", "train_rl"):
          command = [sys.executable, f"scripts/{script}.py", f"--workdir={workdir}", *options]
          subprocess.run(command, check=True)
        row[f"{name}_per_s"] = trajectories_per_s(workdir / "metrics.jsonl")
        summary = json.loads((workdir / "summary.json").read_text())
        row[f"{name}_reward"] = summary["eval"]["trained"]["reward"]
      row["ratio"] = row["ahead_per_s"] / row["by_turns_per_s"]
    found[seed] = row
    print(f"seed {seed}  " + "  ".join(f"{k} {v:.3f}" for k, v in row.items()), flush=True)
  return found


def trajectories_per_s(metrics: pathlib.Path) -> float:
  """Over all steps of a run, from the begin of the first one."""
  rows = [row for row in map(json.loads, metrics.read_text().splitlines()) if row["phase"] == "rl"]
  began = rows[0]["time"] - rows[0]["collect_s"] - rows[0]["learn_s"]
  return sum(row["rollouts"] for row in rows) / (rows[-1]["time"] - began)


def main(_: list[str]) -> None:
  """Runs both and writes the figures."""
  if _CONFIG.value:
    config_lib.load(_CONFIG.value)  # a wrong one is refused before minutes of simulations
  rows = simulations()
  fixed = [row["share_of_bound_depth_1"] for row in rows if "log-normal" not in row["latencies"]]
  found: dict[str, object] = {"simulated": rows, "share_of_bound": min(fixed)}
  if _CONFIG.value:
    found["real"] = runs = real(_CONFIG.value, _SEEDS.value)
    found["ratio"] = statistics.mean(row["ratio"] for row in runs.values())
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
  app.run(main)
