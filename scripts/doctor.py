"""Tells in a few seconds what this machine has and lacks for each recipe, with remedies.

    python scripts/doctor.py

The exit status is 1 if a recipe cannot run here.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags

from jaxrl_agents.runs import doctor, entry_point

_FOLDER = flags.DEFINE_string("workdir", ".", "Where runs are to be written.")

_MARKS = {"ok": "ok   ", "note": "note ", "lacks": "LACKS"}


def main() -> None:
  """Prints each check as soon as it is done, then a line for each recipe."""
  found = []
  for check in doctor.checks(pathlib.Path(_FOLDER.value)):
    found.append(check)
    print(f"{_MARKS[check.state]} {check.name}: {check.found}", flush=True)
    if check.remedy:
      print(f"      -> {check.remedy}", flush=True)
  print()
  for recipe, verdict in doctor.verdicts(found).items():
    print(f"{recipe}: {verdict}")
  if any(verdict != "ready" for verdict in doctor.verdicts(found).values()):
    sys.exit(entry_point.FAILED)


if __name__ == "__main__":
  entry_point.run(main)
