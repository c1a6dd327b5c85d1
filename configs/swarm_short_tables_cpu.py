"""configs/swarm_tables_cpu.py with tables of 1 to 16 rows: reinforcement learning in half an hour.

python scripts/train_rl.py --config=configs/swarm_short_tables_cpu.py --workdir=W

It starts from the shipped base, which knows both roles; train_sft.py would only move away from it.
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Contexts and replies have the size of these tables; so much less is computed for each token."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "swarm_tables_cpu.py"))
  options = recipe.agent_config
  search = dataclasses.replace(
    options.search, token_budget=1_408, threshold_tokens=704, max_new_tokens=384
  )
  return dataclasses.replace(
    recipe,
    name="swarm_short_tables_cpu",
    agent_config=dataclasses.replace(
      options,
      search=search,
      tables=dataclasses.replace(options.tables, max_rows=16),
      max_assignments_per_turn=8,  # two names for each in the largest table
    ),
    learner=dataclasses.replace(recipe.learner, steps=20),
  )
