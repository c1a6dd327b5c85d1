"""configs/search_cpu.py on tasks with hops, in a context that reading enough overflows.

python scripts/train_sft.py --config=configs/search_hops_cpu.py --workdir=W
python scripts/train_rl.py  --config=configs/search_hops_cpu.py --workdir=W
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """The main job of search_cpu; later clues can be named only with the hits of earlier ones."""
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
    learner=dataclasses.replace(
      recipe.learner,
      level_weights_early=(0.6, 0.3, 0.1),
      level_weights_late=(0.4, 0.35, 0.25),
    ),
  )
