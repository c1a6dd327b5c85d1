"""Shared by the formats: calls as JSON, and a reply's thought and content."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.chat.vocabulary import Vocabulary
from jaxrl_agents.types import Message, ToolCall, ToolSpec

MAX_QUOTED_CHARS = 80
MAX_DEPTH = 64
"""Containers in one another in the arguments of a call: what reads them may recurse."""


def json_text(value: Any) -> str:
  """JSON as models see it: on one line, with characters beyond ASCII unescaped."""
  return json.dumps(value, ensure_ascii=False)


def parsed(text: str) -> Any:
  """The value of a JSON text that can be written as JSON in UTF-8 again.

  Raises:
    ValueError: it is not valid JSON, is nested too deeply, or has a number that JSON cannot write
      or half of a surrogate pair.
  """
  try:
    value = json.loads(text, parse_constant=_no_number)
    if _is_deep(value):
      raise RecursionError
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # 1e999 is read as infinity
  except RecursionError:
    raise ValueError("it is nested too deeply") from None
  except UnicodeEncodeError:
    raise ValueError("it has half of a surrogate pair") from None
  return value


def _is_deep(value: Any) -> bool:
  """Whether a value has containers in one another deeper than MAX_DEPTH."""
  containers = [value]
  for _ in range(MAX_DEPTH + 1):
    containers = [each for each in containers if isinstance(each, dict | list)]
    inner = (each.values() if isinstance(each, dict) else each for each in containers)
    deepest, containers = containers, [each for values in inner for each in values]
  return bool(deepest)


def _no_number(name: str) -> Any:
  raise ValueError(f"{name} is no number of JSON")


def declaration(tool: ToolSpec) -> dict[str, Any]:
  """A tool in the form that the published templates expect."""
  function = {
    "name": tool.name,
    "description": tool.description,
    "parameters": dict(tool.parameters),
  }
  return {"type": "function", "function": function}


def with_arguments(call_id: str, name: str, text: str, label: str = "") -> ToolCall:
  """The call of `name` whose arguments are the JSON `text`; `error` names what is wrong with it."""
  arguments: Any = {}
  error = ""
  try:
    arguments = parsed(text)
  except ValueError as problem:
    error = f"the arguments of {name!r} are not valid JSON: {problem}"
  call = with_object(call_id, name, arguments, label, error)
  return dataclasses.replace(call, raw=text) if call.error else call


def with_object(
  call_id: str, name: str, arguments: Any, label: str = "", error: str = ""
) -> ToolCall:
  """The call of `name` with parsed JSON as arguments; anything but an object is an error."""
  if not error and not isinstance(arguments, dict):
    kind = type(arguments).__name__
    error = f"the arguments of {name!r} are a JSON {kind}; write an object"
  return ToolCall(call_id, name, {} if error else arguments, error, label)


def malformed(
  call_id: str, text: str, problem: str, *, name: str = "", label: str = ""
) -> ToolCall:
  """A call that could not be parsed; `problem` gives the reason, and the beginning of its text
  follows.
  """
  return ToolCall(call_id, name, {}, f"the call {clipped(text)!r} {problem}", label)


def clipped(text: str) -> str:
  """The beginning of a text, short enough to be quoted to the policy."""
  return text[:MAX_QUOTED_CHARS]


def said(
  vocabulary: Vocabulary,
  tokens: np.ndarray,
  *,
  content: list[int],
  calls: Sequence[ToolCall],
  thought: list[int],
) -> Message:
  """The message of a reply whose ids were told apart; texts without the white space around them."""
  return Message(
    "assistant",
    vocabulary.decode(content).strip(),
    tuple(calls),
    tokens=tokens,
    reasoning=vocabulary.decode(thought).strip(),
  )


def label_of(labels: Mapping[str, str], result: Message) -> str:
  """The label of the call that a tool message answers.

  Raises:
    ValueError: no earlier message makes that call.
  """
  if result.tool_call_id not in labels:
    raise ValueError(
      f"a tool result answers call {result.tool_call_id!r}, which no earlier message makes; its "
      "format has results quote their call, so keep both in the context or neither"
    )
  return labels[result.tool_call_id]


def split_thought(body: list[int], opening: int, closing: int) -> tuple[list[int], list[int]]:
  """(thought, the rest) of the token ids of a reply. A thought ends at the first `closing`, even if
  its `opening` is not in the reply; without a `closing` it takes the whole reply.
  """
  if closing in body:
    end = body.index(closing)
    return [i for i in body[:end] if i != opening], body[end + 1 :]
  if opening in body:
    start = body.index(opening)
    return body[start + 1 :], body[:start]
  return [], body
