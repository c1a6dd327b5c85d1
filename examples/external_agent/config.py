"""An agent of the OpenAI Agents SDK, unmodified, on two CPU cores.

pip install -e '.[gateway]' 'openai-agents>=0.24,<0.25'
python scripts/train_sft.py --config=examples/external_agent/config.py --workdir=W
python scripts/train_rl.py  --config=examples/external_agent/config.py --workdir=W
"""

from jaxrl_agents import config
from jaxrl_agents.agents.external.config import ExternalConfig

GAME = "examples.external_agent.game"


def get_config() -> config.RunConfig:
  """The warm-up imitates a player that takes no hint; the trained policy has to find them out."""
  return config.RunConfig(
    name="external_agent",
    agent="external",
    agent_config=ExternalConfig(
      function=f"{GAME}:play",
      tasks=f"{GAME}:tasks",
      reward=f"{GAME}:reward",
      players=(
        ("demonstrator", f"{GAME}:careless"),
        ("careless", f"{GAME}:careless"),
        ("halving", f"{GAME}:halving"),
      ),
      token_budget=160,
      max_new_tokens=20,
      max_calls=6,
      timeout_s=120.0,
      at_once=64,
    ),
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, num_pages=1_024, prefill_tokens=128, draft_tokens=0),
    sft=config.SftConfig(
      steps=30,
      lr=1e-3,
      warmup_steps=2,
      rows_per_step=4,
      demonstration_tasks=400,
      rollouts_per_task=1,
    ),
    learner=config.LearnerConfig(
      steps=60,
      groups_per_step=16,
      group_size=8,
      substeps=2,
      lr=1.5e-4,
      row_tokens=1_024,
      rows_per_microbatch=4,
      mtp_weight=0.0,
      save_every=10,
    ),
    eval=config.EvalConfig(tasks=240),
  )
