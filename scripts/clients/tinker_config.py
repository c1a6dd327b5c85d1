"""The base policy with short rows, for scripts/try_tinker.py on a CPU."""

from jaxrl_agents.agents.external.config import ExternalConfig
from jaxrl_agents.config import LearnerConfig, PolicySection, RunConfig, SamplerConfig
from jaxrl_agents.config.sections import BASE_MODEL


def get_config() -> RunConfig:
  """Contexts of 128 tokens, rows of 128."""
  return RunConfig(
    name="base",
    seed=0,
    policy=PolicySection(model=BASE_MODEL),
    agent="external",
    # No agent is started: clients of the server bring their own tasks, prompts and rewards.
    agent_config=ExternalConfig(
      command="true",
      tasks="-",
      reward="scripts.clients.judge:last_line",
      token_budget=128,
      max_new_tokens=32,
    ),
    sampler=SamplerConfig(slots=16, page_tokens=16, num_pages=200, prefill_tokens=64),
    learner=LearnerConfig(row_tokens=128, rows_per_microbatch=4),
  )
