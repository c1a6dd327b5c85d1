"""Plays held-out tasks with weights, or with a scripted player, and prints the scores.

  python scripts/evaluate.py --config=configs/search_cpu.py --checkpoint=W --split=test --json=FILE
  python scripts/evaluate.py --config=configs/search_cpu.py --checkpoint=W --checkpoint=W2
  python scripts/evaluate.py --config=configs/search_cpu.py --player=heuristic
  python scripts/evaluate.py --config=configs/search_cpu.py --checkpoint=W --follow

A checkpoint is evaluated with all of the agent's baselines. All play the same tasks in the same
environment; of several checkpoints each further one is compared with the first, task by task. With
--set eval.rollouts=4 or more rollouts of a task the scores have pass@k. A policy on several hosts
is evaluated by as many processes, which share the disk, each with its own --process_id:

  python scripts/evaluate.py --checkpoint=W --set mesh.fsdp=8 \\
    --set learner.rows_per_microbatch=8 --set sft.rows_per_step=8 \\
    --coordinator=HOST:PORT --num_processes=2 --process_id=0

With --follow it stays beside the run in W, also on another machine that sees the folder, and
evaluates the versions that the run publishes on the dev split (section `evaluator`). It ends with
the run; --config and --set must be those of the run.
"""

import functools
import json
import os
import pathlib
import socket

import jax
from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents import service_log
from jaxrl_agents.runs import (
  agent_setting,
  config_flags,
  entry_point,
  evaluation,
  evaluator,
  processes,
  setup,
)
from jaxrl_agents.runs.workdir import Workdir

NOT_WITH_FOLLOW = ("player", "split", "threshold", "json", "episodes")
NOT_WITH_FOLLOW += ("coordinator", "num_processes", "process_id")

_config = config_flags.define()
_start_processes = processes.define()
_CHECKPOINTS = flags.DEFINE_multi_string(
  "checkpoint",
  [],
  "a workdir, a folder of weights, or a shipped policy; by default policy.init; given "
  "again, each further one is compared with the first",
)
_PLAYER = flags.DEFINE_string(
  "player", None, "a scripted player of the agent, which plays in the place of a checkpoint"
)
_SPLIT = flags.DEFINE_enum(
  "split", None, ["train", "dev", "test"], "which tasks; left out: those of eval.split"
)
_THRESHOLD = flags.DEFINE_float(
  "threshold", None, "success from which a rollout is right, for pass@k; left out: eval.threshold"
)
_FOLLOW = flags.DEFINE_bool(
  "follow", False, "evaluate what the run in --checkpoint publishes, as it is published"
)
_JSON = flags.DEFINE_string("json", None, "also write the scores to this file")
_EPISODES = flags.DEFINE_string(
  "episodes",
  None,
  "also write the episodes to this .npz file, as group_files.load_groups reads it; those of a "
  "second checkpoint to FILE-2.npz, and so on",
)


def main() -> None:
  """Opens the corpus, plays, prints. Who plays is checked first: tasks may take minutes to make."""
  if _FOLLOW.value:
    _follow()
    return
  config = _eval_config()
  checkpoints = _CHECKPOINTS.value or [config.policy.init]
  _check(config, checkpoints)
  setup.cores_as_devices(config)
  _start_processes()
  if _PLAYER.value and jax.distributed.is_initialized():
    raise ValueError(f"--player={_PLAYER.value} needs one process; leave out --coordinator")
  setup.compilation_cache(config)
  with setup.devices(config):
    with processes.first_alone("tasks"):
      tasks = agent_setting.open_tasks(config)
    episodes = _EPISODES.value or ""
    if _PLAYER.value:
      found = evaluation.evaluate_player(config, tasks, _PLAYER.value, episodes=episodes)
    else:
      found = evaluation.evaluate(config, tasks, checkpoints, episodes=episodes)
  if processes.is_first():
    text = json.dumps(found, indent=2)
    print(text)
    if _JSON.value:
      pathlib.Path(_JSON.value).write_text(text + "\n")


def _eval_config() -> config_lib.RunConfig:
  """The config with what --split and --threshold set, checked."""
  options = {"split": _SPLIT.value, "threshold": _THRESHOLD.value}
  given = [f"eval.{name}={value}" for name, value in options.items() if value is not None]
  return config_lib.validate(config_lib.with_overrides(_config(), given))


def _check(config: config_lib.RunConfig, checkpoints: list[str]) -> None:
  """Raises ValueError for flags that contradict each other, and names that name nothing."""
  if _PLAYER.value and _CHECKPOINTS.value:
    raise ValueError(
      f"--player={_PLAYER.value} plays in the place of --checkpoint={checkpoints[0]}; leave out one"
    )
  if twice := {each for each in checkpoints if checkpoints.count(each) > 1}:
    raise ValueError(f"--checkpoint={min(twice)} is given twice; leave out one")
  for flag, value in (("json", _JSON.value), ("episodes", _EPISODES.value)):
    if value and not pathlib.Path(value).absolute().parent.is_dir():
      raise ValueError(f"--{flag}={value}: there is no such folder; make it first")
    if value and pathlib.Path(value).is_dir():
      raise ValueError(f"--{flag}={value} is a folder; name a file in it")
  if _PLAYER.value:
    evaluation.check_player(config, _PLAYER.value)
    return
  for checkpoint in checkpoints:
    evaluation.newest_policy(checkpoint)


def _follow() -> None:
  """Evaluates what a run publishes, until it ends."""
  config, runs = _config(), _CHECKPOINTS.value
  if refused := [f"--{name}" for name in NOT_WITH_FOLLOW if flags.FLAGS[name].present]:
    raise ValueError(
      f"--follow does not take {', '.join(refused)}: one process plays tasks of the dev split with "
      "the weights of a run, and leaves the scores in its folder; leave them out"
    )
  if len(runs) != 1 or not pathlib.Path(runs[0]).is_dir():
    raise ValueError(f"--follow needs the folder of one run in --checkpoint, not {runs}")
  setup.compilation_cache(config)
  workdir = Workdir(runs[0], weights=config.publish.folder)
  name = f"evaluator-{socket.gethostname()}-{os.getpid()}"
  over = functools.partial(evaluator.learner_ended, workdir.services)
  with setup.devices(config), service_log.opened(workdir.services, name) as tell:
    evaluator.follow(config, agent_setting.open_tasks(config), workdir, tell, over)


if __name__ == "__main__":
  entry_point.run(main, processes.leave)
