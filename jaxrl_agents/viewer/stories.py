"""Finds the agent of a run, and its part of the report, from the run's summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.formats import flatten, mapping
from jaxrl_agents.agents.story import Story
from jaxrl_agents.config import import_path


def options(summary: Mapping[str, Any]) -> dict[str, str]:
  """The options of the run as {"section.option": text}."""
  return dict(flatten(mapping(summary.get("config"))))


def agent(summary: Mapping[str, Any]) -> str:
  """The name of the run's agent, or of its warm-up's; "search" if the summary has none."""
  warm_up = dict(flatten(mapping(summary.get("warm_up_config"))))
  return options(summary).get("agent", warm_up.get("agent", "search"))


def of(summary: Mapping[str, Any]) -> Story:
  """The story of the run's agent; a plain one if the agent cannot be imported here."""
  try:
    return import_path.agent(agent(summary)).story
  except ValueError:
    return Story()
