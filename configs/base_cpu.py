"""The base policy that the CPU recipes start from: from scratch on two cores.

    python scripts/train_tokenizer.py --out=jaxrl_agents/assets/base/tokenizer.json
    python scripts/train_sft.py --config=configs/base_cpu.py --workdir=W
    python scripts/export_policy.py --config=configs/base_cpu.py --workdir=W \\
        --out=jaxrl_agents/assets/base

The shipped weights were trained in eleven parts on two cores, five hours and a half together,
each part with policy.init=(the part before)/warm_start and the code of its day;
jaxrl_agents/assets/base/curve.csv has the losses. The first six, 110 minutes, knew the search agent
alone (sft.beside=() sft.beside_rates=() sft.optimizer=adamw learner.row_tokens=1024
learner.rows_per_microbatch=4), while short ids, drills and the scripted player took shape:

1. sft.steps=3000 sft.rows_per_step=4, with search.max_shown=3, contexts of 1,280 tokens, ids below
   1,000, drills of at most three clues and twelve words a hit;
2. and on, sft.copy_segments=0 sft.rows_per_step=5; seed=1 sft.steps=1000 sft.lr=1e-3
   sft.rates=4,1,0,6 sft.reading_drills=15000 sft.practice_tasks=2000, with the contexts and drills
   of today;
3. seed=2 sft.steps=900 and ids below 100;
4. seed=3 sft.steps=900 sft.lr=1.2e-3 sft.rates=3,0,0,6, with answers in the order of sight;
5. seed=4 sft.steps=1500 sft.lr=1.2e-3 sft.rates=4,1,0,5, with hasty and generous episodes;
6. seed=5 sft.steps=2400 sft.lr=1.2e-3 sft.rates=5,1,0,4 sft.reading_drills=20000
   sft.practice_tasks=3000 sft.mtp_steps=120.

The others are of all three agents, without copies:

7. sft.rates=4,0.5,0,2 sft.beside_rates=8,9 sft.schedule=constant sft.steps=130 sft.mtp_steps=0:
   Muon comes to a loss of 0.59 here, AdamW at sft.lr=1.2e-3 to 0.66;
8. seed=1 sft.rates=3,0.3,0,1.5 sft.steps=3150;
9. seed=2 sft.lr=2.5e-3 sft.rates=3,0.3,0,1.5 sft.beside_rates=6,15 sft.steps=2000, with seed=1 in
   sft.beside; the first 1,121 steps with code of the standard library alone (coding.sources);
10. seed=3 sft.steps=1800 and else as part 9, with seed=2 for the coding agent, whose edits began
   with what they change;
11. seed=3 sft.steps=2500 and else as part 10, with seed=4 for the coding agent, whose edits are as
   short as today's and taken back with undo_edit.
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

  No agent has a system prompt: the three recipes set system_prompt="".
  """
  here = pathlib.Path(__file__).parent
  recipe = config.load(str(here / "search_cpu.py"))
  return dataclasses.replace(
    recipe,
    name="base_cpu",
    policy=dataclasses.replace(recipe.policy, init="copying"),
    learner=dataclasses.replace(recipe.learner, row_tokens=3_328, rows_per_microbatch=2),
    sft=config.SftConfig(
      steps=12_000,
      lr=3e-3,
      optimizer="muon",
      schedule="cosine",
      warmup_steps=30,
      rows_per_step=2,
      weight_decay=0.01,
      demonstration_tasks=4_000,
      rollouts_per_task=1,
      practice_tasks=3_000,
      copy_segments=6_000,
      reading_drills=20_000,
      rates=(3.0, 0.3, 0.3, 1.5),
      beside=tuple(
        f"{shlex.quote(str(here / file))} {options}"
        for file, options in (("swarm_cpu.py", SWARM), ("coding_cpu.py", CODING))
      ),
      beside_rates=(9.0, 10.0),
      copy_phase=0.15,
      balance_rate=5e-3,
      mtp_steps=120,
      save_every=250,
    ),
  )
