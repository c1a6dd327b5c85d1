"""The main job from nothing to a report: tasks, warm-up, reinforcement learning, evaluation.

    python scripts/quickstart.py                  # configs/search_cpu.py into runs/quickstart
    python scripts/quickstart.py --short          # the same path in about two minutes, to see it
    run

Runs scripts/train_sft.py and scripts/train_rl.py one after the other, as you would.
The same command again continues where it stopped.
"""

import json
import pathlib
import subprocess
import sys
import time

from absl import flags

from jaxrl_agents.runs import entry_point as command

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHORT = (
  "sft.steps=6",
  "sft.rows_per_step=8",
  "sft.demonstration_tasks=24",
  "learner.steps=2",
  "learner.groups_per_step=4",
  "eval.tasks=12",
)
"""Overrides that make every phase a few steps long."""

_CONFIG = flags.DEFINE_string("config", "configs/search_cpu.py", "a file with get_config()")
_WORKDIR = flags.DEFINE_string("workdir", "runs/quickstart", "folder of the run")
_SHORT = flags.DEFINE_bool("short", False, "every phase a few steps long; learns nothing")
_SET = flags.DEFINE_multi_string("set", [], "section.option=value; may be given again")


def step(script: str, *arguments: str) -> float:
  """Runs one script and returns its seconds; its failure is this command's."""
  command = [sys.executable, f"scripts/{script}", *arguments]
  print(f"\n$ python {' '.join(command[1:])}", flush=True)
  began = time.monotonic()
  status = subprocess.run(command, cwd=ROOT).returncode
  if status:
    sys.exit(status)
  return time.monotonic() - began


def main() -> None:
  """Runs the steps, then prints the result."""
  workdir = pathlib.Path(_WORKDIR.value).resolve()
  overrides = [*(SHORT if _SHORT.value else ()), *_SET.value]
  shared = [f"--config={_CONFIG.value}", f"--workdir={workdir}", *(f"--set={o}" for o in overrides)]
  seconds = {
    "warm-up": step("train_sft.py", *shared),
    "reinforcement learning": step("train_rl.py", *shared),
  }
  show(json.loads((workdir / "summary.json").read_text()), seconds)
  print(f"\nreport: {workdir / 'report.html'}")


def show(summary: dict, seconds: dict[str, float]) -> None:
  """Prints the evaluation table and the gains."""
  names = ("reward", "output_recall", "trajectory_recall", "f1", "answer_found", "turns")
  print("\n" + " " * 16 + "".join(f"{name:>18}" for name in names))
  for row, entry in summary["eval"].items():
    print(f"{row:<16}" + "".join(f"{entry[name]:18.3f}" for name in names))
  gains = summary["paired_bootstrap"]
  for name in ("reward", "output_recall"):
    print(f"{name}: {gains[f'{name}_gain']:+.3f}, 95 % from {gains[f'{name}_gain_lower95']:+.3f}")
  print("; ".join(f"{name} {value:.0f} s" for name, value in seconds.items()))


if __name__ == "__main__":
  command.run(main)
