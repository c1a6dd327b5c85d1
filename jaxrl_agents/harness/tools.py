"""Tools: a registry, a check of arguments against their JSON schema, errors as replies.

Whatever is wrong with a call becomes an observation that names the cause and the remedy, so that
the policy can read it and try again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import functools
import inspect
import json
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_agents import background
from jaxrl_agents.harness import argument_check
from jaxrl_agents.harness.argument_check import clipped
from jaxrl_agents.harness.rollout import EpisodeError
from jaxrl_agents.types import ToolCall, ToolSpec


class ToolError(Exception):
  """A tool refuses or fails; the message is what the policy reads."""


@dataclasses.dataclass(frozen=True)
class Tool:
  """A tool and how to run it.

  Attributes:
    spec: name, description and JSON schema as the policy is told.
    run: called with the arguments by keyword; returns the observation, or an awaitable of it.
    deadline_s: seconds after which the call is given up. A plain function runs in a thread of its
      own, which cannot be stopped: a tool that may run long must bound itself as well.
    max_argument_chars: longest accepted JSON text of the arguments.
    strict: whether the arguments are exactly those that the schema names, as a Python function
      needs them. False for a tool that takes whatever JSON Schema allows.
  """

  spec: ToolSpec
  run: Callable[..., Any]
  deadline_s: float = 10.0
  max_argument_chars: int = 8_192
  strict: bool = True


def late(tool: Tool, median_s: float, sigma: float, draw: random.Random) -> Tool:
  """The tool as a service on a network would be: each call waits first, a log-normal time of median
  `median_s`, whose logarithm has the standard deviation `sigma`. Its deadline is later by what
  nearly no wait exceeds.
  """

  async def run(**arguments: Any) -> Any:
    await asyncio.sleep(median_s * math.exp(draw.gauss(0.0, sigma)))
    return await _run(tool, arguments)

  longest_s = median_s * math.exp(5 * sigma)
  return dataclasses.replace(tool, run=run, deadline_s=tool.deadline_s + longest_s)


def shortened(tool: Tool, shorten: Callable[[str], str]) -> Tool:
  """The tool with `shorten` applied to what it returns, and to what it says of a failure."""

  async def run(**arguments: Any) -> str:
    try:
      return shorten(str(await _run(tool, arguments)))
    except ToolError as error:
      raise ToolError(shorten(str(error))) from error

  return dataclasses.replace(tool, run=run)


def problem_with(tools: Mapping[str, Tool], call: ToolCall) -> str:
  """Why `call` cannot be run, with the remedy; "" if it can."""
  if call.error:
    return f"Error: {clipped(call.error, 300)}. Write the call again as one JSON object."
  if call.name not in tools:
    close = difflib.get_close_matches(call.name[:64], list(tools), n=1, cutoff=0.0)
    hint = f"; did you mean {close[0]}?" if close else "; there are no tools."
    return f"Error: there is no tool {clipped(call.name)!r}{hint}"
  tool = tools[call.name]
  try:
    size = len(json.dumps(call.arguments, default=str, ensure_ascii=False))
    if size > tool.max_argument_chars:
      return (
        f"Error: the arguments of {call.name} have {size} characters; "
        f"at most {tool.max_argument_chars} are allowed. Shorten them."
      )
    problem = argument_check.problem(call.arguments, tool.spec.parameters, strict=tool.strict)
  except Exception as error:  # jsonschema raises what a schema or a deep nesting makes it raise
    return (
      f"Error: the arguments of {call.name} cannot be read ({type(error).__name__}); simplify them."
    )
  return f"Error: {call.name}: {problem}" if problem else ""


async def run_call(tools: Mapping[str, Tool], call: ToolCall) -> str:
  """The observation for one call. Raises nothing but cancellation and EpisodeError."""
  text, _ = await outcome(tools, call)
  return text


async def outcome(tools: Mapping[str, Tool], call: ToolCall) -> tuple[str, bool]:
  """(the observation for one call, whether the call failed). Raises nothing but cancellation,
  and EpisodeError where the failure is not one that the policy could help.
  """
  problem = problem_with(tools, call)
  if problem:
    return problem, True
  tool = tools[call.name]
  deadline = asyncio.timeout(tool.deadline_s)
  try:
    async with deadline:
      return str(await _run(tool, call.arguments)), False
  except ToolError as error:
    return f"Error: {error}", True
  except EpisodeError:
    raise
  except (Exception, SystemExit) as error:  # a tool's failure is for the policy to read
    if deadline.expired():
      late = f"{call.name} took longer than {tool.deadline_s:g} s. Ask for something simpler."
      return f"Error: {late}", True
    why = f"{type(error).__name__}: {clipped(str(error), 200)}"
    return f"Error: {call.name} failed: {why}", True


async def _run(tool: Tool, arguments: Mapping[str, Any]) -> Any:
  if inspect.iscoroutinefunction(tool.run):
    return await tool.run(**arguments)
  # Calls that hang would use up a pool of threads, which finished groups wait for, too.
  call = functools.partial(tool.run, **arguments)
  found = await asyncio.wrap_future(background.call(call, f"tool {tool.spec.name}"))
  return await found if inspect.isawaitable(found) else found
