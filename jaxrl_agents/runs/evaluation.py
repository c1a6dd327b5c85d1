"""Evaluates weights on held-out tasks: the same harness and environment as in training."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxrl_agents.config import MeshConfig, RunConfig
from jaxrl_agents.evals import suites
from jaxrl_agents.runs import base, processes, recipes, setup
from jaxrl_agents.runs.corpus import Corpus
from jaxrl_agents.runs.players import Players
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.types import Group, Task


def play(config: RunConfig, players: Players, tasks: Sequence[Task], *, label: str) -> list[Group]:
  """Rollouts of held-out tasks by the weights that the engine holds."""
  recipe, groups = recipes.of(config), []
  with Progress(label, len(tasks)) as progress:
    for group in players.play(tasks, config.eval.rollouts, seed=config.seed, label=label):
      groups.append(group)
      found = suites.scores(groups, functools.partial(recipe.total, config))
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
  frozen = recipe.frozen(config, _warm_start(folder))
  with (
    processes.bound(here) as bond,
    processes.stoppable(bond) as notice,
    Players(
      here, spec, params, 0, weights=None, bond=bond, notice=notice, frozen=frozen
    ) as players,
  ):
    players.warm_up()
    groups = play(here, players, tasks, label="evaluate")
  return {
    "checkpoint": checkpoint,
    "split": config.eval.split,
    **recipe.scores(config, corpus, groups),
  }


def _warm_start(folder: pathlib.Path) -> pathlib.Path:
  """The weights that those of `folder` were trained from, if they lie in a run's folder."""
  beside = folder.parent / "warm_start"
  return beside if (beside / base.WEIGHTS).is_file() else folder


def newest_policy(checkpoint: str) -> pathlib.Path | str:
  """The folder of weights that `checkpoint` stands for: "base", a folder of weights, or a workdir.

  Raises:
    ValueError: there is none.
  """
  if checkpoint == "base":
    return checkpoint
  folder = pathlib.Path(checkpoint).expanduser()
  for place in (folder, folder / "trained", folder / "warm_start"):
    if (place / base.WEIGHTS).is_file():
      return place
  raise ValueError(
    f"{folder} holds no policy ({base.WEIGHTS}, trained/ or warm_start/); train one with "
    "scripts/train_sft.py or scripts/train_rl.py, or name 'base'"
  )
