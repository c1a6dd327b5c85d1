"""Plays held-out tasks with weights, or with a scripted player, and prints the scores.

python scripts/evaluate.py --config=configs/search_cpu.py --checkpoint=W --split=test --json=FILE
python scripts/evaluate.py --config=configs/search_cpu.py --player=heuristic

A checkpoint is evaluated with all of the agent's baselines. All play the same tasks in the same
environment.
"""

import json
import pathlib

from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import config_flags, entry_point, evaluation, setup

_config = config_flags.define()
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "base", "a workdir, a folder of exported weights, or 'base'"
)
_PLAYER = flags.DEFINE_string(
  "player", None, "a scripted player of the agent, which plays in the place of a checkpoint"
)
_SPLIT = flags.DEFINE_enum("split", "test", ["train", "dev", "test"], "which tasks")
_JSON = flags.DEFINE_string("json", None, "also write the scores to this file")


def main() -> None:
  """Opens the corpus, plays, prints."""
  config = config_lib.with_overrides(_config(), [f"eval.split={_SPLIT.value}"])
  setup.compilation_cache(config)
  with setup.devices(config):
    tasks = setup.open_tasks(config)
    if _PLAYER.value:
      found = evaluation.evaluate_player(config, tasks, _PLAYER.value)
    else:
      found = evaluation.evaluate(config, tasks, _CHECKPOINT.value)
  text = json.dumps(found, indent=2)
  print(text)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(text + "\n")


if __name__ == "__main__":
  entry_point.run(main)
