"""The base policy that the CPU recipes start from, first part: from scratch on two cores.

    python scripts/train_tokenizer.py --out=jaxrl_agents/assets/base/tokenizer.json
    python scripts/train_sft.py --config=configs/base_cpu.py --workdir=W

The second part is configs/base_cite_cpu.py. Loss of the mixture: 8.3 at the start, 1.8 at the end.
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Copying drills first, then scripted episodes of simple and of real train tasks."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "search_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="base_cpu",
    policy=dataclasses.replace(recipe.policy, init="copying"),
    sft=config.SftConfig(
      steps=340,
      lr=2e-3,
      schedule="cosine",
      warmup_steps=20,
      rows_per_step=8,
      weight_decay=0.01,
      demonstration_tasks=1_500,
      rollouts_per_task=1,
      practice_tasks=2_500,
      copy_segments=6_000,
      rates=(1.0, 1.0, 2.0, 0.0, 0.0),
      copy_phase=0.6,
      mtp_steps=60,
      save_every=100,
    ),
  )
