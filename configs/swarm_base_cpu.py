"""A base policy for configs/swarm_tables_cpu.py, trained on two cores.

scripts/train_base.sh swarm W --export   # also copies it to jaxrl_agents/assets/swarm_base
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Episodes of scripted swarms and drills of both roles, after those of the search agent.

  Tables are about packages, so that the recipe's own, about the standard library, are new to the
  policy.
  """
  folder = pathlib.Path(__file__).parent
  recipe = config.load(str(folder / "swarm_tables_cpu.py"))
  search = config.load(str(folder / "search_base_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="swarm_base_cpu",
    policy=dataclasses.replace(recipe.policy, init="search_base"),
    corpus=dataclasses.replace(recipe.corpus, source=search.corpus.source),
    learner=dataclasses.replace(recipe.learner, row_tokens=4_096),
    sft=dataclasses.replace(
      search.sft,
      steps=1_100,
      lr=1.5e-3,
      demonstration_tasks=3_000,
      practice_tasks=0,
      drills=40_000,
      rates=(0.4, 0.0, 0.0, 0.6),
    ),
  )
