"""Texts of the agent swarm: its two tools, and what the orchestrator reads about its sub-agents.

Source: Kimi K2.5, https://arxiv.org/abs/2602.02276, appendix E (names and arguments of the tools).
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_agents.agents.search import view as search_view
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.system_prompt import tool_lines
from jaxrl_agents.types import ToolSpec

CREATED = "Created"
CUT_OFF = "Your reply was cut off. Call a tool or give a shorter final answer."

CREATE = ToolSpec(
  "create_subagent",
  "Creates a kind of sub-agent, which can be given any number of tasks.",
  {
    "type": "object",
    "properties": {
      "name": {"type": "string", "minLength": 1, "maxLength": 64},
      "system_prompt": {"type": "string", "maxLength": 4_000},
    },
    "required": ["name", "system_prompt"],
  },
)
ASSIGN = ToolSpec(
  "assign_task",
  "Gives a sub-agent a task and returns its final message; those of one turn run at once.",
  {
    "type": "object",
    "properties": {
      "agent": {"type": "string", "minLength": 1, "maxLength": 64},
      "prompt": {"type": "string", "minLength": 1, "maxLength": 8_000},
    },
    "required": ["agent", "prompt"],
  },
)


_SYSTEM = """\
You answer a question about a corpus.{alone}

Tools:
{tools}

A search shows at most {max_shown} chunks, and never one that an earlier search of yours has \
shown; each chunk comes after a line "# DOCUMENT ID: ID (N tokens)".{agents}

Limits: your context holds {token_budget} tokens and you have at most {max_turns} turns. The line \
"[Steps left: N]" says how many steps are left; {cost}. The answer takes a step too: give it \
before none is left.

To answer, reply without calling a tool. For a table, write its header as the question gives it, \
then one line for each row, with its cells between bars, after its number if you like:
| name | value |
1. | sum | 3 |
Write each cell as the corpus has it, and in a column "source" the mark \
<Document id=ID> of the chunk that says it. \
Where the question asks for one thing ("Which ...?"), reply with that alone, or with the row that \
ends with it."""

_AGENTS = """

A sub-agent has the tools that search the corpus. It sees its system prompt and the task that you \
give it, and nothing of this conversation; its final message comes back to you, cut to \
{message_tokens} tokens. Tasks given in one turn run at once. Look up little things yourself; give \
parts that do not depend on one another to sub-agents, several in one turn."""

_SUB_AGENT = """\
You work for somebody who sees your final message alone, cut to {message_tokens} tokens.

Tools:
{tools}

A search shows at most {max_shown} chunks, and never one that an earlier search of yours has \
shown; each chunk comes after a line "# DOCUMENT ID: ID (N tokens)".

Limits: your context holds {token_budget} tokens and you have at most {max_turns} turns. End with \
a reply that calls no tool and says what you found, in the form that you were asked for."""


def system_prompt(limits: SwarmConfig, specs: Sequence[ToolSpec]) -> str:
  """What an orchestrator that does not know the environment reads first; `specs` are its tools."""
  cost = "a turn takes one step, and as many more as the longest sub-agent of that turn has turns"
  alone = "" if limits.alone else " You may do it all yourself, or have sub-agents do parts of it."
  agents = _AGENTS.format(message_tokens=limits.message_tokens)
  return _SYSTEM.format(
    alone=alone,
    tools=tool_lines(specs),
    agents="" if limits.alone else agents,
    cost="a turn takes one step" if limits.alone else cost,
    max_shown=limits.search.max_shown,
    token_budget=limits.search.token_budget,
    max_turns=limits.max_turns,
  )


def sub_agent_prompt(limits: SwarmConfig, max_turns: int) -> str:
  """What a sub-agent of `max_turns` turns reads after the orchestrator's own words."""
  return _SUB_AGENT.format(
    tools=tool_lines((search_view.SEARCH, search_view.GREP, search_view.READ)),
    message_tokens=limits.message_tokens,
    max_shown=limits.search.max_shown,
    token_budget=limits.sub_token_budget,
    max_turns=max_turns,
  )


def steps_line(left: int) -> str:
  """The line that ends the question and the last observation of each turn."""
  return f"\n[Steps left: {left}]" if left > 1 else "\n[Steps left: 1, answer now]"


def unfinished(status: str, partial: str) -> str:
  """The report on a sub-agent that did not finish: how it ended and its last words."""
  return f"[status: {status}] {partial}".rstrip()
