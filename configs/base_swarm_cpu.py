"""What the mixture behind the base policy takes from the swarm: both roles, and a single agent."""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """More episodes than its own warm-up has, and more drills."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "swarm_cpu.py"))
  sources = dataclasses.replace(
    recipe.sft,
    demonstration_tasks=2_400,
    reading_drills=24_000,
  )
  return dataclasses.replace(recipe, name="base_swarm_cpu", sft=sources)
