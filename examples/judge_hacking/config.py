"""A judge that is exploited, and three cures, on two CPU cores.

python -m examples.judge_hacking.compare --workdir=W
"""

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Starts from the shipped policy, which never saw the task; set judge.url to have a reward."""
  return config.RunConfig(
    name="judge_hacking",
    agent="examples.judge_hacking.agent:AGENT",
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, num_pages=512, prefill_tokens=128, draft_tokens=0),
    sft=config.SftConfig(
      steps=60,
      lr=1e-3,
      warmup_steps=2,
      rows_per_step=4,
      demonstration_tasks=800,
      rollouts_per_task=1,
    ),
    learner=config.LearnerConfig(
      steps=30,
      groups_per_step=16,
      group_size=8,
      substeps=2,
      lr=3e-4,
      row_tokens=512,
      rows_per_microbatch=4,
      mtp_weight=0.0,
      save_every=10,
    ),
    eval=config.EvalConfig(tasks=160),
  )
