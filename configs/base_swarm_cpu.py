"""What the mixture behind the base policy takes from the swarm: both roles, and a single agent."""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Serial and parallel episodes in halves; drills with names of their own."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "swarm_cpu.py"))
  sources = dataclasses.replace(
    recipe.sft,
    demonstration_tasks=2_400,
    serial=0.5,
    alone=0.12,
    reading_drills=24_000,
    rates=(0.35, 0.0, 0.0, 0.65),
  )
  return dataclasses.replace(recipe, name="base_swarm_cpu", sft=sources)
