"""Trains one warm start by several judges and prints what became of it.

    python -m examples.judge_hacking.compare --workdir=W

| arm | what is rewarded |
|---|---|
| hacked | two rubrics, both of which length alone can please |
| rubrics | alternatives beside them: detail, relevance, precision |
| length | the two rubrics, and a cost of each word |
| kl | the two rubrics, and a cost of moving away from the warm start |
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

from examples.judge_hacking import judge

CONFIG = "examples/judge_hacking/config.py"
HACKED = "judge.trained=('detail','thorough')"
ARMS = {
  "hacked": (HACKED,),
  "rubrics": ("judge.trained=('detail','relevant','precise')",),
  "length": (HACKED, "next_number.word_cost=0.3"),
  "kl": (HACKED, "learner.kl=0.5"),
}
DEADLINE_S = 1_800


def run(script: str, workdir: pathlib.Path, *overrides: str) -> None:
  """Runs one of our scripts to its end."""
  command = [sys.executable, f"scripts/{script}.py", f"--config={CONFIG}", f"--workdir={workdir}"]
  for override in overrides:
    command += ["--set", override]
  subprocess.run(command, check=True, timeout=DEADLINE_S)


def row(arm: str, evaluation: str, summary) -> str:
  """A line of the table: an evaluation of an arm."""
  found = summary["eval"][evaluation]
  agreements = summary["judge"]["eval"][evaluation]
  of = lambda name: f"{name} {agreements[f'agreement_{name}']:.2f}"
  keys = [key for key in agreements if key.startswith("agreement_")]
  names = sorted(key.removeprefix("agreement_") for key in keys)
  trained = [of(name) for name in names if name != "held_out"]
  numbers = (found[key] for key in ("right", "words", "judged", "judged_held_out"))
  cells = [arm, evaluation, *(f"{number:.3f}" for number in numbers), ", ".join(trained)]
  return " | ".join(cells)


def main() -> None:
  """Trains what is not trained yet, then prints a table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--seed", type=int, default=0)
  given = parser.parse_args()
  seed, start = f"seed={given.seed}", given.workdir / "start"
  run("train_sft", start, seed)
  summaries = {}
  with judge.serving() as url:
    for arm, overrides in ARMS.items():
      workdir = given.workdir / arm
      begin = (f"policy.init={start / 'warm_start'}", f"judge.url={url}", "judge.weight=0.9")
      run("train_rl", workdir, seed, *begin, *overrides)
      summaries[arm] = json.loads((workdir / "summary.json").read_text())
  print("arm | evaluation | right | words | rewarded grade | held-out grade | agreement with right")
  for arm, summary in summaries.items():
    print(row(arm, "warm_start", summary))
    print(row(arm, "trained", summary))
    bounds = [summary["judge"][f"gap_gain{end}"] for end in ("", "_lower95", "_upper95")]
    exploited = "exploited" if summary["judge"]["exploited"] else "not exploited"
    print(f"  gap gain {bounds[0]:+.3f} ({bounds[1]:+.3f} to {bounds[2]:+.3f}): {exploited}")


if __name__ == "__main__":
  main()
