"""What one agent and a swarm can do within some critical steps, in theory; and the single agent
that has all the steps and the context that it needs.
"""

from __future__ import annotations

import dataclasses
import math

from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.swarm.tasks.budgets import paced_steps

ROW_TOKENS = 24
"""Most tokens of a row of a table with its number, about: names and values have at most 8 each."""

CALL_TOKENS = 40
"""Most tokens of one look-up without its result, about."""


@dataclasses.dataclass(frozen=True)
class Pace:
  """What one agent and a swarm can do within some critical steps.

  Attributes:
    limits: of the agents.
    names_per_search: names that one search is for.
    hops: look-ups of a row.
    last: look-ups after all rows are known.
  """

  limits: SwarmConfig
  names_per_search: int
  hops: int
  last: int

  @property
  def _each_turn(self) -> int:
    return self.limits.search.max_calls * self.names_per_search

  def rows_alone(self, steps: int) -> int:
    """Rows that one agent can look up within `steps` and its context."""
    by_steps = (steps - 1 - self.last) * self._each_turn // self.hops
    search = self.limits.search
    lookup = (search.tool_output_tokens + CALL_TOKENS) / self.names_per_search
    row = self.hops * lookup + 2 * ROW_TOKENS  # in the question, and in the answer
    return max(0, min(by_steps, int(search.token_budget / row)))

  def steps_alone(self, rows: int) -> int:
    """Critical steps of one agent that looks up all rows and answers."""
    return max(math.ceil(rows * self.hops / self._each_turn), self.hops) + self.last + 1

  def rows_each(self, steps: int) -> int:
    """Rows that one assignment can be for if `steps` are left: within its turns, its context, its
    replies, and the message that is kept of it.
    """
    limits = self.limits
    turns = min(steps - 2 - self.last, limits.sub_max_turns) - 1
    by_turns = turns * self._each_turn // self.hops
    lookup = (limits.search.tool_output_tokens + CALL_TOKENS) / self.names_per_search
    by_context = int(0.7 * limits.sub_token_budget / (self.hops * lookup))
    by_message = min(limits.message_tokens, limits.sub_max_new_tokens) // ROW_TOKENS
    return max(0, min(by_turns, max(by_context, 1), max(by_message, 1)))

  def steps_together(self, rows: int) -> int:
    """Critical steps of one stage of assignments, and the answer."""
    each = math.ceil(rows / self.limits.max_assignments_per_turn)
    turns = max(math.ceil(each * self.hops / self._each_turn), self.hops)
    return 1 + turns + 1 + self.last + 1

  def splits(self, rows: int, steps: int) -> bool:
    """Whether sub-agents find more of the rows, or as many in fewer critical steps."""
    alone = min(rows, self.rows_alone(steps))
    width = self.limits.max_assignments_per_turn
    together = min(rows, self.rows_each(steps) * width)
    if alone != together:
      return together > alone
    return self.steps_together(rows) < self.steps_alone(rows)


UNHURRIED = 1.25
"""The single agent without limits gets this many times the steps and context that a whole table
takes, of tasks that `swarm.budget_share` chose.
"""


def unhurried(options: SwarmConfig) -> SwarmConfig:
  """A single agent with the steps and the context that the largest task takes one agent."""
  search, tables = options.search, options.tables
  if not tables.max_rows:
    more = UNHURRIED / options.budget_share
    context, turns = math.ceil(more * search.token_budget), math.ceil(more * options.max_turns)
  else:
    steps = {n: math.ceil(n / search.max_calls) + 4 for n in range(1, tables.max_rows + 1)}
    more = max(
      each / paced_steps(n, tables.steps, tables.steps_per_lookup) for n, each in steps.items()
    )
    turns = max(steps.values())
    row = search.tool_output_tokens + CALL_TOKENS + 2 * ROW_TOKENS
    context = max(search.token_budget, (tables.max_rows + 4) * row)
  return dataclasses.replace(
    options,
    alone=True,
    stretch=more,
    max_turns=turns,
    search=dataclasses.replace(search, token_budget=context),
  )
