"""The base policy that configs/search_cpu.py starts from, trained from scratch on two cores.

scripts/train_base.sh search W            # trains; the same command goes on where it stopped
scripts/train_base.sh search W --export   # also copies it to jaxrl_agents/assets/search_base
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Episodes of the demonstrator and drills; scripts/train_base.sh has drills alone before them.

  Search tasks are about packages, so that the recipe's own, about the standard library, are new to
  the policy. It has no system prompt: the recipe sets system_prompt="".
  """
  recipe = config.load(str(pathlib.Path(__file__).parent / "search_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="search_base_cpu",
    policy=dataclasses.replace(recipe.policy, init="copying"),
    corpus=dataclasses.replace(
      recipe.corpus,
      source="package:jax,numpy,scipy,keras,flax,optax,orbax,tensorflow_datasets",
      train_tasks=4_000,
    ),
    learner=dataclasses.replace(recipe.learner, row_tokens=4_096, rows_per_microbatch=2),
    sft=config.SftConfig(
      steps=1_800,
      lr=2e-3,
      optimizer="muon",
      schedule="cosine",
      warmup_steps=30,
      rows_per_step=2,
      weight_decay=0.01,
      demonstration_tasks=2_000,
      rollouts_per_task=1,
      practice_tasks=4_000,
      drills=24_000,
      rates=(2.0, 3.0, 0.0, 3.0),
      balance_rate=5e-3,
      mtp_steps=80,
      save_every=50,
    ),
  )
