"""A base policy for configs/swarm_tables_cpu.py, trained on two cores.

scripts/train_base.sh swarm W   # the policy is in W/base; the same command goes on where it stopped
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Episodes of scripted swarms and drills of both roles, after those of the search agent.

  Tables are about packages, so that the recipe's own, about the standard library, are new to the
  policy.
  """
  recipe = config.load(str(pathlib.Path(__file__).parent / "swarm_tables_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="swarm_base_cpu",
    policy=dataclasses.replace(recipe.policy, init="search_base"),
    corpus=dataclasses.replace(recipe.corpus, source="package:jax,numpy,scipy"),
    learner=dataclasses.replace(recipe.learner, row_tokens=4_096, rows_per_microbatch=2),
    sft=config.SftConfig(
      steps=1_500,
      lr=1e-3,
      optimizer="muon",
      schedule="cosine",
      warmup_steps=30,
      rows_per_step=2,
      weight_decay=0.01,
      demonstration_tasks=3_000,
      rollouts_per_task=1,
      drills=40_000,
      rates=(0.4, 0.0, 0.0, 0.6),
      balance_rate=5e-3,
      mtp_steps=80,
      save_every=50,
    ),
  )
