"""Lists the options of a config with their types, ranges and values, for `--help`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from jaxrl_agents.config import loading, ranges
from jaxrl_agents.config.sections import RunConfig


@dataclasses.dataclass(frozen=True)
class Option:
  """An option: its name in overrides, what it takes, and the value that it has."""

  name: str
  kind: str
  value: str


def described(config: RunConfig) -> list[Option]:
  """Every option of a config, in the order of the sections, those of its agent included."""
  return list(_described(config, ""))


def options_text(config: RunConfig) -> str:
  """The options as lines: name, type with range or choices, [value]."""
  found = described(config)
  width = max(len(option.name) for option in found)
  return "\n".join(f"  {each.name:<{width}}  {each.kind}  [{each.value}]" for each in found)


def _described(section: Any, prefix: str) -> Iterator[Option]:
  hints = typing.get_type_hints(type(section), include_extras=True)
  for name, field in loading.fields(section).items():
    value = getattr(section, field)
    if dataclasses.is_dataclass(value):
      yield from _described(value, f"{prefix}{name}.")
    else:
      shown = f"{value:g}" if isinstance(value, float) else str(value)
      yield Option(prefix + name, kind(hints[field]), shown or "''")


def kind(hint: Any) -> str:
  """A type in words: "int, at least 1", "one of a, b", "tuple of float, at least 0"."""
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  if origin is typing.Annotated:
    limits = [str(each) for each in inner[1:] if isinstance(each, ranges.Range)]
    return ", ".join([kind(inner[0]), *limits])
  if origin is Literal:
    return f"one of {', '.join(map(str, inner))}"
  if origin is tuple:
    return f"tuple of {kind(inner[0])}"
  if origin is Mapping:
    return f"NAME={kind(inner[1])}"
  if origin in (typing.Union, types.UnionType):
    return " or ".join(kind(each) for each in inner)
  return getattr(hint, "__name__", str(hint))
