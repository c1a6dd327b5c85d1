"""Evaluates weights on held-out tasks: the same harness and environment as in training."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxrl_agents.config import MeshConfig, RunConfig
from jaxrl_agents.envs import search_tools
from jaxrl_agents.evals import suites
from jaxrl_agents.learner.curriculum import phase_value
from jaxrl_agents.rewards import parl, rules
from jaxrl_agents.runs import base, processes, setup
from jaxrl_agents.runs.players import Players
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.types import Group, Task, Trajectory

METRICS = ("reward", "output_recall", "trajectory_recall", "f1", "answer_found", "turns", "tasks")


def total(config: RunConfig, trajectory: Trajectory, step: int | None = None) -> float:
  """Reward of a trajectory at a training step; at evaluation (None) with the last beta, or without
  the auxiliaries of PARL.
  """
  reward, steps = config.reward, config.learner.steps
  if config.env == "swarm":
    u = 1.0 if step is None else step / max(steps, 1)
    return parl.parl_total(trajectory.rewards, u=u, weights=config.parl)
  beta = reward.betas[-1] if step is None else phase_value(reward.betas, step, steps)
  return rules.search_total(trajectory.rewards, beta=beta, weights=reward)


def play(config: RunConfig, players: Players, tasks: Sequence[Task], *, label: str) -> list[Group]:
  """Rollouts of held-out tasks by the weights that the engine holds."""
  groups = []
  with Progress(label, len(tasks)) as progress:
    for group in players.play(tasks, config.eval.rollouts, seed=config.seed, label=label):
      groups.append(group)
      recall = suites.scores(groups, functools.partial(total, config)).get("output_recall", {})
      progress.advance(recall=sum(recall.values()) / max(len(recall), 1))
  return sorted(groups, key=lambda group: group.task.id)


def entry(config: RunConfig, groups: Sequence[Group]) -> dict[str, float]:
  """The numbers of one evaluation, means over tasks."""
  found = suites.summary(groups, functools.partial(total, config))
  return {name: found[name] for name in found if name in METRICS} | {
    name: found[name]
    for name in ("precision", "num_output", "tool_calls", "prune_accuracy", "completed", "failed")
    if name in found
  }


def compare(
  config: RunConfig, corpus: setup.Corpus, before: Sequence[Group], after: Sequence[Group]
) -> dict[str, Any]:
  """{"eval": warm_start, trained and one_shot_hybrid; "paired_bootstrap": gains with bounds}."""
  one_shot = one_search(config, corpus, after)
  score = functools.partial(total, config)
  resamples = config.eval.bootstrap_resamples
  gains = suites.gains(after, before, score, resamples=resamples, seed=config.seed)
  over = suites.gains(
    after, one_shot, score, metrics=("output_recall",), resamples=resamples, seed=config.seed
  )
  return {
    "eval": {
      "warm_start": entry(config, before),
      "trained": entry(config, after),
      "one_shot_hybrid": entry(config, one_shot),
    },
    "paired_bootstrap": gains | {f"one_shot_{name}": value for name, value in over.items()},
  }


def one_search(config: RunConfig, corpus: setup.Corpus, groups: Sequence[Group]) -> list[Group]:
  """What one hybrid search with the whole question finds, at the same number of chunks."""
  return suites.one_shot_hybrid(
    groups,
    corpus.index,
    count_tokens=setup.load_chat(config).count,
    max_documents=config.search.max_documents,
    settings=search_tools.fusion_of(config.search),
  )


def evaluate(config: RunConfig, corpus: setup.Corpus, checkpoint: str) -> dict[str, Any]:
  """The scores of a checkpoint on `config.eval`, beside one hybrid search, overall and by level.

  It is sampled on the devices of this process, whatever `sampler.slices` says.
  """
  params = setup.loaded(config, str(newest_policy(checkpoint)))
  tasks = corpus.sample(config.eval.split, config.eval.tasks, config.seed)
  here = dataclasses.replace(
    config,
    sampler=dataclasses.replace(config.sampler, slices=0),
    sampler_mesh=MeshConfig(),
  )
  spec = setup.policy_spec(config, corpus)
  with (
    processes.bound(here) as bond,
    processes.stoppable(bond) as notice,
    Players(here, spec, params, 0, weights=None, bond=bond, notice=notice) as players,
  ):
    players.warm_up()
    groups = play(here, players, tasks, label="evaluate")
  one_shot = one_search(config, corpus, groups)
  levels = sorted({group.task.facts["level"] for group in groups})
  at_level = lambda level: [g for g in groups if g.task.facts["level"] == level]
  return {
    "checkpoint": checkpoint,
    "split": config.eval.split,
    "policy": entry(config, groups),
    "one_shot_hybrid": entry(config, one_shot),
    "by_level": {str(level): entry(config, at_level(level)) for level in levels},
  }


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
