"""Wraps the functions of the learner's loop, so that they log what learner and publisher do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl_agents.learner.loop import Plan
from jaxrl_agents.service_log import Tell
from jaxrl_agents.types import Group


def logged(
  whole: Plan, learner: Tell, publisher: Tell, after_step: Callable[[], None] = lambda: None
) -> Plan:
  """The plan, which tells the states of both services as its functions are called.

  A version is told with the number of steps that were learnt before it. `after_step` is called
  after each step.
  """
  learnt = 0

  def collect(step: int) -> list[Group]:
    nonlocal learnt
    learnt = step + 1
    learner("waits", on="sampler", step=step)
    groups = whole.collect(step)
    learner("learns", step=step)
    return groups

  def publish(params: Any, version: int) -> None:
    learner("waits", on="publisher", version=version)
    publisher("publishes", version=version, step=learnt)
    whole.publish(params, version)
    publisher("waits", on="learner", version=version, step=learnt)
    learner("saves", version=version)

  def save(step: int, *state: Any) -> None:
    learner("saves", step=step)
    whole.save(step, *state)

  def report(step: int, metrics: dict[str, float], groups: list[Group]) -> None:
    learner("reports", step=step)
    whole.report(step, metrics, groups)
    after_step()

  return dataclasses.replace(whole, collect=collect, publish=publish, save=save, report=report)
