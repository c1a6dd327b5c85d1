"""A base policy for configs/coding_counted_cpu.py, trained on two cores.

scripts/train_base.sh coding W     # trains; the same command goes on where it stopped
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Episodes of the expert and repairs by reading alone; scripts/train_base.sh has code to be
  continued before them.

  Tasks and drills are made of packages, so that the recipe's own, of the standard library, are new
  to the policy.
  """
  folder = pathlib.Path(__file__).parent
  recipe = config.load(str(folder / "coding_counted_cpu.py"))
  search = config.load(str(folder / "search_base_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="coding_base_cpu",
    agent_config=dataclasses.replace(
      recipe.agent_config,
      sources=("package:jax,numpy,scipy",),
      drill_texts=0.05,
      drill_each=0.5,
    ),
    policy=dataclasses.replace(recipe.policy, init="search_base"),
    learner=dataclasses.replace(recipe.learner, row_tokens=4_096),
    sft=dataclasses.replace(
      search.sft,
      steps=1_600,
      lr=1.5e-3,
      demonstration_tasks=2_000,
      rollouts_per_task=2,
      practice_tasks=0,
      drills=36_000,
      rates=(0.4, 0.0, 0.0, 0.6),
    ),
  )
