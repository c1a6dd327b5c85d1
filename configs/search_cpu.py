"""Context-1's recipe on two CPU cores: a search agent that edits its own context.

python scripts/train_sft.py --config=configs/search_cpu.py --workdir=W
python scripts/train_rl.py  --config=configs/search_cpu.py --workdir=W

Expected on 196 test tasks, seed 0: reward 1.46 before and 1.61 after. Scripts without gold have
0.62 (searches for every clue) and 1.81 (takes names out of hits); the expert has 1.98.
"""

import dataclasses

from jaxrl_agents import config
from jaxrl_agents.agents.search.config import SearchConfig, SearchReward

MODEL = dataclasses.replace(config.BASE_MODEL, embed_dim=192, num_kv_heads=4, head_dim=64)
"""5.4 million parameters. Heads of 64, four of them with keys of their own, copy far better before
any training than those of BASE_MODEL (policy.copying_heads).
"""


def get_config() -> config.RunConfig:
  """The main job: the standard library as corpus, budgets a thirtieth of the published ones."""
  return config.RunConfig(
    name="search_cpu",
    agent="search",
    corpus=config.CorpusConfig(chunk_tokens=96),
    agent_config=SearchConfig(
      hops=True,
      token_budget=1_024,
      threshold_tokens=512,
      spillage_fraction=0.5,
      tool_output_tokens=232,  # two hits
      reply_reserve_tokens=32,
      max_shown=2,
      dense_weight=0.3,
      grep_limit=3,
      max_turns=12,
      max_new_tokens=160,
      max_documents=12,
      short_ids=True,
      show_hint="all",  # what a policy is trained with, it is evaluated with
      hasty=0.0,
      generous=0.5,
      reward=SearchReward(betas=(2.0,)),  # 8 steps are too few for a schedule
      system_prompt="",  # the base was trained without one
    ),
    policy=config.PolicySection(model=MODEL, init="search_base"),
    sampler=config.SamplerConfig(
      slots=64,
      engines=2,
      page_tokens=16,  # less than a page is computed again: 0.87 of the prompts is not
      num_pages=2_048,
      prefill_tokens=256,
      temperature=0.5,
    ),
    sft=config.SftConfig(
      steps=30,
      lr=3e-4,
      warmup_steps=5,
      rows_per_step=4,
      demonstration_tasks=500,
      rollouts_per_task=1,
      mtp_steps=10,
    ),
    learner=config.LearnerConfig(
      steps=8,
      groups_per_step=32,
      group_size=8,
      substeps=2,
      lr=5e-4,
      schedule="cosine",
      warmup_steps=4,
      row_tokens=2_048,
      rollout_row_tokens=(5_120,),  # a substep fits one microbatch
      rows_per_microbatch=2,
      share_prefixes=True,
      split_cores=True,
      mtp_weight=0.0,
      level_weights_early=(0.7, 0.25, 0.05),
      level_weights_late=(0.7, 0.25, 0.05),
    ),
  )
