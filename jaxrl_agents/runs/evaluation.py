"""Evaluates weights on held-out tasks, in the harness and environment of training."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import agreement, scores
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.agents.hostile_player import HOSTILE
from jaxrl_agents.config import MeshConfig, RunConfig
from jaxrl_agents.harness.worker_process import Job
from jaxrl_agents.runs import agent_setting, processes, rollout_workers, setup, weight_files
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.rollout_workers import FrozenWeights, RolloutWorkers
from jaxrl_agents.types import Group, Task


def play(
  config: RunConfig, players: RolloutWorkers, tasks: Sequence[Task], *, label: str
) -> list[Group]:
  """Rollouts of held-out tasks by the weights that the engine holds, with their rewards."""
  sampling = setup.eval_sampling(config)
  jobs = [Job(f"{label} {i}", task, config.eval.rollouts, sampling) for i, task in enumerate(tasks)]
  return collected(config, players.play(jobs), len(tasks), label)


def play_baseline(
  config: RunConfig, corpus: Tasks, tasks: Sequence[Task], player: str
) -> list[Group]:
  """Rollouts of held-out tasks by a scripted player of the agent, with their rewards."""
  spec = setup.worker_spec(config, corpus, player)
  rollouts, sampling = config.eval.rollouts, setup.sampling(config, config.seed)
  played = rollout_workers.scripted(config, spec, tasks, rollouts, sampling, label=player)
  return collected(config, played, len(tasks), player)


def collected(config: RunConfig, groups: Iterable[Group], count: int, label: str) -> list[Group]:
  """Collects `count` groups with their rewards, sorted by task id, behind a progress bar.

  Raises:
    ValueError: every episode failed.
  """
  agent = agent_setting.agent(config)
  rewarded: list[Group] = []
  scored, sum_of_means = 0, 0.0
  with Progress(label, count) as progress:
    for group in groups:
      rewarded += agent_lib.rewarded(
        agent, config.agent_config, [group], judge_weight=config.judge.weight
      )
      for mean in scores.scores(rewarded[-1:]).get(agent.headline, {}).values():
        scored, sum_of_means = scored + 1, sum_of_means + mean
      progress.advance(**{agent.headline: sum_of_means / max(scored, 1)})
  errors = [trajectory.error for group in rewarded for trajectory in group.trajectories]
  if errors and all(errors):
    raise ValueError(f"all {len(errors)} episodes ({label}) failed, the first one by {errors[0]}")
  return sorted(rewarded, key=lambda group: group.task.id)


def by_checkpoint(
  config: RunConfig, corpus: Tasks, checkpoint: str, tasks: Sequence[Task], *, label: str
) -> list[Group]:
  """`eval.rollouts` rollouts of each task by a checkpoint, with their rewards.

  The checkpoint is sampled on the devices of this process; `sampler.slices` is not read.
  """
  folder = pathlib.Path(newest_policy(checkpoint))
  params = setup.loaded(config, str(folder))
  here = dataclasses.replace(
    config,
    sampler=dataclasses.replace(config.sampler, slices=0),
    sampler_mesh=MeshConfig(),
  )
  run = folder if checkpoint in weight_files.SHIPPED else folder.parent  # those are of no run
  with (
    processes.bound(here) as channel,
    processes.stoppable(channel) as notice,
    RolloutWorkers(
      here,
      setup.worker_spec(config, corpus),
      params,
      0,
      weights=None,
      channel=channel,
      notice=notice,
      frozen=frozen(config, started_from(config, run)),
    ) as players,
  ):
    players.warm_up()
    return play(here, players, tasks, label=label)


def evaluate(config: RunConfig, corpus: Tasks, checkpoint: str) -> dict[str, Any]:
  """The scores of a checkpoint and of the agent's baselines on the tasks of `config.eval`."""
  tasks = corpus.sample(config.eval.split, config.eval.tasks, config.seed)
  groups = by_checkpoint(config, corpus, checkpoint, tasks, label="evaluate")
  agent = agent_setting.agent(config)
  setting = agent_setting.setting(config)
  played = {
    name: play_baseline(config, corpus, tasks, name)
    for name in agent.baselines(config.agent_config)
  }
  return {
    "checkpoint": checkpoint,
    "split": config.eval.split,
    **agent.scores(setting, corpus, groups),
    **{name: agent.entry(setting, groups) for name, groups in played.items()},
    **_judged(agreement.metrics(groups, agent.success)),
  }


def _judged(found: dict[str, float]) -> dict[str, Any]:
  """What is known of the judge, under one key; {} if there is none."""
  return {"judge": found} if found else {}


def evaluate_player(config: RunConfig, corpus: Tasks, name: str) -> dict[str, Any]:
  """The scores of one scripted player of the agent on the tasks of `config.eval`.

  Raises:
    ValueError: the agent has no such player, or every episode failed.
  """
  check_player(config, name)
  agent, setting = agent_setting.agent(config), agent_setting.setting(config)
  tasks = corpus.sample(config.eval.split, config.eval.tasks, config.seed)
  groups = play_baseline(config, corpus, tasks, name)
  return {"player": name, "split": config.eval.split, **agent.scores(setting, corpus, groups)}


def check_player(config: RunConfig, name: str) -> None:
  """Raises ValueError where the agent has no such scripted player, or it cannot play."""
  if name != HOSTILE:
    agent_setting.agent(config).check_player(name, config.agent_config)


def frozen(config: RunConfig, start: pathlib.Path) -> dict[str, tuple[FrozenWeights, ...]]:
  """{policy: its weights} of the policies that are sampled but not trained, such as sub-agents.

  `start` is the folder of the weights that training starts from.
  """
  policies = agent_setting.agent(config).frozen(config.agent_config, start)
  return {name: tuple(FrozenWeights(*each) for each in found) for name, found in policies.items()}


def started_from(config: RunConfig, run: pathlib.Path) -> pathlib.Path:
  """The folder of the weights that the training of a run starts from."""
  warm_start = run / "warm_start"
  return (
    warm_start
    if (warm_start / weight_files.WEIGHTS).is_file()
    else pathlib.Path(config.policy.init)
  )


def newest_policy(checkpoint: str) -> pathlib.Path | str:
  """The folder of weights that `checkpoint` names: a shipped policy, a folder of weights, or a
  workdir.

  Raises:
    ValueError: there is none.
  """
  if checkpoint in weight_files.SHIPPED:
    return checkpoint
  if checkpoint in setup.UNTRAINED:
    raise ValueError(
      f"--checkpoint is missing: policy.init={checkpoint} is no trained policy; pass a workdir, a "
      f"folder of weights, or one of {', '.join(weight_files.SHIPPED)}"
    )
  folder = pathlib.Path(checkpoint).expanduser()
  for place in (folder, folder / "trained", folder / "warm_start"):
    if (place / weight_files.WEIGHTS).is_file():
      return place
  raise ValueError(
    f"{folder} holds no policy: there is no {weight_files.WEIGHTS} in it, in trained/ or in "
    "warm_start/; train one with scripts/train_sft.py or scripts/train_rl.py, or pass one of "
    f"{', '.join(weight_files.SHIPPED)}"
  )
