"""JSON schemas of tools as the TypeScript declarations that harmony shows a model.

Source: https://github.com/openai/harmony/blob/main/docs/format.md, "Function calling".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.types import ToolSpec

TYPES = {
  "string": "string",
  "number": "number",
  "integer": "number",
  "boolean": "boolean",
  "null": "null",
}
INDENT = "    "


def declared(namespace: str, tools: Sequence[ToolSpec]) -> str:
  """The section of a namespace: one type per tool, its description in comments above."""
  lines = [f"## {namespace}", "", f"namespace {namespace} {{", ""]
  for tool in tools:
    lines += [f"// {line}" for line in tool.description.splitlines()]
    given = f"_: {_type(tool.parameters, '')}" if tool.parameters.get("properties") else ""
    lines += [f"type {tool.name} = ({given}) => any;", ""]
  return "\n".join([*lines, f"}} // namespace {namespace}"])


def _type(schema: Mapping[str, Any] | bool, indent: str) -> str:
  """The TypeScript type of a JSON schema; `any` for schemas without a counterpart here."""
  if isinstance(schema, bool):
    return "any"
  kind = schema.get("type")
  if "oneOf" in schema or "anyOf" in schema:
    return " | ".join(_type(each, indent) for each in schema.get("oneOf") or schema["anyOf"])
  if isinstance(kind, list):
    return " | ".join(TYPES.get(each, "any") for each in kind)
  if kind == "object":
    return "\n".join(["{", *_properties(schema, indent), indent + "}"])
  if kind == "array":
    return f"{_type(schema['items'], indent)}[]" if "items" in schema else "any[]"
  if kind == "string" and schema.get("enum"):
    return " | ".join(f'"{value}"' for value in schema["enum"])
  return TYPES.get(str(kind), "any")


def _properties(schema: Mapping[str, Any], indent: str) -> Iterator[str]:
  for name, inner in schema.get("properties", {}).items():
    inner = {} if isinstance(inner, bool) else inner
    yield from (f"{indent}// {line}" for line in inner.get("description", "").splitlines())
    optional = "" if name in schema.get("required", ()) else "?"
    default = f" // default: {_default(inner)}" if "default" in inner else ""
    yield f"{indent}{name}{optional}: {_type(inner, indent + INDENT)},{default}"


def _default(schema: Mapping[str, Any]) -> str:
  value = schema["default"]
  plain = isinstance(value, str) and schema.get("enum")
  return value if plain else json.dumps(value, ensure_ascii=False)
