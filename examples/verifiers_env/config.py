"""An environment of `verifiers`, unmodified, on two CPU cores.

python -m venv V && V/bin/pip install verifiers==0.4.0 reasoning-gym==0.1.25
V/bin/python examples/verifiers_env/server.py --env=examples/verifiers_env/divisors.toml &

pip install -e '.[gateway]'
python scripts/train_sft.py --config=examples/verifiers_env/config.py --workdir=W
python scripts/train_rl.py  --config=examples/verifiers_env/config.py --workdir=W
"""

from jaxrl_agents import config
from jaxrl_agents.agents.external.config import ExternalConfig

SERVER = "http://127.0.0.1:8765"
PLAYERS = "examples.verifiers_env.players"


def get_config() -> config.RunConfig:
  """The warm-up imitates a player that guesses most of its answers."""
  return config.RunConfig(
    name="verifiers_env",
    agent="external",
    agent_config=ExternalConfig(
      hook=f"{SERVER}/",
      tasks=f"{SERVER}/tasks",
      players=(
        ("demonstrator", f"{PLAYERS}:careless"),
        ("careless", f"{PLAYERS}:careless"),
        ("exact", f"{PLAYERS}:exact"),
      ),
      token_budget=64,
      max_new_tokens=8,
      max_calls=1,
      timeout_s=120.0,
      at_once=32,
    ),
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=64, num_pages=1_024, prefill_tokens=128, draft_tokens=0),
    sft=config.SftConfig(
      steps=24,
      lr=1e-3,
      warmup_steps=2,
      rows_per_step=4,
      demonstration_tasks=600,
      rollouts_per_task=1,
    ),
    learner=config.LearnerConfig(
      steps=16,
      groups_per_step=8,
      group_size=8,
      substeps=2,
      lr=5e-4,
      row_tokens=256,
      rows_per_microbatch=4,
      mtp_weight=0.0,
      save_every=8,
    ),
    eval=config.EvalConfig(tasks=60),
  )
