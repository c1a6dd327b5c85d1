r"""Kills the processes of a run at random; checks that no rollout is lost or trained twice.

    python scripts/chaos.py --json=FILE
    python scripts/chaos.py --kills=100 --seed=7 --json=FILE

The run is scripts/bench/chaos_config.py: a tiny policy, played ahead of the learner, whose tasks
include some that kill their worker and some whose tool never answers. The learner (with the
sampler's, publishing and writing threads in its process) and its worker processes get SIGKILL, also
while they start; the same command then goes on. At the end the ledger must have each group of each
step exactly once, and the groups in trajectories/ must be those that the ledger says.

Prints `kills`, `lost` and `doubled`, and what the ledger costs a rollout: microseconds of a core,
and bytes before and after it is compacted, for groups of eight. The exit status is 0 only if there
were so many kills and nothing was lost or doubled.
"""

from __future__ import annotations

import collections
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil
from absl import app, flags

from jaxrl_agents import config as config_lib
from jaxrl_agents import record_log
from jaxrl_agents.fleet import ledger as ledger_lib
from jaxrl_agents.harness import group_files
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group, Task, Trajectory

_JSON = flags.DEFINE_string("json", None, "file to write")
_KILLS = flags.DEFINE_integer("kills", 50, "processes to kill", lower_bound=1)
_LEARNER_SHARE = flags.DEFINE_float(
  "learner_share", 0.16, "share of the kills that hit the learner"
)
_SEED = flags.DEFINE_integer("seed", 0, "of the moments and the victims")
_STEPS = flags.DEFINE_integer("steps", 40, "of the run", lower_bound=2)
_DEADLINE_S = flags.DEFINE_float("deadline_s", 1800.0, "for all of it")
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run; a temporary one by default")

CONFIG = "scripts/bench/chaos_config.py"
PAUSE_S = 0.7
"""Longest time from a step to the kill after it."""
AT_ONCE = 0.25
"""Share of the kills of the learner that are followed by another one while it starts."""


class Run:
  """The command and its process. Invariant: at most one process runs, which this object started."""

  def __init__(self, workdir: pathlib.Path, steps: int):
    self.workdir, self.steps = workdir, steps
    self.starts, self.errors = 0, 0
    self._log = (workdir.parent / "output.txt").open("ab")
    self._process: subprocess.Popen[bytes] | None = None

  def __enter__(self) -> Run:
    return self

  def __exit__(self, *_: object) -> None:
    if self._process:
      self._process.kill()
      self._process.wait(30)
    self._log.close()

  def is_done(self) -> bool:
    """Whether the run has ended well; starts it if it is not running."""
    status = self._process.poll() if self._process else None
    if status == 0:
      return True
    if self._process is None or status is not None:
      self.errors += status is not None and status > 0
      command = [sys.executable, "scripts/train_rl.py", f"--config={CONFIG}"]
      command += [f"--workdir={self.workdir}", "--set", f"learner.steps={self.steps}"]
      self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
      self.starts += 1
    return False

  def kill(self, victim: str, draw: random.Random) -> bool:
    """Sends SIGKILL to the learner or to one of its workers; False if there is none."""
    assert self._process
    if victim == "learner":
      if self._process.poll() is not None:
        return False
      self._process.kill()
      self._process.wait(30)
      return True
    workers = _workers(self._process.pid)
    if not workers:
      return False
    try:
      draw.choice(workers).send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
      return False
    return True

  def steps_done(self) -> int:
    """Steps that the ledger has; those of the last checkpoint or one more."""
    path = self.workdir / "ledger.log"
    if not path.exists():
      return 0
    return 1 + max((state.step for state in ledger_lib.read(path)), default=-1)


def _workers(pid: int) -> list[psutil.Process]:
  try:
    children = psutil.Process(pid).children()
    return [each for each in children if any("worker_main" in part for part in each.cmdline())]
  except psutil.Error:
    return []


def play(run: Run, draw: random.Random) -> dict[str, int]:
  """Kills on until there were enough, then lets the run end; the kills by victim.

  Kills are spread over the steps, so that the run gets on between them.
  """
  learners = max(1, round(_KILLS.value * _LEARNER_SHARE.value))
  victims = ["learner"] * learners + ["worker"] * (_KILLS.value - learners)
  draw.shuffle(victims)
  kills: collections.Counter[str] = collections.Counter()
  deadline = time.monotonic() + _DEADLINE_S.value
  at_once = False
  while not run.is_done():
    if time.monotonic() > deadline:
      raise TimeoutError(
        f"the run has not ended after {_DEADLINE_S.value:g} s: {kills.total()} kills, "
        f"{run.steps_done()} of {run.steps} steps; see {run.workdir.parent / 'output.txt'}"
      )
    due = kills.total() * (run.steps - 1) // _KILLS.value
    if kills.total() < len(victims) and (at_once or run.steps_done() >= due):
      time.sleep(draw.uniform(0.0, 10.0 if at_once else PAUSE_S))
      victim = victims[kills.total()]
      if run.kill(victim, draw):
        kills[victim] += 1
        at_once = victim == "learner" and draw.random() < AT_ONCE
    else:
      time.sleep(0.05)
  return kills


