"""What an environment brings to a run: a module for each, behind one protocol."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.runs.corpus import Tasks
from jaxrl_agents.runs.recipes import coding, search, swarm
from jaxrl_agents.runs.rollout_workers import Stage
from jaxrl_agents.types import Group, Segment, Task, Trajectory


class Recipe(Protocol):
  """The functions of a recipe's module; `corpus` is what its own open_corpus returned."""

  HEADLINE: str
  """The score that progress bars show."""

  def open_corpus(self, config: RunConfig, report: Any = print) -> Tasks:
    """Makes tasks and index, or finds them in the cache.

    Raises:
      ValueError: the corpus cannot be read or no tasks can be made of it.
    """

  def policy_spec(self, config: RunConfig, corpus: Any) -> WorkerSpec:
    """Workers in which the policy plays, sampled by who sent the task."""

  def expert_spec(self, config: RunConfig, corpus: Any) -> WorkerSpec:
    """Workers in which the scripted expert plays."""

  def imitated(
    self, config: RunConfig, groups: Sequence[Group]
  ) -> tuple[Iterator[Segment], Mapping[str, int]]:
    """The segments of the expert's episodes that are worth imitating, and counts of episodes."""

  def practice(self, config: RunConfig, corpus: Any) -> list[Task]:
    """Simpler tasks.

    Raises:
      ValueError: there are none of this recipe.
    """

  def texts(self, config: RunConfig, corpus: Any) -> Sequence[str]:
    """Texts of the kind that the policy reads."""

  def drills(self, config: RunConfig, corpus: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Short exercises: the ids of a prompt and of its reply, int32 [P] and [R]."""

  def total(self, config: RunConfig, trajectory: Trajectory, step: int | None = None) -> float:
    """Reward of a trajectory at a training step; at evaluation (None) as after the last."""

  def variants(self, config: RunConfig) -> Mapping[str, RunConfig]:
    """{name: config} of further evaluations of the trained weights."""

  def frozen(self, config: RunConfig, warm_start: pathlib.Path) -> Mapping[str, Sequence[Stage]]:
    """{policy: its weights, one after the other} of those that play beside the one in training."""

  def scores(
    self, config: RunConfig, corpus: Any, groups: Sequence[Group]
  ) -> dict[str, dict[str, Any]]:
    """One evaluation: "policy", and what it is compared with; means over tasks."""

  def compare(
    self, config: RunConfig, corpus: Any, evaluations: Mapping[str, Sequence[Group]]
  ) -> dict[str, Any]:
    """The part of the summary that tells what training changed.

    Args:
      config: of the run.
      corpus: of the run.
      evaluations: "warm_start", "trained" and those of `variants`, on the same tasks.

    Returns:
      {"eval": {name: scores}, "paired_bootstrap": gains with bounds} and what else there is.
    """


RECIPES: Mapping[str, Recipe] = {"search": search, "swarm": swarm, "coding": coding}


def of(config: RunConfig) -> Recipe:
  """The recipe of `config.env`."""
  return RECIPES[config.env]
