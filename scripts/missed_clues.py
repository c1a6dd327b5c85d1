"""Why a search policy misses chunks, read from episodes that it has played.

    python scripts/evaluate.py --config=configs/search_cpu.py --split=test --checkpoint=W \
      --episodes=own.npz
    python scripts/missed_clues.py --episodes=own.npz

Prints how many clues were searched for as clue and hits say, and what went wrong with the others: a
name that a hit defines, but not the right one; another name; words of the clue that were not copied
as they stand; no search at all. Of episodes, the first thing that went wrong, with their mean
reward. A clue after that one often cannot be searched for any more.
"""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Sequence

import numpy as np
from absl import flags

from jaxrl_agents.agents.search import missed_clues
from jaxrl_agents.harness import group_files
from jaxrl_agents.runs import entry_point
from jaxrl_agents.types import Group

_EPISODES = flags.DEFINE_string("episodes", None, "written by scripts/evaluate.py", required=True)


def main() -> None:
  """Reads the episodes and prints the numbers."""
  if not pathlib.Path(_EPISODES.value).is_file():
    raise ValueError(
      f"--episodes={_EPISODES.value}: there is no such file; scripts/evaluate.py --episodes=FILE "
      "writes one"
    )
  print(json.dumps(counted(group_files.load_groups(_EPISODES.value)), indent=2))


def counted(groups: Sequence[Group]) -> dict[str, dict[str, object]]:
  """{"clues": {cause: number}, "episodes": {first cause: {"number", "reward"}}}; episodes that
  failed are left out.
  """
  clues: collections.Counter[str] = collections.Counter()
  rewards: dict[str, list[float]] = collections.defaultdict(list)
  for group in groups:
    for trajectory in (each for each in group.trajectories if not each.error):
      found = missed_clues.causes(group.task, trajectory)
      clues.update(found)
      first = next((each for each in found if each != missed_clues.SEARCHED), "all searched")
      rewards[first].append(trajectory.reward)
  told = lambda each: {"number": len(each), "reward": float(np.mean(each))}
  return {
    "clues": dict(clues.most_common()),
    "episodes": {cause: told(each) for cause, each in sorted(rewards.items())},
  }


if __name__ == "__main__":
  entry_point.run(main)
