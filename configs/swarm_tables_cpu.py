"""configs/swarm_cpu.py on tables of 1 to 40 rows, whose budget follows from their size alone.

python scripts/train_rl.py  --config=configs/swarm_tables_cpu.py --workdir=W
python scripts/evaluate.py  --config=configs/swarm_tables_cpu.py --player=never_splits
"""

import dataclasses
import pathlib

from jaxrl_agents import config
from jaxrl_agents.agents.swarm.config import TablesConfig

LEVELS = (0.3, 0.6, 0.1, 0.0)
"""Shares of narrow and wide tables, and of questions."""


def get_config() -> config.RunConfig:
  """The job of swarm_cpu; every agent has two calls a turn, and a search shows the best chunk."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "swarm_cpu.py"))
  options = recipe.agent_config
  search_recipe = config.load(str(pathlib.Path(__file__).parent / "search_cpu.py"))
  search = dataclasses.replace(
    options.search,
    token_budget=2_816,  # the prompt, the assignments, the messages and the table of 40 rows
    threshold_tokens=1_408,
    tool_output_tokens=80,  # one chunk
    max_shown=1,
    quote_query=True,
    max_turns=24,
    max_calls=2,
    max_new_tokens=896,
  )
  return dataclasses.replace(
    recipe,
    name="swarm_tables_cpu",
    policy=dataclasses.replace(search_recipe.policy, init="swarm_base"),
    agent_config=dataclasses.replace(
      options,
      search=search,
      # Twice the pace of one agent with two calls a turn, after one turn to begin and one to
      # answer: who asks for more waits longer, whoever answers.
      tables=TablesConfig(max_rows=40, steps=2.0, steps_per_lookup=0.25),
      max_turns=24,
      single=0.15,  # without these, the agent that the swarm is compared with knows no such prompt
      max_assignments_per_turn=20,  # two names for each in the largest table: one turn of searches
      sub_max_new_tokens=96,
      message_tokens=64,
    ),
    # Copies garble at a temperature of 1.0. Most of what is written is copied: drafts stand.
    sampler=dataclasses.replace(recipe.sampler, temperature=0.5, lookup_tokens=4),
    sft=dataclasses.replace(recipe.sft, steps=40, demonstration_tasks=400, drills=2_000),
    learner=dataclasses.replace(
      recipe.learner,
      steps=12,
      level_weights_early=LEVELS,
      level_weights_late=LEVELS,
    ),
  )
