"""Tools: a registry, a check of arguments against their JSON schema, calls that never raise.

Whatever is wrong with a call becomes an observation that names the cause and the remedy, so that
the policy can read it and try again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import inspect
import json
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_agents.types import ToolCall, ToolSpec

MAX_QUOTED_CHARS = 80
LATENCY_SIGMA = 0.5
"""Of the logarithm of a latency."""


class ToolError(Exception):
  """A tool refuses or fails; the message is what the policy reads."""


@dataclasses.dataclass(frozen=True)
class Tool:
  """A tool and how to run it.

  Attributes:
    spec: name, description and JSON schema as the policy is told.
    run: called with the arguments by keyword; returns the observation, or an awaitable of it.
    deadline_s: seconds after which the call is given up. A plain function runs in a thread, which
      cannot be stopped: a tool that may run long must bound itself as well.
    max_argument_chars: longest accepted JSON text of the arguments.
  """

  spec: ToolSpec
  run: Callable[..., Any]
  deadline_s: float = 10.0
  max_argument_chars: int = 8_192


def late(tool: Tool, median_s: float, draw: random.Random) -> Tool:
  """The tool as a service on a network would be: each call waits first, a log-normal time of median
  `median_s`. Its deadline is later by what nearly no wait exceeds.
  """

  async def run(**arguments: Any) -> Any:
    await asyncio.sleep(median_s * math.exp(draw.gauss(0.0, LATENCY_SIGMA)))
    return await _run(tool, arguments)

  longest_s = median_s * math.exp(5 * LATENCY_SIGMA)
  return dataclasses.replace(tool, run=run, deadline_s=tool.deadline_s + longest_s)


def problem_with(tools: Mapping[str, Tool], call: ToolCall) -> str:
  """Why `call` cannot be run, with the remedy; "" if it can."""
  if call.error:
    return f"Error: {_clipped(call.error, 300)}. Write the call again as one JSON object."
  if call.name not in tools:
    close = difflib.get_close_matches(call.name[:64], list(tools), n=1, cutoff=0.0)
    hint = f"; did you mean {close[0]}?" if close else "; there are no tools."
    return f"Error: there is no tool {_clipped(call.name)!r}{hint}"
  tool = tools[call.name]
  try:
    size = len(json.dumps(call.arguments, default=str))
    problem = _mismatch(call.arguments, tool.spec.parameters, "arguments")
  except (RecursionError, ValueError, TypeError) as error:
    return (
      f"Error: the arguments of {call.name} cannot be read ({type(error).__name__}); simplify them."
    )
  if size > tool.max_argument_chars:
    return (
      f"Error: the arguments of {call.name} have {size} characters; "
      f"at most {tool.max_argument_chars} are allowed. Shorten them."
    )
  return f"Error: {call.name}: {problem}" if problem else ""


async def run_call(tools: Mapping[str, Tool], call: ToolCall) -> str:
  """The observation for one call. Raises nothing but cancellation."""
  problem = problem_with(tools, call)
  if problem:
    return problem
  tool = tools[call.name]
  try:
    return str(await asyncio.wait_for(_run(tool, call.arguments), tool.deadline_s))
  except ToolError as error:
    return f"Error: {error}"
  except TimeoutError:
    return f"Error: {call.name} took longer than {tool.deadline_s:g} s. Ask for something simpler."
  except Exception as error:  # a tool's failure is for the policy to read
    return f"Error: {call.name} failed: {type(error).__name__}: {_clipped(str(error), 200)}"


async def _run(tool: Tool, arguments: Mapping[str, Any]) -> Any:
  if inspect.iscoroutinefunction(tool.run):
    return await tool.run(**arguments)
  return await asyncio.to_thread(tool.run, **arguments)


JSON_TYPES: Mapping[str, tuple[type, ...]] = {
  "object": (dict,),
  "array": (list, tuple),
  "string": (str,),
  "integer": (int,),
  "number": (int, float),
  "boolean": (bool,),
  "null": (type(None),),
}


def _mismatch(value: Any, schema: Mapping[str, Any], where: str) -> str:
  """The first way in which `value` breaks `schema`, with the remedy; "" if it fits.

  Knows type, enum, properties, required, additionalProperties, items, minItems, maxItems,
  minLength, maxLength, minimum and maximum.
  """
  kind = schema.get("type", "")
  if kind:
    if kind not in JSON_TYPES:
      raise ValueError(f"unknown schema type {kind!r}; use one of {', '.join(JSON_TYPES)}")
    wrong_bool = isinstance(value, bool) and kind != "boolean"
    if wrong_bool or not isinstance(value, JSON_TYPES[kind]):
      return f"{where} must be of type {kind}, not {_kind_of(value)} {_quoted(value)}."
  if "enum" in schema and value not in schema["enum"]:
    return f"{where} must be one of {_quoted(list(schema['enum']))}, not {_quoted(value)}."
  if kind == "object":
    return _object_mismatch(value, schema, where)
  if kind == "array":
    return _array_mismatch(value, schema, where)
  if kind == "string":
    return _bounds(len(value), schema, "minLength", "maxLength", f"{where} has", "characters")
  if kind in ("integer", "number"):
    return _bounds(value, schema, "minimum", "maximum", f"{where} is", "")
  return ""


def _object_mismatch(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> str:
  properties = schema.get("properties", {})
  for name in schema.get("required", ()):
    if name not in value:
      wanted = properties.get(name, {}).get("type", "value")
      return f"{where} lack {name!r}; add it ({wanted})."
  for name, item in value.items():
    if name in properties:
      problem = _mismatch(item, properties[name], repr(name))
      if problem:
        return problem
    elif not schema.get("additionalProperties", False):
      known = ", ".join(properties) or "none"
      return f"{where} have an unknown {_quoted(name)}; remove it. Known: {known}."
  return ""


def _array_mismatch(value: Any, schema: Mapping[str, Any], where: str) -> str:
  for i, item in enumerate(value):
    problem = _mismatch(item, schema.get("items", {}), f"{where}[{i}]")
    if problem:
      return problem
  return _bounds(len(value), schema, "minItems", "maxItems", f"{where} has", "items")


def _bounds(
  number: float, schema: Mapping[str, Any], low: str, high: str, subject: str, unit: str
) -> str:
  unit = f" {unit}" if unit else ""
  if low in schema and number < schema[low]:
    return f"{subject} {number}{unit}; at least {schema[low]} required."
  if high in schema and number > schema[high]:
    return f"{subject} {number}{unit}; at most {schema[high]} allowed."
  return ""


def _kind_of(value: Any) -> str:
  if isinstance(value, bool):
    return "boolean"
  kinds = [kind for kind, types in JSON_TYPES.items() if isinstance(value, types)]
  return kinds[0] if kinds else type(value).__name__


def _quoted(value: Any) -> str:
  return _clipped(json.dumps(value, default=str, ensure_ascii=False))


def _clipped(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
  return text if len(text) <= limit else text[:limit] + "…"
