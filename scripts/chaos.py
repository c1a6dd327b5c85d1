r"""Kills the processes of a run at random; checks that no rollout is lost or trained twice.

    python scripts/chaos.py --json=FILE
    python scripts/chaos.py --kills=100 --seed=7 --json=FILE
    python scripts/chaos.py --slices=1 --json=FILE

The run is scripts/bench/chaos_config.py: a tiny policy, played ahead of the learner, whose tasks
include some that kill their worker and some whose tool never answers. Two evaluators are beside it:
the one that it starts (`evaluator.every`) and a scripts/evaluate.py --follow. These get SIGKILL,
also while they start: the learner (with the sampler's, publishing and writing threads in its
process), its worker processes, and both evaluators. And the learner's disk is full: no file that it
writes may grow beyond a kilobyte from some moment on. It must then end, within a deadline, with the
error that names the folder. The same command goes on each time.

With --slices the samplers are slices of a Ray cluster that this script starts, and workers and
evaluator are on its node (extra "ray"). Slices get SIGKILL too: at any moment, while they start,
and when new weights are there. The run must go on by itself, or end with the error of a slice that
was lost four times while no request ended, and then go on with the same command.

At the end the ledger must have each group of each step exactly once, the groups in trajectories/
must be those that the ledger says, and all scores must be readable, with those of the last version
among them.

Prints `kills` (full disks included), `lost` and `doubled`, and what the ledger costs a rollout:
microseconds of a core, and bytes before and after it is compacted, for groups of eight. The exit
status is 0 only if there were so many kills, nothing was lost or doubled, each full disk was named,
no other error than that of lost slices ended the run, and the scores are there.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

from absl import app, flags
from bench.chaos_cluster import started_cluster
from bench.chaos_run import CONFIG, OF_SLICES, Run

from jaxrl_agents import config as config_lib
from jaxrl_agents import record_log, service_log
from jaxrl_agents.fleet import ledger as ledger_lib
from jaxrl_agents.harness import group_files
from jaxrl_agents.runs import evaluator
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group, Task, Trajectory
from jaxrl_agents.viewer import inputs

_JSON = flags.DEFINE_string("json", None, "file to write")
_KILLS = flags.DEFINE_integer("kills", 50, "processes to kill", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "seed of the times of kills and of the processes killed")
_STEPS = flags.DEFINE_integer("steps", 40, "steps of the run", lower_bound=4)
_DEADLINE_S = flags.DEFINE_float("deadline_s", 1800.0, "seconds for the whole test")
_SLICES = flags.DEFINE_integer(
  "slices", 0, "sampler slices of the run; 0: its own engine, without Ray", lower_bound=0
)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run; a temporary one by default")

SHARES = {"learner": 0.16, "evaluator": 0.06, "follower": 0.06, "disk": 0.04}
"""Shares of the kills, at least one each; others hit workers. "follower": scripts/evaluate.py."""
SLICE_SHARES = {"slice": 0.12, "starting_slice": 0.08, "loading_slice": 0.1}
"""Likewise, in a run with slices; before one that starts another one is killed."""

PAUSE_S = 0.7
"""Longest time from a step to the kill after it."""
AT_ONCE = 0.25
"""Share of the kills of the learner that are followed by another one while it starts."""


def chosen(draw: random.Random) -> list[str]:
  """The victims in turn; "starting_slice" follows on "slice"."""
  shares = SHARES | (SLICE_SHARES if _SLICES.value else {})
  pairs = {"starting_slice": ("slice", "starting_slice")}
  found = [
    pairs.get(name, (name,))
    for name, share in shares.items()
    for _ in range(max(1, round(share * _KILLS.value)))
  ]
  found += [("worker",)] * (_KILLS.value - sum(map(len, found)))
  draw.shuffle(found)
  return [victim for each in found for victim in each][: _KILLS.value]


def play(run: Run, draw: random.Random) -> dict[str, int]:
  """Kills on until there were enough, then lets the run end; the kills by victim.

  Kills are spread over the steps, so that the run gets on between them.
  """
  victims = chosen(draw)
  kills: collections.Counter[str] = collections.Counter()
  deadline = time.monotonic() + _DEADLINE_S.value
  at_once = False
  while not run.is_done():
    if time.monotonic() > deadline:
      raise TimeoutError(
        f"the run has not ended after {_DEADLINE_S.value:g} s: {kills.total()} kills, "
        f"{run.steps_done()} of {run.steps} steps; see {run.output}"
      )
    due = kills.total() * (run.steps - 3) // _KILLS.value  # versions come after the last kill
    victim = victims[kills.total()] if kills.total() < len(victims) else ""
    starts = victim == "starting_slice"  # whose kill waits until one does
    if victim and (at_once or starts or run.steps_done() >= due):
      time.sleep(0.0 if starts else draw.uniform(0.0, 10.0 if at_once else PAUSE_S))
      if run.kill(victim, draw):
        kills[victim] += 1
        at_once = victim == "learner" and draw.random() < AT_ONCE
    else:
      time.sleep(0.05)
  run.wait_for_follower()
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
    "steps_without_a_file": run.steps - files,
    "groups": len(closed),
    "trained_rollouts": sum(s.state == ledger_lib.TRAINED for s in states),
    "dropped_attempts": dict(why),
    "groups_used_after_a_restart": _used_after_a_restart(run.workdir / "ledger.log"),
    "replies_used_again": int(sum(row.get("replies_used_again", 0) for row in rows)),
    "ledger_bytes": (run.workdir / "ledger.log").stat().st_size,
  }


def scored(run: Run) -> dict[str, Any]:
  """What the evaluators left of a run that has ended."""
  files = list(Workdir(run.workdir).evaluations.glob("v*.json"))
  records = inputs.read_held_out(Workdir(run.workdir).evaluations)
  last = max(evaluator.published(Workdir(run.workdir)))
  states = service_log.read(Workdir(run.workdir).services)
  begun = lambda each: sum(state.does == service_log.STARTS for state in each)
  return {
    "scores": len(records),
    "unreadable_scores": len(files) - len(records),
    "last_version_scored": max(record["version"] for record in records) == last,
    "evaluator_starts": begun(states.get("evaluator", [])),
    "follower_starts": sum(begun(each) for n, each in states.items() if n.startswith("evaluator-")),
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
    workdir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
      options: tuple[str, ...] = ()
      if _SLICES.value:
        workers = config_lib.load(CONFIG).workers.processes
        options = stack.enter_context(started_cluster(_SLICES.value, workers))
      run = stack.enter_context(Run(workdir, _STEPS.value, options))
      kills = play(run, random.Random(_SEED.value))
      costs = cost(pathlib.Path(folder))
      result = found(run, config_lib.load(CONFIG).learner.groups_per_step) | scored(run)
  result = {
    "kills": sum(kills.values()),
    **{
      f"{victim}_kills": kills[victim]
      for victim in ("learner", "worker", "evaluator", "follower", *OF_SLICES)
    },
    "full_disks": kills["disk"],
    "full_disks_without_their_error": run.unnamed,
    "starts": run.starts,
    "ends_by_an_error": run.errors,
    "unexpected_errors": run.unexpected,
    "seconds": round(time.monotonic() - began, 1),
    **result,
    **costs,
  }
  print(json.dumps(result, indent=1))
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(result, indent=1) + "\n")
  wrong = ("lost", "doubled", "files_that_differ", "steps_without_a_file", "unreadable_scores")
  wrong += ("full_disks_without_their_error", "unexpected_errors")
  enough = result["kills"] >= _KILLS.value and result["last_version_scored"]
  sys.exit(not enough or any(result[each] for each in wrong))


if __name__ == "__main__":
  app.run(main)
