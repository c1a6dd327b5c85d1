"""Evaluates weights on held-out tasks: the same harness and environment as in training."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxrl_agents.agents import scores
from jaxrl_agents.config import MeshConfig, RunConfig
from jaxrl_agents.runs import processes, recipes, setup, weight_files
from jaxrl_agents.runs.corpus import Corpus
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.rollout_workers import RolloutWorkers
from jaxrl_agents.types import Group, Task


def play(
  config: RunConfig, players: RolloutWorkers, tasks: Sequence[Task], *, label: str
) -> list[Group]:
  """Rollouts of held-out tasks by the weights that the engine holds."""
  recipe, groups = recipes.of(config), []
  with Progress(label, len(tasks)) as progress:
    how = {"seed": config.seed, "label": label, "temperature": config.eval.temperature}
    for group in players.play(tasks, config.eval.rollouts, **how):
      groups.append(group)
      found = scores.scores(groups, functools.partial(recipe.total, config))
      values = found.get(recipe.HEADLINE, {}).values()
      progress.advance(**{recipe.HEADLINE: sum(values) / max(len(values), 1)})
  return sorted(groups, key=lambda group: group.task.id)


def evaluate(config: RunConfig, corpus: Corpus, checkpoint: str) -> dict[str, Any]:
  """The scores of a checkpoint on `config.eval`, beside what the recipe compares them with.

  It is sampled on the devices of this process, whatever `sampler.slices` says.
  """
  folder = pathlib.Path(newest_policy(checkpoint))
  params = setup.loaded(config, str(folder))
  tasks = corpus.sample(config.eval.split, config.eval.tasks, config.seed)
  here = dataclasses.replace(
    config,
    sampler=dataclasses.replace(config.sampler, slices=0),
    sampler_mesh=MeshConfig(),
  )
  recipe = recipes.of(config)
  spec = recipe.policy_spec(config, corpus)
  run = folder if checkpoint == "base" else folder.parent  # the shipped policy is of no run
  frozen = recipe.frozen(config, started_from(config, run))
  with (
    processes.bound(here) as channel,
    processes.stoppable(channel) as notice,
    RolloutWorkers(
      here, spec, params, 0, weights=None, channel=channel, notice=notice, frozen=frozen
    ) as players,
  ):
    players.warm_up()
    groups = play(here, players, tasks, label="evaluate")
  return {
    "checkpoint": checkpoint,
    "split": config.eval.split,
    **recipe.scores(config, corpus, groups),
  }


def started_from(config: RunConfig, run: pathlib.Path) -> pathlib.Path:
  """The folder of the weights that training in the folder of a run starts from."""
  warm_start = run / "warm_start"
  return (
    warm_start
    if (warm_start / weight_files.WEIGHTS).is_file()
    else pathlib.Path(config.policy.init)
  )


def newest_policy(checkpoint: str) -> pathlib.Path | str:
  """The folder of weights that `checkpoint` stands for: "base", a folder of weights, or a workdir.

  Raises:
    ValueError: there is none.
  """
  if checkpoint == "base":
    return checkpoint
  folder = pathlib.Path(checkpoint).expanduser()
  for place in (folder, folder / "trained", folder / "warm_start"):
    if (place / weight_files.WEIGHTS).is_file():
      return place
  raise ValueError(
    f"{folder} holds no policy ({weight_files.WEIGHTS}, trained/ or warm_start/); train one with "
    "scripts/train_sft.py or scripts/train_rl.py, or name 'base'"
  )
