"""Spans of time in which a service of a run did one thing, from the states that it told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_agents import service_log
from jaxrl_agents.service_log import State


@dataclasses.dataclass(frozen=True)
class Span:
  """What a service did from `began` to `ended`, seconds since the epoch.

  Attributes:
    does, on: as in service_log.State.
    step: of the learner, where it was told; -1 else.
  """

  began: float
  ended: float
  does: str
  on: str
  step: int = -1

  @property
  def seconds(self) -> float:
    """Its length."""
    return self.ended - self.began


def of(states: Sequence[State], now: float) -> list[Span]:
  """The spans of one service, oldest first.

  The last state lasts until `now` if its process is alive. One that a crash ended, which nothing
  or a new start follows, has no end that is known, and is left out.
  """
  found = []
  for state, following in zip(states, [*states[1:], None], strict=True):
    if following is None:
      ended = None if state.is_over else now
    else:
      ended = None if following.does == service_log.STARTS else following.time
    if ended is None or state.does in (service_log.ENDED, service_log.STOPPED):
      continue
    step = state.facts.get("step")
    if ended > state.time:
      number = step if isinstance(step, int) else -1
      found.append(Span(state.time, ended, state.does, state.on, number))
  return found


def waits(spans: Iterable[Span], since: float = 0.0) -> dict[str, float]:
  """{service: share of the time that was spent waiting for it}, "" for the time at work.

  Args:
    spans: of one service.
    since: what was before is not counted.
  """
  seconds: dict[str, float] = {}
  for span in spans:
    counted = span.ended - max(span.began, since)
    if counted > 0:
      seconds[span.on] = seconds.get(span.on, 0.0) + counted
  whole = sum(seconds.values())
  return {on: s / whole for on, s in seconds.items()}


def all_waits(
  services: Mapping[str, Sequence[State]], now: float, since: float = 0.0
) -> dict[str, dict[str, float]]:
  """`waits` of every service that did anything."""
  found = {service: waits(of(states, now), since) for service, states in services.items()}
  return {service: shares for service, shares in found.items() if shares}
