"""Steps that tasks take a single agent and a swarm, and which tasks are too long for one agent."""

from __future__ import annotations

import dataclasses
import math

from jaxrl_agents.corpus.index.hybrid import Fusion

SINGLE_AGENT_SHARE = 0.5
"""Largest share of the rows that a single agent may find within the budget of a wide or deep task.
"""


@dataclasses.dataclass(frozen=True)
class Budgets:
  """The limits that the agents will have.

  Attributes:
    share: the budget of critical steps, as a share of the steps of a single agent.
    max_calls: look-ups of one agent in one turn.
    grep_limit: chunks that one call of grep_corpus shows, and so the rows it may look up at once.
    max_assignments: sub-agents at once.
    token_budget: tokens of a single agent's context.
    lookup_tokens: tokens that one look-up adds to it.
    max_shown: chunks that a search shows.
    fusion: how a search ranks.
    name_tokens: most tokens of a name or a value that must be copied.
  """

  share: float = 0.4
  max_calls: int = 1
  grep_limit: int = 1
  max_assignments: int = 16
  token_budget: int = 1_024
  lookup_tokens: int = 120
  max_shown: int = 2
  fusion: Fusion = Fusion(dense_weight=0.3)
  name_tokens: int = 8


def single_steps(rows: int, lookups: int, max_calls: int) -> int:
  """Turns of one agent that looks everything up, `max_calls` at a time, and answers."""
  return lookups * math.ceil(rows / max_calls) + 1


def swarm_steps(rows: int, lookups: int, width: int) -> int:
  """Critical steps of a plan that divides the rows evenly among at most `width` parallel
  sub-agents: one turn to assign, the look-ups and the answer of the fullest sub-agent, one turn to
  answer.
  """
  return 1 + lookups * math.ceil(rows / width) + 1 + 1


def single_rows(rows: int, lookups: int, max_steps: int, budgets: Budgets) -> int:
  """Rows that one agent can finish within `max_steps` and its context."""
  by_steps = (max_steps - 1) // lookups * budgets.max_calls * budgets.grep_limit
  by_tokens = budgets.token_budget // (lookups * budgets.lookup_tokens)
  return min(rows, by_steps, by_tokens)


def paced_steps(lookups: int, steps: float, steps_per_lookup: float) -> int:
  """`ceil(steps + steps_per_lookup * lookups)`, the budget of a task of any size."""
  return math.ceil(round(steps + steps_per_lookup * lookups, 6))


def max_steps(form: str, rows: int, lookups: int, budgets: Budgets) -> int:
  """The budget of critical steps of a task; 0 if the task must not be used."""
  alone = single_steps(rows, lookups, budgets.max_calls)
  together = swarm_steps(rows, lookups, budgets.max_assignments)
  if form == "narrow":
    return together - 1 if alone < together else 0
  budget = int(budgets.share * alone)
  found = single_rows(rows, lookups, budget, budgets)
  return budget if together <= budget and found <= SINGLE_AGENT_SHARE * rows else 0


def sizes(form: str, lookups: int, budgets: Budgets, spread: int = 3) -> list[int]:
  """Numbers of rows of a form: the smallest few that can be used."""
  kept = [n for n in range(1, 65) if max_steps(form, n, lookups, budgets)]
  return kept[: 2 if form == "narrow" else spread]
