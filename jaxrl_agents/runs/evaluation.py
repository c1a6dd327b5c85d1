"""Evaluates weights on held-out tasks, in the harness and environment of training.

Every process of a run that has several calls these functions; the first alone plays.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import agreement, scores
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.agents.hostile_player import HOSTILE
from jaxrl_agents.config import MeshConfig, RunConfig
from jaxrl_agents.harness import group_files
from jaxrl_agents.harness.worker_process import Job
from jaxrl_agents.runs import agent_setting, processes, rollout_workers, setup, weight_files
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.rollout_workers import FrozenWeights, RolloutWorkers
from jaxrl_agents.types import Group, Task

STARTED_FROM = "started_from.txt"
"""In the folder of an exported policy that plays with frozen ones: names the folder of the weights
that its training started from.
"""


def play(
  config: RunConfig, workers: RolloutWorkers, tasks: Sequence[Task], *, label: str
) -> list[Group]:
  """Rollouts of held-out tasks by the weights that the engine holds, with their rewards."""
  sampling = setup.eval_sampling(config)
  jobs = [Job(f"{label} {i}", task, config.eval.rollouts, sampling) for i, task in enumerate(tasks)]
  return collected(config, workers.play(jobs), len(tasks), label)


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
    sampler=dataclasses.replace(config.sampler, slices=0, frozen_slices=0),
    sampler_mesh=MeshConfig(),
  )
  # Shipped and exported policies lie in no run.
  is_alone = checkpoint in weight_files.SHIPPED or (folder / STARTED_FROM).is_file()
  run = folder if is_alone else folder.parent
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
    ) as workers,
  ):
    workers.warm_up()
    return workers.shared(lambda: play(here, workers, tasks, label=label))


def evaluate(
  config: RunConfig, corpus: Tasks, checkpoints: Sequence[str], *, episodes: str = ""
) -> dict[str, Any]:
  """The scores of checkpoints and of the agent's baselines on the tasks of `config.eval`.

  Args:
    config: of the run.
    corpus: its tasks.
    checkpoints: one or more, as `newest_policy` takes them.
    episodes: file for the episodes of the first one, see `episode_files`; "" for none.

  Returns:
    The scores of the first checkpoint ("policy" and others, see `Agent.scores`) and of each
    baseline; under "others" those of each further checkpoint, by its name, with its paired gains
    over the first one ("paired_bootstrap"). {} in every process but the first.

  Raises:
    ValueError: all episodes of a checkpoint failed, or it has no finished task in common with the
      first.
  """
  tasks = corpus.sample(config.eval.split, config.eval.tasks, config.seed)
  files = episode_files(episodes, len(checkpoints))
  played = {}
  for checkpoint, file in zip(checkpoints, files, strict=True):
    played[checkpoint] = by_checkpoint(config, corpus, checkpoint, tasks, label="evaluate")
    _keep(file, played[checkpoint])
  scored: dict[str, Any] = {}
  if processes.is_first():
    scored = _compared(config, corpus, tasks, played)
  processes.wait_for_all("evaluated")
  return scored


def _compared(
  config: RunConfig, corpus: Tasks, tasks: Sequence[Task], played: Mapping[str, list[Group]]
) -> dict[str, Any]:
  """What `evaluate` returns, of groups by checkpoint; plays the baselines."""
  agent, setting = agent_setting.agent(config), agent_setting.setting(config)
  first, *others = played
  found = {
    "checkpoint": first,
    "split": config.eval.split,
    **_scored(config, corpus, played[first]),
  }
  for name in agent.baselines(config.agent_config):
    found[name] = agent.entry(setting, play_baseline(config, corpus, tasks, name))
  if others:
    found["others"] = {
      checkpoint: {
        **_scored(config, corpus, played[checkpoint]),
        "paired_bootstrap": agent.gains(setting, played[checkpoint], played[first]),
      }
      for checkpoint in others
    }
  return found


def _scored(config: RunConfig, corpus: Tasks, groups: Sequence[Group]) -> dict[str, Any]:
  """The scores of the policy that played, and under "judge" what is known of a judge."""
  agent = agent_setting.agent(config)
  judged = agreement.metrics(groups, agent.success)
  scored = agent.scores(agent_setting.setting(config), corpus, groups)
  return {**scored, **({"judge": judged} if judged else {})}


def episode_files(file: str, count: int) -> list[pathlib.Path | None]:
  """Where the episodes of `count` checkpoints are kept: FILE, FILE-2, FILE-3, ..., the number
  before the ending; None for each if `file` is "".
  """
  if not file:
    return [None] * count
  path = pathlib.Path(file)
  further = [path.with_stem(f"{path.stem}-{number}") for number in range(2, count + 1)]
  return [path, *further]


def _keep(file: pathlib.Path | None, groups: Sequence[Group]) -> None:
  if file and processes.is_first():
    group_files.save_groups(file, groups)


def evaluate_player(
  config: RunConfig, corpus: Tasks, name: str, *, episodes: str = ""
) -> dict[str, Any]:
  """The scores of one scripted player of the agent on the tasks of `config.eval`; `episodes` names
  a file for its episodes.

  Raises:
    ValueError: the agent has no such player, or every episode failed.
  """
  check_player(config, name)
  agent, setting = agent_setting.agent(config), agent_setting.setting(config)
  tasks = corpus.sample(config.eval.split, config.eval.tasks, config.seed)
  groups = play_baseline(config, corpus, tasks, name)
  _keep(episode_files(episodes, 1)[0], groups)
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
  """The folder of the weights that the training of a run, or of an exported policy, starts from.

  Raises:
    ValueError: an exported policy names weights that are not there any more.
  """
  if (file := run / STARTED_FROM).is_file():
    start = pathlib.Path(file.read_text(encoding="utf-8").strip())
    if not (weight_files.place(start) / weight_files.WEIGHTS).is_file():
      raise ValueError(
        f"{file} names {start}, where no weights are; write the folder into it where they are now"
      )
    return start
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
    ValueError: there is none, or the newest is in a checkpoint of a run that has not ended.
  """
  if checkpoint in weight_files.SHIPPED:
    return checkpoint
  if checkpoint in setup.UNTRAINED:
    raise ValueError(
      f"--checkpoint is missing: policy.init={checkpoint} is no trained policy; pass a workdir, a "
      f"folder of weights, or one of {', '.join(weight_files.SHIPPED)}"
    )
  folder = pathlib.Path(checkpoint).expanduser()
  for place in (folder, folder / "trained"):
    if (place / weight_files.WEIGHTS).is_file():
      return place
  if any((folder / "checkpoints" / "rl").glob("[0-9]*")):
    raise ValueError(
      f"the training in {folder} has not ended, so that its newest policy is a checkpoint; export "
      f"that (scripts/export_policy.py --workdir={folder} --out=FOLDER) and pass FOLDER, or pass "
      f"{folder / 'warm_start'}, from which it began"
    )
  if (folder / "warm_start" / weight_files.WEIGHTS).is_file():
    return folder / "warm_start"
  raise ValueError(
    f"{folder} holds no policy: there is no {weight_files.WEIGHTS} in it, in trained/ or in "
    "warm_start/; train one with scripts/train_sft.py or scripts/train_rl.py, or pass one of "
    f"{', '.join(weight_files.SHIPPED)}"
  )
