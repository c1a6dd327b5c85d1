"""Plays held-out tasks with weights, or with a scripted player, and prints the scores.

  python scripts/evaluate.py --config=configs/search_cpu.py --checkpoint=W --split=test --json=FILE
  python scripts/evaluate.py --config=configs/search_cpu.py --player=heuristic
  python scripts/evaluate.py --config=configs/search_cpu.py --checkpoint=W --follow

A checkpoint is evaluated with all of the agent's baselines. All play the same tasks in the same
environment. With --follow it stays beside the run in W, also on another machine that sees the
folder, and evaluates the versions that the run publishes on the dev split (section `evaluator`). It
ends with the run; --config and --set must be those of the run.
"""

import functools
import json
import os
import pathlib
import socket

from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents import service_log
from jaxrl_agents.runs import agent_setting, config_flags, entry_point, evaluation, evaluator, setup
from jaxrl_agents.runs.workdir import Workdir

_config = config_flags.define()
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "", "a workdir, a folder of weights, or a shipped policy; by default policy.init"
)
_PLAYER = flags.DEFINE_string(
  "player", None, "a scripted player of the agent, which plays in the place of a checkpoint"
)
_SPLIT = flags.DEFINE_enum(
  "split", None, ["train", "dev", "test"], "which tasks; left out: those of eval.split"
)
_FOLLOW = flags.DEFINE_bool(
  "follow", False, "evaluate what the run in --checkpoint publishes, as it is published"
)
_JSON = flags.DEFINE_string("json", None, "also write the scores to this file")


def main() -> None:
  """Opens the corpus, plays, prints. Who plays is checked first: tasks may take minutes to make."""
  if _FOLLOW.value:
    _follow()
    return
  split = [f"eval.split={_SPLIT.value}"] if _SPLIT.value else []
  config = config_lib.with_overrides(_config(), split)
  checkpoint = _CHECKPOINT.value or config.policy.init
  if _PLAYER.value and _CHECKPOINT.value:
    raise ValueError(
      f"--player={_PLAYER.value} plays in the place of --checkpoint={checkpoint}; leave out one"
    )
  if _JSON.value and not pathlib.Path(_JSON.value).absolute().parent.is_dir():
    raise ValueError(f"--json={_JSON.value}: there is no such folder; make it first")
  if _PLAYER.value:
    evaluation.check_player(config, _PLAYER.value)
  else:
    evaluation.newest_policy(checkpoint)
  setup.compilation_cache(config)
  with setup.devices(config):
    tasks = agent_setting.open_tasks(config)
    if _PLAYER.value:
      found = evaluation.evaluate_player(config, tasks, _PLAYER.value)
    else:
      found = evaluation.evaluate(config, tasks, checkpoint)
  text = json.dumps(found, indent=2)
  print(text)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(text + "\n")


def _follow() -> None:
  """Evaluates what a run publishes, until it ends."""
  config, run = _config(), _CHECKPOINT.value
  if _PLAYER.value or _JSON.value or not run or not pathlib.Path(run).is_dir():
    raise ValueError(
      f"--follow needs the folder of a run in --checkpoint={run}, and takes neither "
      "--player nor --json; the scores are left in the folder"
    )
  setup.compilation_cache(config)
  workdir = Workdir(run)
  name = f"evaluator-{socket.gethostname()}-{os.getpid()}"
  over = functools.partial(evaluator.learner_ended, workdir.services)
  with setup.devices(config), service_log.opened(workdir.services, name) as tell:
    evaluator.follow(config, agent_setting.open_tasks(config), workdir, tell, over)


if __name__ == "__main__":
  entry_point.run(main)
