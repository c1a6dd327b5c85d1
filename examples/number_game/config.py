"""The number game on two CPU cores.

python scripts/train_sft.py --config=examples/number_game/config.py --workdir=W
python scripts/train_rl.py  --config=examples/number_game/config.py --workdir=W
"""

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Starts from the shipped policy, which never played."""
  return config.RunConfig(
    name="number_game",
    agent="examples.number_game.agent:AGENT",
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, num_pages=512, prefill_tokens=128, draft_tokens=0),
    sft=config.SftConfig(
      steps=20,
      lr=1e-3,
      warmup_steps=2,
      rows_per_step=4,
      demonstration_tasks=400,
      rollouts_per_task=1,
    ),
    learner=config.LearnerConfig(
      steps=30,
      groups_per_step=14,
      group_size=16,
      substeps=2,
      lr=5e-4,
      row_tokens=512,
      rows_per_microbatch=4,
      mtp_weight=0.0,
      save_every=10,
    ),
    eval=config.EvalConfig(tasks=140),
  )
