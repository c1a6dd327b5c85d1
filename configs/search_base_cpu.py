"""The base policy that the CPU recipes start from: from scratch on two cores.

    scripts/train_base.sh W             # trains; the same command again goes on where it stopped
    scripts/train_base.sh W --export    # also copies the policy to jaxrl_agents/assets/base

The weights that the package ships are older and smaller (config.BASE_MODEL). They were trained in
eleven parts, five hours and a half together, each with policy.init=(the part before)/warm_start,
other rates and the code of its day, so that no one command makes them again. The first six knew the
search agent alone, the others all three agents; jaxrl_agents/assets/base/curve.csv has the losses
of all parts.
"""

import dataclasses
import pathlib
import shlex

from jaxrl_agents import config

SWARM = "sft.demonstration_tasks=2400 sft.reading_drills=30000 sft.rates=(0.4,0,0,0.6)"
CODING = (
  "sft.demonstration_tasks=3000 sft.rollouts_per_task=12 coding.hasty=0.2 sft.reading_drills=60000 "
  "sft.rates=(0.4,0,0,0.6)"
)


def get_config() -> config.RunConfig:
  """Copying drills at first; scripted episodes and drills of all three agents.

  Search tasks are about packages, so that the recipe's own, about the standard library, are new to
  the policy. No agent has a system prompt: the three recipes set system_prompt="".
  """
  here = pathlib.Path(__file__).parent
  recipe = config.load(str(here / "search_hops_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="base_cpu",
    corpus=dataclasses.replace(recipe.corpus, source="package:jax,numpy,scipy", train_tasks=4_000),
    learner=dataclasses.replace(recipe.learner, row_tokens=4_096, rows_per_microbatch=2),
    sft=config.SftConfig(
      steps=1_300,
      lr=3e-3,
      optimizer="muon",
      schedule="cosine",
      warmup_steps=30,
      rows_per_step=2,
      weight_decay=0.01,
      demonstration_tasks=500,
      rollouts_per_task=3,
      practice_tasks=3_000,
      reading_drills=24_000,
      rates=(1.5, 3.5, 0.0, 10.0),
      beside=tuple(
        f"{shlex.quote(str(here / file))} {options}"
        for file, options in (("swarm_cpu.py", SWARM), ("coding_cpu.py", CODING))
      ),
      beside_rates=(9.0, 10.0),
      balance_rate=5e-3,
      mtp_steps=80,
      save_every=50,
    ),
  )
