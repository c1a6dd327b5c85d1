"""The run that `scripts/chaos.py` kills: a tiny policy, played ahead of the learner.

python scripts/chaos.py --json=FILE
"""

from jaxrl_agents import config
from jaxrl_agents.policy.config import PolicyConfig

STEPS, GROUPS = 40, 4


def get_config() -> config.RunConfig:
  """A step takes a second or so on two CPU cores, and a start about ten."""
  return config.RunConfig(
    name="chaos",
    agent="scripts.bench.chaos_agent:AGENT",
    policy=config.PolicySection(
      model=PolicyConfig(
        vocab_size=config.BASE_MODEL.vocab_size,
        embed_dim=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        num_experts=2,
        experts_per_token=1,
        expert_ffw_dim=8,
        mtp_depth=0,
      ),
      init="scratch",
    ),
    sampler=config.SamplerConfig(slots=16, num_pages=256, prefill_tokens=64, draft_tokens=0),
    workers=config.WorkersConfig(processes=2, episodes=32, stall_s=60),
    fleet=config.FleetConfig(depth=1),
    learner=config.LearnerConfig(
      steps=STEPS,
      groups_per_step=GROUPS,
      group_size=4,
      substeps=1,
      lr=1e-3,
      row_tokens=128,
      rows_per_microbatch=4,
      mtp_weight=0.0,
      save_every=1,
      keep_checkpoints=2,
    ),
    eval=config.EvalConfig(tasks=2),
    evaluator=config.EvaluatorConfig(every=2, tasks=2),
  )
