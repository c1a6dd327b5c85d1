"""Questions of a file on two CPU cores.

python scripts/train_sft.py --config=examples/questions/config.py --workdir=W
python scripts/train_rl.py  --config=examples/questions/config.py --workdir=W
"""

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Starts from the shipped policy. One of another project is imported (docs/own-model.md)."""
  return config.RunConfig(
    name="questions",
    agent="examples.questions.agent:AGENT",
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, num_pages=512, prefill_tokens=128, draft_tokens=0),
    sft=config.SftConfig(
      steps=60, lr=1e-3, warmup_steps=2, rows_per_step=4, demonstration_tasks=500,
      rollouts_per_task=3,
    ),
    learner=config.LearnerConfig(
      steps=30, groups_per_step=16, group_size=8, substeps=2, lr=3e-4, row_tokens=512,
      rows_per_microbatch=4, mtp_weight=0.0, save_every=10,
    ),
    eval=config.EvalConfig(tasks=100),
  )  # fmt: skip
