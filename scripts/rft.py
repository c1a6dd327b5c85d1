"""Rejection sampling: good episodes become the demonstrations of the next stage's warm-up.

From what a run played while it was trained:

    python scripts/rft.py --config=configs/coding_cpu.py --workdir=W --into=NEXT
    python scripts/train_sft.py --config=configs/coding_cpu.py --workdir=NEXT \\
      --set policy.init=W/trained --set sft.rates=1,0,0,0

New episodes, the best of 8 by reward; or those of a teacher behind an OpenAI-compatible API:

    python scripts/rft.py --config=configs/coding_cpu.py --workdir=W --into=NEXT --tasks=400 \\
      --rollouts=8 --best=reward --per_task=1
    python scripts/rft.py --config=configs/coding_cpu.py --into=NEXT --tasks=400 --rollouts=2 \\
      --teacher_url=https://HOST/v1 --teacher_model=NAME --teacher_key_file=FILE

With --set judge.url=... a judge grades new episodes, and --min_judged chooses by its grades.
"""

import pathlib
from collections.abc import Callable

from absl import flags

from jaxrl_agents.agents.chat_endpoint import Endpoint, read_key
from jaxrl_agents.agents.teacher import Teacher
from jaxrl_agents.config import RunConfig, judge
from jaxrl_agents.runs import (
  agent_setting,
  config_flags,
  entry_point,
  evaluation,
  rejection_sampling,
  setup,
)
from jaxrl_agents.runs.rejection_sampling import Filter
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group

_config = config_flags.define()
_WORKDIR = flags.DEFINE_string("workdir", "", "folder of the run whose policy or episodes are used")
_INTO = flags.DEFINE_string("into", None, "folder of the next run", required=True)
_TASKS = flags.DEFINE_integer(
  "tasks", 0, "train tasks of which new episodes are played; 0: those of the training", 0
)
_ROLLOUTS = flags.DEFINE_integer("rollouts", 4, "new episodes of each task", 1)
_MIN_SUCCESS = flags.DEFINE_float(
  "min_success", 1.0, "least value of the agent's success part, or of its verified reward"
)
_MIN_JUDGED = flags.DEFINE_float("min_judged", 0.0, "least grade of the judge", 0.0, 1.0)
_BEST = flags.DEFINE_enum(
  "best", "shortest", ["shortest", "reward", "judged"], "which right episodes of a task are kept"
)
_PER_TASK = flags.DEFINE_integer("per_task", 2, "most episodes of a task", 1)
_TEACHER_URL = flags.DEFINE_string("teacher_url", "", "base address of a teacher's API")
_TEACHER_MODEL = flags.DEFINE_string("teacher_model", "policy", "the teacher's name there")
_TEACHER_KEY_FILE = flags.DEFINE_string("teacher_key_file", "", "file with the API's key")
_TEACHER_TEMPERATURE = flags.DEFINE_float("teacher_temperature", 0.7, "of the teacher", 0.0)


def main() -> None:
  """Collects episodes, chooses, writes."""
  config = _config()
  setup.compilation_cache(config)
  keep = Filter(_MIN_SUCCESS.value, _MIN_JUDGED.value, _BEST.value, _PER_TASK.value)
  played = _source(config)
  into = Workdir(_INTO.value)  # makes the folder, and so comes after what is soon known to be wrong
  rejection_sampling.check_new(into)
  with into.held():
    groups = played()
    kept = rejection_sampling.chosen(config, groups, keep)
    counts = rejection_sampling.write(config, groups, kept, into)
  print(rejection_sampling.told(counts, into.path))


def _source(config: RunConfig) -> Callable[[], list[Group]]:
  """The function that returns the episodes that the flags ask for; new ones are played by its call.

  Raises:
    ValueError: the flags disagree, or there is no such run.
  """
  new = {"tasks": _TASKS.value, "rollouts": _ROLLOUTS.value}
  if _TEACHER_URL.value:
    judge.check_address(_TEACHER_URL.value, "--teacher_url")
    if not _TASKS.value:
      raise ValueError("--teacher_url needs the number of tasks that are played: --tasks=400")
    key = read_key(_TEACHER_KEY_FILE.value, "")
    endpoint = Endpoint(_TEACHER_URL.value, _TEACHER_MODEL.value, key, config.workers.stall_s / 4)
    most = config.agent_config.max_new_tokens
    teacher = Teacher(endpoint, _TEACHER_TEMPERATURE.value, most)
    tasks = agent_setting.open_tasks(config)
    return lambda: rejection_sampling.played_by_teacher(config, tasks, teacher, **new)
  if not _WORKDIR.value:
    raise ValueError("set --workdir to the run whose policy plays, or --teacher_url")
  if not _TASKS.value:
    folder = pathlib.Path(_WORKDIR.value).expanduser()
    if not folder.is_dir():
      raise ValueError(f"no folder {folder}; set --workdir to that of a run")
    groups = rejection_sampling.played_in_training(config, Workdir(folder))
    return lambda: groups
  evaluation.newest_policy(_WORKDIR.value)

  def played() -> list[Group]:
    with setup.devices(config):
      tasks = agent_setting.open_tasks(config)
      return rejection_sampling.played_by_policy(config, tasks, _WORKDIR.value, **new)

  return played


if __name__ == "__main__":
  entry_point.run(main)
