"""Rejection sampling: good episodes of a policy, or of a teacher, become the next stage's warm-up.

episodes -> those that are right, and that a judge likes -> the best of each task -> segments
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import rejection
from jaxrl_agents.agents import teacher as teacher_lib
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.agents.teacher import Teacher
from jaxrl_agents.chat import document_numbers
from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness import group_files
from jaxrl_agents.learner import segment_files
from jaxrl_agents.runs import (
  agent_setting,
  demonstrations,
  evaluation,
  resumption,
  rollout_workers,
  setup,
)
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group, Segment, Task, Trajectory

SOURCE = "demonstrations"
"""The source of the warm-up's mixture that the episodes become."""

Best = Literal["shortest", "reward", "judged"]


@dataclasses.dataclass(frozen=True)
class Filter:
  """Which episodes are kept, and how many.

  Attributes:
    min_success: least value of the agent's success part as it was measured, or of the verified
      reward where an episode has none.
    min_judged: least grade of the judge; 0 where none was asked.
    best: which of a task's episodes are kept: the shortest, or those of the highest reward or
      grade.
    per_task: most episodes of a task; an easy one gives a single one (agents.rejection).
  """

  min_success: float = 1.0
  min_judged: float = 0.0
  best: Best = "shortest"
  per_task: int = 2


def played_in_training(config: RunConfig, workdir: Workdir) -> list[Group]:
  """The groups that the training in `workdir` has played, with their rewards.

  Raises:
    ValueError: there are none, or they are of another agent or chat format.
  """
  resumption.check_episodes(config, workdir)
  files = sorted(workdir.trajectories.glob("step_*.npz"))
  if not files:
    raise ValueError(
      f"{workdir.trajectories} holds no episodes of training; train with scripts/train_rl.py, or "
      "have new ones played: --tasks=400"
    )
  groups = [group for file in files for group in group_files.load_groups(file)]
  return agent_lib.rewarded(
    agent_setting.agent(config), config.agent_config, groups, judge_weight=config.judge.weight
  )


def played_by_policy(
  config: RunConfig, corpus: Tasks, checkpoint: str, *, tasks: int, rollouts: int
) -> list[Group]:
  """New episodes of `tasks` train tasks by a checkpoint, as for training, with their rewards."""
  chosen = corpus.sample("train", tasks, config.seed)
  # Sampled as in training.
  eval_section = dataclasses.replace(config.eval, rollouts=rollouts, temperature=-1.0, top_p=1.0)
  return evaluation.by_checkpoint(
    dataclasses.replace(config, eval=eval_section), corpus, checkpoint, chosen, label="rft"
  )


def played_by_teacher(
  config: RunConfig, corpus: Tasks, teacher: Teacher, *, tasks: int, rollouts: int
) -> list[Group]:
  """New episodes of `tasks` train tasks by a model behind an endpoint, with their rewards."""
  chosen: Sequence[Task] = corpus.sample("train", tasks, config.seed)
  spec = setup.worker_spec(config, corpus, teacher_lib.NAME, teacher=teacher)
  sampling = setup.sampling(config, config.seed)
  played = rollout_workers.scripted(config, spec, chosen, rollouts, sampling, label="teacher")
  return evaluation.collected(config, played, len(chosen), "teacher")


def chosen(config: RunConfig, groups: Sequence[Group], keep: Filter) -> list[Trajectory]:
  """The episodes that are worth imitating, see `Filter`.

  Raises:
    ValueError: a grade decides, and some episode has none.
  """
  agent = agent_setting.agent(config)
  judged = keep.min_judged > 0 or keep.best == "judged"
  finished = [t for group in groups for t in group.trajectories if not t.error]
  if judged and any("judged" not in t.rewards for t in finished):
    raise ValueError(
      "episodes without a judge's grade cannot be chosen by it; set judge.url and have new ones "
      "played (--tasks=400), or leave out --min_judged and --best=judged"
    )

  def is_right(trajectory: Trajectory) -> bool:
    verified = trajectory.metrics.get("verified_reward", trajectory.reward)
    found = trajectory.rewards.get(agent.success, verified)
    found = trajectory.rewards.get("ungated", found)  # Toggle gates it by length as well
    return found >= keep.min_success and trajectory.rewards.get("judged", 0.0) >= keep.min_judged

  scores: dict[str, Any] = {
    "shortest": None,
    "reward": lambda trajectory: trajectory.reward,
    "judged": lambda trajectory: trajectory.rewards["judged"],
  }
  trains = lambda trajectory: any(s.loss_mask.any() for s in trajectory.segments)
  return rejection.chosen(
    groups,
    lambda trajectory: trains(trajectory) and is_right(trajectory),
    best=scores[keep.best],
    per_task=keep.per_task,
  )


def check_new(into: Workdir) -> pathlib.Path:
  """The folder of a run that takes the chosen episodes.

  Raises:
    ValueError: it exists.
  """
  folder = into.demonstrations / SOURCE
  if folder.exists():
    raise ValueError(f"{folder} exists already; choose another --into")
  return folder


def write(
  config: RunConfig, groups: Sequence[Group], kept: Sequence[Trajectory], into: Workdir
) -> dict[str, int]:
  """Writes the episodes as the demonstrations of the run in `into`; returns the counts.

  scripts/train_sft.py takes them in the place of those of a scripted player.

  Raises:
    ValueError: no episode is kept, or the run has demonstrations already.
  """
  rollouts = [t for group in groups for t in group.trajectories]
  failed = sum(bool(t.error) for t in rollouts)
  counts = {"played": len(rollouts), "failed": failed, "kept": len(kept)}
  if not kept:
    raise ValueError(
      f"of {len(rollouts)} episodes ({failed} failed) none is right; lower --min_success or "
      "--min_judged, or have more played"
    )
  folder = check_new(into)
  resumption.record_demonstrations(config, into)
  segment_files.write_segments(folder, _segments(config, kept), counts=counts)
  into.merge_summary({SOURCE: counts})
  return counts


def _segments(config: RunConfig, kept: Sequence[Trajectory]) -> list[Segment]:
  """The segments to imitate; ids of documents are drawn anew where a policy must not learn them."""
  segments = [s for trajectory in kept for s in trajectory.segments if s.loss_mask.any()]
  if not agent_setting.agent(config).has_stable_ids(config.agent_config):
    return segments
  numbers = document_numbers.of(agent_setting.load_chat(config))
  rng = np.random.default_rng(config.seed)
  return [demonstrations.renumbered(segment, numbers, rng) for segment in segments]


def told(counts: dict[str, int], into: pathlib.Path) -> str:
  """What was kept, and how to go on."""
  share = counts["kept"] / max(counts["played"] - counts["failed"], 1)
  return (
    f"{counts['kept']} of {counts['played']} episodes ({share:.0%} of those that ended) are the "
    f"demonstrations of {into}; go on with scripts/train_sft.py --workdir={into}"
  )
