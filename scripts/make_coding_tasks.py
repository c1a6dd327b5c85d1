"""Makes a frozen set of coding tasks: real code, damaged, with tests that tell.

    python scripts/make_coding_tasks.py --out=coding                       # the standard library
    python scripts/make_coding_tasks.py --out=coding --kinds=calls         # short functions alone
    python scripts/make_coding_tasks.py --out=coding --source=FOLDER --source=NAME-1.0.tar.gz
    python scripts/make_coding_tasks.py --out=coding --source=package:numpy  # installed; functions

All code runs in sandboxes: nothing of a source is imported or built here. Prints the yield.
"""

from __future__ import annotations

import asyncio
import time

from absl import flags

from jaxrl_agents.agents.coding.tasks import task_set
from jaxrl_agents.runs import entry_point
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes

SOURCE = flags.DEFINE_multi_string(
  "source", ["python"], '"python", "package:NAME", a package folder, an sdist.'
)
OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)
KINDS = flags.DEFINE_list("kinds", ["calls", "suite"], "Kinds of repositories: calls, suite.")
flags.register_validator(
  KINDS,
  lambda kinds: bool(kinds) and set(kinds) <= {"calls", "suite"},
  "--kinds takes calls, suite, or both",
)
DAMAGE = flags.DEFINE_enum(
  "damage", "any", sorted(task_set.DAMAGE), "Damage of short functions, as coding.damage."
)
MAX_FILES = flags.DEFINE_integer(
  "max_files", 1, "Most files of short functions, as coding.max_files.", 1, 2
)
PER_REPO = flags.DEFINE_integer("per_repo", 12, "Most tasks of one repository.", lower_bound=1)
MAX_REPOS = flags.DEFINE_integer("max_repos", 10_000, "Most modules of a source.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Of every draw.")

_STARTED = time.monotonic()


def main() -> None:
  """Makes, writes and shows a set."""
  made = asyncio.run(_make())
  seconds = time.monotonic() - _STARTED
  task_set.save(made, OUT.value)
  number = sum(len(tasks) for tasks in made.tasks.values())
  report(f"{number} tasks of {len(made.repos)} repositories, {60 * number / seconds:.0f} a minute")
  for name, counter in made.manifest["counts"].items():
    print(f"{name:10} " + "  ".join(f"{key}: {count}" for key, count in counter.items()))
  for reason, count in made.manifest["refused"].items():
    print(f"{count:7} refused: {reason}")
  for split in ("train", "dev", "test"):
    for task in made.tasks[split][:1]:
      print(f"\n{task.id} ({task.facts['kind']}, {task.facts['repo_name']})\n{task.prompt}")


async def _make() -> task_set.CodingSet:
  async with Sandboxes() as boxes:
    return await task_set.make(
      boxes,
      SOURCE.value,
      kinds=KINDS.value,
      damage=DAMAGE.value,
      max_files=MAX_FILES.value,
      per_repo=PER_REPO.value,
      max_repos=MAX_REPOS.value,
      seed=SEED.value,
      report=report,
    )


def report(line: str) -> None:
  """Prints a stage and the seconds since the start."""
  print(f"{time.monotonic() - _STARTED:6.1f} s  {line}", flush=True)


if __name__ == "__main__":
  entry_point.run(main)
