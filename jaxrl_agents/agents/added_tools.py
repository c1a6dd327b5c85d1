"""Tools that a run gives to an environment beside its own (`tools.mcp`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jaxrl_agents.agents.system_prompt import ENVIRONMENT, tool_lines
from jaxrl_agents.harness.tools import Tool, shortened
from jaxrl_agents.types import Message


def checked(
  tools: Sequence[Tool],
  own: Mapping[str, Tool],
  *,
  max_tokens: Callable[[], int],
  count: Callable[[str], int],
) -> dict[str, Tool]:
  """{name: tool} of the added tools, their results cut to the limit of the environment.

  Args:
    tools: to be added.
    own: the tools of the environment.
    max_tokens: of the result of the next call.
    count: counts the tokens of a text.

  Raises:
    ValueError: an added tool has the name of another one.
  """
  found: dict[str, Tool] = {}
  for tool in tools:
    name = tool.spec.name
    if name in own or name in found:
      raise ValueError(f"there is a tool {name!r} already; rename the one that is added")
    found[name] = shortened(tool, lambda text: clipped(text, max_tokens(), count))
  return found


def announced(first: Sequence[Message], tools: Sequence[Tool], option: str) -> list[Message]:
  """The first messages of a conversation, of which the environment's own text names the tools.

  Any other text, as of an option `system_prompt`, stays as it is.
  """
  if option != ENVIRONMENT or not first or not tools:
    return list(first)
  lines = tool_lines(tool.spec for tool in tools)
  head = dataclasses.replace(first[0], content=f"{first[0].content}\n\nFurther tools:\n{lines}")
  return [head, *first[1:]]


def clipped(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
  """About `max_tokens` of `text`: its beginning, its end, and a note on how much is left out."""
  size = count(text)
  if size <= max_tokens:
    return text
  keep = max(1, int(len(text) * max_tokens / size * 0.9) - 30)
  while True:
    head, tail = text[: keep - keep // 2], text[len(text) - keep // 2 :]
    short = f"{head}\n[{len(text) - keep} characters left out]\n{tail}"
    if keep < 8 or count(short) <= max_tokens:
      return short
    keep = keep * 4 // 5