def found(run: Run, batch: int) -> dict[str, Any]:
  """What the ledger and the trajectories say of a run that has ended."""
  expected = {f"step {step} {place}" for step in range(run.steps) for place in range(batch)}
  ledger = ledger_lib.read(run.workdir / "ledger.log")
  states = list(ledger)
  ends = collections.Counter((s.group, s.sample) for s in states if s.step >= 0)
  steps: dict[int, set[str]] = collections.defaultdict(set)
  for state in states:
    if state.step >= 0:
      steps[state.step].add(state.group)
  seen: collections.Counter[str] = collections.Counter()
  differ, files = 0, 0
  for path in sorted((run.workdir / "trajectories").glob("step_*.npz")):
    groups = [group.id for group in group_files.load_groups(path)]
    seen.update(groups)
    files += 1
    differ += set(groups) != steps[int(path.stem.removeprefix("step_"))]
  rows = Workdir(run.workdir).lines()
  closed = {group for group, _ in ends}
  doubled = {group for (group, _), count in ends.items() if count > 1} | set(ledger.doubled)
  doubled |= {group for group, count in seen.items() if count > 1}
  why = collections.Counter(_kind(s.why) for s in states if s.state == ledger_lib.DROPPED)
  return {
    "lost": len(expected - closed),
    "doubled": len(doubled),
    "files_that_differ": differ,
    "step_files": files,
    "groups": len(closed),
    "trained_rollouts": sum(s.state == ledger_lib.TRAINED for s in states),
    "dropped_attempts": dict(why),
    "groups_used_after_a_restart": _used_after_a_restart(run.workdir / "ledger.log"),
    "replies_used_again": int(sum(row.get("replies_used_again", 0) for row in rows)),
    "ledger_bytes": (run.workdir / "ledger.log").stat().st_size,
  }


def _kind(why: str) -> str:
  """A reason without its numbers."""
  for text in ("died", ledger_lib.KILLED, "rewards are equal"):
    if text in why:
      return text
  return why.partition(":")[0]


def _used_after_a_restart(path: pathlib.Path) -> int:
  """How many groups an earlier process had played and a later one did not play again."""
  used, here = 0, set[str]()
  for record in record_log.scan(path):
    if record["is"] == "resumed":
      here = set()
    elif record["is"] == "dispatched":
      here.add(record["group"])
    elif record["is"] == "learnt":
      used += sum(group not in here for group in record["groups"])
  return used


def cost(folder: pathlib.Path, groups: int = 5000, rollouts: int = 8) -> dict[str, float]:
  """What the ledger takes for a rollout, where groups are played ahead in steps of ten."""
  played = (Trajectory("task", (), (), {}, "end"),) * rollouts
  path = folder / "cost.log"
  with ledger_lib.Ledger(path, 0) as ledger:
    began = time.process_time()
    for step in range(groups // 10):
      names = [f"step {step} {place}" for place in range(10)]
      for name in names:
        ledger.dispatched(name, f"task {step % 97}", rollouts)
        ledger.finished(Group(Task("task", "", "", {}), played, name))
        ledger.ready(name)
      ledger.learnt(step, dict.fromkeys(names, ""))
    took, grown = time.process_time() - began, path.stat().st_size
    ledger.saved()
  count = groups * rollouts
  return {
    "ledger_us_a_rollout": round(1e6 * took / count, 2),
    "ledger_bytes_a_rollout": round(grown / count, 2),
    "ledger_bytes_a_rollout_compacted": round(path.stat().st_size / count, 2),
  }


def main(_: list[str]) -> None:
  """Kills, checks, writes the figures."""
  began = time.monotonic()
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(_WORKDIR.value or f"{folder}/run")
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with Run(workdir, _STEPS.value) as run:
      kills = play(run, random.Random(_SEED.value))
      costs = cost(pathlib.Path(folder))
      result = found(run, config_lib.load(CONFIG).learner.groups_per_step)
  result = {
    "kills": sum(kills.values()),
    "learner_kills": kills["learner"],
    "worker_kills": kills["worker"],
    "starts": run.starts,
    "ends_by_an_error": run.errors,
    "seconds": round(time.monotonic() - began, 1),
    **result,
    **costs,
  }
  print(json.dumps(result, indent=1))
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(result, indent=1) + "\n")
  enough = result["kills"] >= _KILLS.value
  sys.exit(not enough or any(result[each] for each in ("lost", "doubled", "files_that_differ")))


if __name__ == "__main__":
  app.run(main)
