"""Task folders of Harbor as a training run; the shipped policy is too small to solve them.

python -m examples.harbor.check --config=examples/harbor/config.py  # solutions score 1, nothing 0
python scripts/train_rl.py --config=examples/harbor/config.py --workdir=W
"""

from examples.harbor.agent import HarborConfig
from jaxrl_agents import config

TASKS = "examples/harbor/tasks"


def get_config() -> config.RunConfig:
  """The table of images: those that the tasks need, with the files of their working directories."""
  return config.RunConfig(
    name="harbor",
    agent="examples.harbor.agent:AGENT",
    agent_config=HarborConfig(
      folder=TASKS,
      images=(("python:3.12-slim", ""), ("count-errors", f"{TASKS}/count-errors/environment")),
      token_budget=1_024,
      max_new_tokens=128,
      max_turns=4,
    ),
    policy=config.PolicySection(model=config.BASE_MODEL),
    sampler=config.SamplerConfig(slots=16, num_pages=1_024, prefill_tokens=128, draft_tokens=0),
    learner=config.LearnerConfig(
      steps=2, groups_per_step=2, group_size=4, substeps=1, row_tokens=2_048, rows_per_microbatch=1
    ),
    eval=config.EvalConfig(tasks=2),
  )
