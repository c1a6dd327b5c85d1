"""Kimi K2.5's agent swarm on two CPU cores: an orchestrator learns when to run sub-agents at once.

python scripts/train_sft.py --config=configs/swarm_cpu.py --workdir=W
python scripts/train_rl.py  --config=configs/swarm_cpu.py --workdir=W
"""

from jaxrl_agents import config
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.swarm.config import SwarmConfig


def get_config() -> config.RunConfig:
  """Tables and chains of the standard library; an orchestrator and sub-agents of one size."""
  return config.RunConfig(
    name="swarm_cpu",
    agent="swarm",
    agent_config=SwarmConfig(
      search=SearchConfig(
        token_budget=1_280,
        threshold_tokens=640,
        tool_output_tokens=136,
        reply_reserve_tokens=32,
        max_shown=2,
        dense_weight=0.3,
        grep_limit=1,
        max_turns=8,
        max_calls=1,
        max_new_tokens=448,
        short_ids=True,
        can_prune=False,
        system_prompt="",  # the base was trained without one
      ),
      budget_share=0.25,
      sub_token_budget=640,
      sub_max_new_tokens=64,
      sub_temperature=0.3,
      message_tokens=48,
      sub_max_turns=8,
      sub_deadline_s=400.0,
      serial=0.5,
      single=0.08,
      max_children=6,
    ),
    policy=config.PolicySection(model=config.BASE_MODEL),
    workers=config.WorkersConfig(stall_s=600.0),
    sampler=config.SamplerConfig(slots=64, prefill_tokens=256, temperature=1.0),
    sft=config.SftConfig(
      steps=100,
      lr=3e-4,
      warmup_steps=5,
      rows_per_step=4,
      demonstration_tasks=900,
      rollouts_per_task=1,
      drills=6_000,
      rates=(0.35, 0.0, 0.0, 0.65),
      mtp_steps=10,
    ),
    learner=config.LearnerConfig(
      steps=20,
      groups_per_step=8,
      group_size=8,
      substeps=4,
      lr=1e-4,
      row_tokens=3_328,
      rows_per_microbatch=2,
      share_prefixes=True,
      split_cores=True,
      mtp_weight=0.0,
      level_weights_early=(0.3, 0.5, 0.2, 0.0),
      level_weights_late=(0.3, 0.5, 0.2, 0.0),
    ),
    eval=config.EvalConfig(tasks=96, temperature=0.3),
  )
