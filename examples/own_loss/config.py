"""The number game, trained by a loss from outside of the package.

python scripts/train_sft.py --config=examples/own_loss/config.py --workdir=W
python scripts/train_rl.py  --config=examples/own_loss/config.py --workdir=W
"""

import dataclasses

from examples.number_game import config as number_game
from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """The config of the number game with another loss."""
  run = number_game.get_config()
  learner = dataclasses.replace(
    run.learner, loss="examples.own_loss.loss:faded", loss_options={"width": 0.5}
  )
  return dataclasses.replace(run, name="own_loss", learner=learner)
