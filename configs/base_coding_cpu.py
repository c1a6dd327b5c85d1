"""What the mixture behind the base policy takes from the coding agent: scripted repairs."""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """Repairs of tasks with tests, and drills of single edits in many more functions."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "coding_cpu.py"))
  sources = dataclasses.replace(
    recipe.sft,
    demonstration_tasks=1_000,
    rollouts_per_task=3,
    hasty=0.2,
    reading_drills=12_000,
    rates=(0.5, 0.0, 0.0, 0.5),
  )
  return dataclasses.replace(recipe, name="base_coding_cpu", sft=sources)
