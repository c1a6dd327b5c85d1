"""JSON schemas of tools as the TypeScript declarations that Kimi K2.5 shows a model.

Source: tool_declaration_ts.py of https://huggingface.co/moonshotai/Kimi-K2.5, which its tokenizer
calls with tools whose keys are sorted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.types import ToolSpec

INDENT = "  "
SELF = "parameters"
"""The name of the parameters of a function whose schema refers to itself."""

UNION = {
  "string": "string",
  "number": "number",
  "integer": "number",
  "boolean": "boolean",
  "null": "null",
  "object": "{}",
  "array": "Array<any>",
}
"""The types that a list of types may have."""

CONSTRAINTS = {
  "string": ("maxLength", "minLength", "pattern"),
  "number": ("maximum", "minimum"),
  "integer": ("maximum", "minimum"),
  "array": ("maxItems", "minItems"),
}
"""Keywords of each type that are told in a comment."""

_DEFINITION = "#/$defs/"


def declared(tools: Sequence[ToolSpec]) -> str:
  """A namespace with one type for each tool, its description in comments above.

  Raises:
    ValueError: a schema has no counterpart in the declarations, as those with "oneOf" alone.
  """
  functions = "".join(f"{_function(tool)}\n" for tool in tools)
  return f"# Tools\n\n## functions\nnamespace functions {{\n{functions}}}\n"


def _function(tool: ToolSpec) -> str:
  types, schema = _Types(), _by_sorted_keys(tool.parameters)
  parameters = types.of_object(schema, "")
  interfaces = []
  if types.refer_to_self:
    given = types.properties(schema, schema.get("properties", {}), "")
    inside = ",\n".join(given)
    interfaces.append(f"interface {SELF} {{\n{inside}\n}}" if inside else f"interface {SELF} {{}}")
    parameters = SELF
  for name, definition in dict(types.definitions).items():
    if not isinstance(definition, dict):
      raise ValueError(f"the definition {name!r} is {definition}")
    described = _commented(_description(definition), "")
    interfaces.append(f"{described}interface {name} {types.of(definition, '')}")
  own = _commented(tool.description, "")
  return "\n".join([*interfaces, f"{own}type {tool.name} = (_: {parameters}) => any;"])


class _Types:
  """Types of the schemas of one function.

  Attributes:
    definitions: {name: schema} of "$defs" of the objects so far.
    refer_to_self: whether one of the schemas is a reference to the whole, "#".
  """

  def __init__(self) -> None:
    self.definitions: dict[str, Any] = {}
    self.refer_to_self = False

  def of(self, schema: Any, indent: str) -> str:
    """The type of a schema whose first line stands after `indent`."""
    if isinstance(schema, bool) or schema == {}:
      return "null" if schema is False else "any"
    if "$ref" in schema:
      return self._referred(schema["$ref"])
    if "anyOf" in schema:
      return " | ".join(self.of(each, indent) for each in schema["anyOf"])
    if "enum" in schema:
      return _enumerated(schema)
    kind = schema.get("type")
    if isinstance(kind, list):
      if unknown := [each for each in kind if each not in UNION]:
        raise ValueError(f"the type {unknown[0]!r} has no counterpart")
      return " | ".join(UNION[each] for each in kind)
    if kind == "object":
      return self.of_object(schema, indent)
    if kind == "array":
      return self._array(schema.get("items") or {}, indent)
    if not isinstance(kind, str):
      raise ValueError(f"a schema has no type: {schema}")
    return "number" if kind == "integer" else kind

  def of_object(self, schema: Mapping[str, Any], indent: str) -> str:
    """The type of an object: what is required first, each part in the order of names."""
    self.definitions |= schema.get("$defs", {})
    known = schema.get("properties", {})
    names = sorted(known, key=lambda name: (name not in schema.get("required", ()), name))
    lines = self.properties(schema, names, indent)
    others = schema.get("additionalProperties")
    if others is not None:
      kind = self.of(others, indent + INDENT) if isinstance(others, dict) else ""
      kind = kind or ("any" if others else "never")
      lines.append(f"{indent}{INDENT}[k: string]: {kind}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

  def properties(
    self, schema: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any], indent: str
  ) -> list[str]:
    """The lines of the properties of an object, in the order of `names`."""
    inner = indent + INDENT
    found = []
    for name in names:
      each = schema["properties"][name]
      default = each.get("default") if isinstance(each, dict) else None
      comment = _comment(each, inner)
      if default is not None:
        text = json.dumps(default, ensure_ascii=False)
        text = str(default) if isinstance(default, bool | int | float) else text
        comment += f"{inner}// Default: {text}\n"
      mark = "" if name in schema.get("required", ()) else "?"
      found.append(f"{comment}{inner}{name}{mark}: {self.of(each, inner)}")
    return found

  def _array(self, items: Any, indent: str) -> str:
    comment = _comment(items, indent + INDENT)
    if not comment:
      return f"Array<{self.of(items, indent)}>"
    kind = self.of(items, indent + INDENT)
    return f"Array<\n{comment}{indent}{INDENT}{kind}\n{indent}>"

  def _referred(self, reference: str) -> str:
    if reference == "#":
      self.refer_to_self = True
      return SELF
    name = reference.removeprefix(_DEFINITION).split("/")[-1]
    if not reference.startswith(_DEFINITION) or name not in self.definitions:
      raise ValueError(f"the reference {reference!r} leads nowhere")
    return name


def _by_sorted_keys(value: Any) -> Any:
  """A value of JSON, the keys of its objects sorted."""
  return json.loads(json.dumps(value, sort_keys=True))


def _enumerated(schema: Mapping[str, Any]) -> str:
  """The values, which must be of the schema's type if it has one."""
  kinds = schema.get("type", [])
  kinds = [kinds] if isinstance(kinds, str) else kinds
  if len(kinds) > 2 or (len(kinds) == 2 and "null" not in kinds):
    raise ValueError(f"an enumeration has the types {kinds}")
  known: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
  }
  kind = next((each for each in kinds if each != "null"), "null")
  for value in schema["enum"]:
    if value is not None and not isinstance(value, known.get(kind, (object,))):
      raise ValueError(f"{value!r} is not of the type {kind!r}")
  return " | ".join(f'"{each}"' if isinstance(each, str) else str(each) for each in schema["enum"])


def _description(schema: Any) -> str:
  return schema.get("description", "") if isinstance(schema, dict) else ""


def _comment(schema: Any, indent: str) -> str:
  """The description of a schema and the constraints of a plain type, as lines of comments."""
  if not isinstance(schema, dict):
    return ""
  kind = schema.get("type")
  is_plain = isinstance(kind, str) and not {"$ref", "anyOf", "enum"} & schema.keys()
  keys = CONSTRAINTS.get(kind, ()) if is_plain and isinstance(kind, str) else ()
  told = ", ".join(f"{key}: {schema[key]}" for key in keys if key in schema)
  return _commented(_description(schema), indent) + (f"{indent}// {told}\n" if told else "")


def _commented(text: str, indent: str) -> str:
  """Lines of comments; "" for an empty text. Blank lines stay blank."""
  lines = [f"{indent}// {line}\n" if line else "\n" for line in text.split("\n")]
  return "".join(lines) if text else ""
