"""Composer 2's coding agent on two CPU cores: finds and undoes one-token damage in short functions.

python scripts/train_sft.py --config=configs/coding_cpu.py --workdir=W
python scripts/train_rl.py  --config=configs/coding_cpu.py --workdir=W
"""

from jaxrl_agents import config
from jaxrl_agents.agents.coding.config import CodingConfig


def get_config() -> config.RunConfig:
  """The small slice: short functions of real code cut out, one token of them changed."""
  return config.RunConfig(
    name="coding_cpu",
    agent="coding",
    agent_config=CodingConfig(
      sources=("python", "package:numpy", "package:scipy", "package:jax"),
      repo_kind="calls",
      damage="flip",
      tasks_per_repo=30,
      max_file_characters=600,
      tools=("read_file", "edit_file", "undo_edit", "shell"),
      token_budget=576,
      trigger_fraction=0.75,
      max_summaries=5,
      summary_tokens=80,
      tool_output_tokens=320,
      max_new_tokens=128,
      max_turns=16,
      max_calls=4,
      command_s=10.0,
      grade_s=60.0,
      snapshot_turns=0,
      hasty=0.6,
      system_prompt="",  # the base was trained without one
    ),
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, engines=2, prefill_tokens=256, temperature=1.0),
    sft=config.SftConfig(
      steps=150,
      lr=3e-4,
      warmup_steps=5,
      rows_per_step=8,
      demonstration_tasks=1_000,
      demonstration_share=0.5,
      rollouts_per_task=2,
      drills=5_000,
      rates=(0.5, 0.0, 0.0, 0.5),
      mtp_steps=10,
    ),
    learner=config.LearnerConfig(
      steps=26,
      groups_per_step=4,
      group_size=16,
      substeps=4,
      loss="dr_grpo",
      constant_tokens=768,
      kl=1e-3,
      single_epoch=True,
      lr=1e-4,
      row_tokens=1_024,
      rows_per_microbatch=2,
      share_prefixes=True,
      split_cores=True,
      mtp_weight=0.0,
      level_weights_early=(1.0, 0.0, 0.0, 0.0),
      level_weights_late=(1.0, 0.0, 0.0, 0.0),
    ),
    eval=config.EvalConfig(rollouts=3, temperature=0.5),
  )
