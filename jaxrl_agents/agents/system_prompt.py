"""System prompts: what a policy reads first about its environment.

A policy that was trained on other tasks has to be told how this environment is used. The text is
the environment's own (`system_prompt` in the view of an agent) and depends on the options, so that
it names the tools that are offered and the limits that hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxrl_agents.types import Message, ToolSpec

ENVIRONMENT = "environment"
"""The value of an option `system_prompt` that stands for the text of the environment."""


def messages(option: str, own: str) -> list[Message]:
  """The first messages of a conversation: a system message, or none if its text is empty.

  The text is `own` where the option `system_prompt` is ENVIRONMENT, else the option itself.
  """
  text = own if option == ENVIRONMENT else option
  return [Message("system", text)] if text else []


def tool_lines(specs: Iterable[ToolSpec]) -> str:
  """A line for each tool: its name, the names of its arguments, and its description."""
  return "\n".join(
    f"- {spec.name}({', '.join(spec.parameters.get('properties', ()))}): "
    + " ".join(spec.description.split())
    for spec in specs
  )
