"""The base policy that the CPU recipes start from: from scratch on two cores.

    python scripts/train_tokenizer.py --out=jaxrl_agents/assets/base/tokenizer.json
    python scripts/train_sft.py --config=configs/base_cpu.py --workdir=W
    python scripts/export_policy.py --config=configs/base_cpu.py --workdir=W \\
        --out=jaxrl_agents/assets/base

The shipped weights were trained in six parts on two cores, 110 minutes together, while short ids,
drills and the scripted expert took shape: each part with policy.init=(the part before)/warm_start
and the code of its day; jaxrl_agents/assets/base/curve.csv has the losses. From part 2 on
sft.copy_segments=0 sft.rows_per_step=5 and

1. as above, with search.max_shown=3, contexts of 1,280 tokens, ids below 1,000, drills of at most
   three clues and twelve words a hit;
2. seed=1 sft.steps=1000 sft.lr=1e-3 sft.rates=4,1,0,6 sft.reading_drills=15000
   sft.practice_tasks=2000, with the contexts and drills of today;
3. seed=2 sft.steps=900 and ids below 100;
4. seed=3 sft.steps=900 sft.lr=1.2e-3 sft.rates=3,0,0,6, with answers in the order of sight;
5. seed=4 sft.steps=1500 sft.lr=1.2e-3 sft.rates=4,1,0,5, with hasty and generous episodes;
6. seed=5 sft.steps=2400 sft.lr=1.2e-3 sft.rates=5,1,0,4 sft.reading_drills=20000
   sft.practice_tasks=3000 sft.mtp_steps=120, the code of today.
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Copying drills at first; reading drills, scripted episodes of simple and of real tasks."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "search_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="base_cpu",
    policy=dataclasses.replace(recipe.policy, init="copying"),
    sft=config.SftConfig(
      steps=3_000,
      lr=2e-3,
      schedule="cosine",
      warmup_steps=30,
      rows_per_step=4,
      weight_decay=0.01,
      demonstration_tasks=4_000,
      rollouts_per_task=1,
      practice_tasks=6_000,
      copy_segments=6_000,
      reading_drills=30_000,
      rates=(2.0, 2.0, 1.0, 6.0),
      copy_phase=0.15,
      balance_rate=5e-3,
      mtp_steps=400,
      save_every=250,
    ),
  )
