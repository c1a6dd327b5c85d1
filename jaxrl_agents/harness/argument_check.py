"""Checks the arguments of a call against their JSON schema.

`jsonschema` finds what is wrong; here it is said in words that a policy can act on: the place, what
is wanted, and what stands there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

MAX_QUOTED_CHARS = 80
MAX_MESSAGE_CHARS = 200
MAX_FORMS = 3
"""Alternatives of a schema whose errors are named."""

_KINDS: Mapping[str, tuple[type, ...]] = {
  "object": (dict,),
  "array": (list, tuple),
  "string": (str,),
  "integer": (int,),
  "number": (int, float),
  "boolean": (bool,),
  "null": (type(None),),
}
_FIRST = ("type", "enum", "required", "additionalProperties")
"""Errors of one place are told in this order, the others after them."""
_BOUNDS: Mapping[str, tuple[str, str, str]] = {
  "minLength": ("has", " characters", "at least {} required"),
  "maxLength": ("has", " characters", "at most {} allowed"),
  "minItems": ("has", " items", "at least {} required"),
  "maxItems": ("has", " items", "at most {} allowed"),
  "minimum": ("is", "", "at least {} required"),
  "maximum": ("is", "", "at most {} allowed"),
  "exclusiveMinimum": ("is", "", "more than {} required"),
  "exclusiveMaximum": ("is", "", "less than {} required"),
}
_Strict = validators.extend(
  Draft202012Validator,
  type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
    {
      "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
      "array": lambda _, value: isinstance(value, list | tuple),
    }
  ),
)


def problem(arguments: Any, schema: Mapping[str, Any], *, strict: bool) -> str:
  """The first way in which `arguments` break `schema`, with the remedy; "" if they fit.

  Args:
    arguments: parsed JSON.
    schema: a JSON schema of type object, of the dialect that its "$schema" names, else of draft
      2020-12.
    strict: whether arguments that the schema does not name are errors unless it allows them
      (JSON Schema allows them unless it forbids them), and 1.0 is no integer.

  Raises:
    Exception: the schema itself is wrong, or the arguments are nested too deeply.
  """
  if strict:
    schema = (
      schema if "additionalProperties" in schema else {**schema, "additionalProperties": False}
    )
    validator = _Strict(schema)
  else:
    validator = validators.validator_for(schema, default=Draft202012Validator)(schema)
  return _first(validator.iter_errors(arguments))


def check_schema(schema: Mapping[str, Any]) -> None:
  """Checks a schema that another program wrote.

  Raises:
    ValueError: it is no JSON schema of an object, or refers to another document.
  """
  validators.validator_for(schema, default=Draft202012Validator).check_schema(schema)
  if schema.get("type") != "object":
    raise ValueError(f"its type is {_quoted(schema.get('type'))}; that of arguments is object")
  elsewhere = [ref for ref in _references(schema) if not ref.startswith("#")]
  if elsewhere:
    raise ValueError(f"it refers to {_quoted(elsewhere[0])}, which is another document")


def clipped(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
  """The beginning of a text, short enough to be quoted to the policy."""
  return text if len(text) <= limit else text[:limit] + "…"


def _references(schema: Any) -> list[str]:
  if isinstance(schema, Mapping):
    own = [v for k, v in schema.items() if k in ("$ref", "$dynamicRef") and isinstance(v, str)]
    return own + [ref for value in schema.values() for ref in _references(value)]
  if isinstance(schema, list):
    return [ref for value in schema for ref in _references(value)]
  return []


def _first(errors: Iterable[ValidationError]) -> str:
  """The words for the error that stands first, outer places before inner ones."""

  def key(error: ValidationError) -> tuple[int, int]:
    rank = _FIRST.index(error.validator) if error.validator in _FIRST else len(_FIRST)
    return len(error.absolute_path), rank

  found = min(errors, key=key, default=None)
  return "" if found is None else _words(found)


def _words(error: ValidationError) -> str:
  where, value, wanted = _place(error.absolute_path), error.instance, error.validator_value
  rule = str(error.validator)
  if rule == "type":
    return _wrong_type(where, [wanted] if isinstance(wanted, str) else wanted, value)
  if rule == "enum":
    return f"{where} must be one of {_quoted(wanted)}, not {_quoted(value)}."
  if rule == "required":
    name = next(each for each in wanted if each not in value)
    of_name = error.schema.get("properties", {}).get(name, {})
    kind = of_name.get("type", "value") if isinstance(of_name, Mapping) else "value"
    return (
      f"{where} lack {name!r}; add it ({kind if isinstance(kind, str) else ' or '.join(kind)})."
    )
  if rule == "additionalProperties" and wanted is False:
    known = error.schema.get("properties", {})
    patterns = error.schema.get("patternProperties", {})
    fits = lambda name: name in known or any(re.search(each, name) for each in patterns)
    unknown = next((name for name in value if not fits(name)), "")
    return (
      f"{where} have an unknown {_quoted(unknown)}; remove it. Known: {', '.join(known) or 'none'}."
    )
  if rule in _BOUNDS:
    verb, unit, bound = _BOUNDS[rule]
    size = value if verb == "is" else len(value)
    return f"{where} {verb} {size}{unit}; {bound.format(wanted)}."
  if rule in ("anyOf", "oneOf") and error.context:
    return _no_form(where, value, error.context)
  return f"{where}: {clipped(error.message, MAX_MESSAGE_CHARS)}."


def _no_form(where: str, value: Any, errors: Sequence[ValidationError]) -> str:
  """What is wrong with a value that fits none of several alternatives."""
  if all(error.validator == "type" and not error.path for error in errors):
    kinds = [error.validator_value for error in errors]
    flat = [k for kind in kinds for k in ([kind] if isinstance(kind, str) else kind)]
    return _wrong_type(where, flat, value)
  forms: dict[int, list[ValidationError]] = {}
  for error in errors:
    forms.setdefault(int(error.schema_path[0]), []).append(error)
  told = [_first(each).rstrip(".") for each in list(forms.values())[:MAX_FORMS]]
  return f"{where} has none of the allowed forms: {'; or '.join(told)}."


def _wrong_type(where: str, kinds: Sequence[str], value: Any) -> str:
  wanted = " or ".join(dict.fromkeys(kinds))
  return f"{where} must be of type {wanted}, not {_kind_of(value)} {_quoted(value)}."


def _place(path: Iterable[str | int]) -> str:
  """Where a value stands: "arguments", or the innermost argument that it is in, 'ids'[1]."""
  place = "arguments"
  for name in path:
    place = repr(name) if isinstance(name, str) else f"{place}[{name}]"
  return place


def _kind_of(value: Any) -> str:
  if isinstance(value, bool):
    return "boolean"
  kinds = [kind for kind, types in _KINDS.items() if isinstance(value, types)]
  return kinds[0] if kinds else type(value).__name__


def _quoted(value: Any) -> str:
  return clipped(json.dumps(value, default=str, ensure_ascii=False))
