"""Context-1's recipe on two CPU cores: a search agent that edits its own context.

python scripts/train_sft.py --config=configs/search_cpu.py --workdir=W
python scripts/train_rl.py  --config=configs/search_cpu.py --workdir=W

Expected on 200 test tasks, seeds 0, 1, 2 (--set seed=...): reward 0.35, 0.33, 0.39 before and 0.63,
0.56, 0.57 after; output recall 0.17, 0.17, 0.19 before and 0.34, 0.32, 0.31 after, where one hybrid
search of as many chunks has 0.25, 0.21, 0.24.
"""

from jaxrl_agents import config
from jaxrl_agents.agents.search.config import SearchConfig


def get_config() -> config.RunConfig:
  """The main job: the standard library as corpus, budgets a thirtieth of the published ones."""
  return config.RunConfig(
    name="search_cpu",
    agent="search",
    agent_config=SearchConfig(
      token_budget=1_024,
      threshold_tokens=512,
      spillage_fraction=0.5,
      tool_output_tokens=136,
      reply_reserve_tokens=32,
      max_shown=2,
      dense_weight=0.3,
      grep_limit=3,
      max_turns=8,
      max_new_tokens=160,
      max_documents=12,
      short_ids=True,
      hasty=0.8,
      system_prompt="",  # the base was trained without one
    ),
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, prefill_tokens=256, temperature=0.5),
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
      steps=16,
      groups_per_step=8,
      group_size=8,
      substeps=4,
      lr=1e-4,
      row_tokens=2_048,
      rollout_row_tokens=(5_120,),  # a substep fits one microbatch
      rows_per_microbatch=2,
      share_prefixes=True,
      split_cores=True,
      mtp_weight=0.0,
      level_weights_early=(0.7, 0.3, 0.0, 0.0),
      level_weights_late=(0.6, 0.3, 0.1, 0.0),
    ),
  )
