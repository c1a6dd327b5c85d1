"""An agent with a tool, on two CPU cores.

python scripts/train_sft.py --config=examples/tool_use/config.py --workdir=W
python scripts/train_rl.py  --config=examples/tool_use/config.py --workdir=W
"""

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Starts from the shipped policy, which knows the form of calls and other tools."""
  return config.RunConfig(
    name="tool_use",
    agent="examples.tool_use.agent:AGENT",
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, num_pages=1_024, prefill_tokens=128, draft_tokens=0),
    sft=config.SftConfig(
      steps=160,
      lr=1e-3,
      warmup_steps=2,
      rows_per_step=8,
      demonstration_tasks=1_600,
      rollouts_per_task=1,
    ),
    learner=config.LearnerConfig(
      steps=30,
      groups_per_step=16,
      group_size=8,
      substeps=2,
      lr=2e-4,
      row_tokens=512,
      rows_per_microbatch=4,
      mtp_weight=0.0,
      save_every=10,
    ),
    eval=config.EvalConfig(tasks=100),
  )
