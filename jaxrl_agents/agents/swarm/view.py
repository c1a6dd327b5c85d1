"""Texts of the agent swarm: its two tools, and what the orchestrator reads about its sub-agents.

Source: Kimi K2.5, https://arxiv.org/abs/2602.02276, appendix E (names and arguments of the tools).
"""

from __future__ import annotations

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


def steps_line(left: int) -> str:
  """The line that ends the question and the last observation of each turn."""
  return f"\n[Steps left: {left}]" if left > 1 else "\n[Steps left: 1, answer now]"


def unfinished(status: str, partial: str) -> str:
  """The report on a sub-agent that did not finish: how it ended and its last words."""
  return f"[status: {status}] {partial}".rstrip()
