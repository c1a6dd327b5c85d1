"""The main job from nothing to a report: tasks, warm-up, reinforcement learning, evaluation.

    python scripts/quickstart.py           # trains configs/search_cpu.py in runs/quickstart
    python scripts/quickstart.py --short   # shows the same path in about two minutes

Runs scripts/train_sft.py and scripts/train_rl.py one after the other, as you would.
The same command again continues where it stopped.
"""

import json
import math
import pathlib
import subprocess
import sys

from absl import flags

from jaxrl_agents.runs import entry_point as command
from jaxrl_agents.runs.workdir import Workdir

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHORT = (
  "sft.steps=6",
  "sft.rows_per_step=8",
  "sft.demonstration_tasks=24",
  "learner.steps=2",
  "learner.warmup_steps=0",
  "learner.groups_per_step=4",
  "eval.tasks=12",
)
"""Overrides that make every phase a few steps long."""
METRICS = 6
"""Columns of the printed table."""

_CONFIG = flags.DEFINE_string("config", "configs/search_cpu.py", "a file with get_config()")
_WORKDIR = flags.DEFINE_string("workdir", "runs/quickstart", "folder of the run")
_SHORT = flags.DEFINE_bool("short", False, "every phase a few steps long; learns nothing")
_INSTALL_S = flags.DEFINE_float("install_s", 0.0, "seconds that the installation took")
_SET = flags.DEFINE_multi_string("set", [], "section.option=value; may be given again")


def step(script: str, *arguments: str) -> None:
  """Runs one script; its failure is this command's."""
  command = [sys.executable, f"scripts/{script}", *arguments]
  print(f"\n$ python {' '.join(command[1:])}", flush=True)
  status = subprocess.run(command, cwd=ROOT).returncode
  if status:
    sys.exit(status)


def main() -> None:
  """Runs the steps, then prints the result."""
  workdir = pathlib.Path(_WORKDIR.value).resolve()
  if _INSTALL_S.value >= 1:  # else the environment was there
    Workdir(workdir).merge_summary({"wall_s": {"install": _INSTALL_S.value}})
  overrides = [*(SHORT if _SHORT.value else ()), *_SET.value]
  shared = [f"--config={_CONFIG.value}", f"--workdir={workdir}", *(f"--set={o}" for o in overrides)]
  for script in ("train_sft.py", "train_rl.py"):
    step(script, *shared)
  show(json.loads((workdir / "summary.json").read_text()))
  print(f"\nreport: {workdir / 'report.html'}")


def show(summary: dict) -> None:
  """Prints the agent's first metrics of each evaluation, the gains, and seconds of each part."""
  names = list(summary["eval"]["trained"])[:METRICS]
  print("\n" + " " * 16 + "".join(f"{name:>18}" for name in names))
  for row, entry in summary["eval"].items():
    print(f"{row:<16}" + "".join(f"{entry.get(name, math.nan):18.3f}" for name in names))
  gains = summary["paired_bootstrap"]
  for name, gain in gains.items():
    if name.endswith("_gain") and f"{name}_lower95" in gains:
      print(f"{name.removesuffix('_gain')}: {gain:+.3f}, 95 % from {gains[f'{name}_lower95']:+.3f}")
  seconds = summary["wall_s"]
  print("; ".join(f"{name.replace('_', ' ')} {value:.1f} s" for name, value in seconds.items()))


if __name__ == "__main__":
  command.run(main)
