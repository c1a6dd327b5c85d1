"""configs/search_cpu.py on tasks with hops, in a context that reading enough overflows.

The shipped base does not know these tasks, and no policy of ours plays them well yet: what one of
5.4 million parameters learns of them is in docs/recipes/context1.md, with the commands.
"""

import dataclasses
import pathlib

from jaxrl_agents import config

MODEL = dataclasses.replace(config.BASE_MODEL, embed_dim=192, num_kv_heads=4, head_dim=64)
"""5.4 million parameters. Heads of 64, four of them with keys of their own, copy far better before
any training than the shipped ones (policy.copying_heads).
"""


def get_config() -> config.RunConfig:
  """The main job of search_cpu; a later clue is found only with the answer to an earlier one."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "search_cpu.py"))
  options = dataclasses.replace(
    recipe.agent_config,
    hops=True,
    token_budget=1_024,
    threshold_tokens=512,
    tool_output_tokens=232,  # two hits
    max_turns=12,
    hasty=0.0,
  )
  return dataclasses.replace(
    recipe,
    name="search_hops_cpu",
    corpus=config.CorpusConfig(chunk_tokens=96),
    agent_config=options,
    policy=config.PolicySection(model=MODEL, init="copying"),
    sft=config.SftConfig(
      steps=250,
      lr=2e-3,
      optimizer="muon",
      schedule="cosine",
      warmup_steps=10,
      rows_per_step=4,
      demonstration_tasks=250,
      rollouts_per_task=2,
      practice_tasks=800,
      reading_drills=6_000,
      rates=(1.0, 1.0, 0.0, 3.0),
      mtp_steps=10,
    ),
    learner=dataclasses.replace(
      recipe.learner,
      level_weights_early=(0.6, 0.3, 0.1),
      level_weights_late=(0.4, 0.35, 0.25),
    ),
  )
