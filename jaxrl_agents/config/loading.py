"""Loads configurations from files and applies overrides `section.option=value`."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import importlib.util
import json
import pathlib
import sys
import traceback
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxrl_agents.config import import_path, mcp_servers
from jaxrl_agents.config.checks import validate
from jaxrl_agents.config.ranges import LIMIT, shown
from jaxrl_agents.config.sections import RunConfig


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
  """The config of a Python file's `get_config()`, with `section.option=value` overrides applied.

  Raises:
    ValueError: no such file, no `get_config`, an error in the file, or a bad override.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    folder = next((f for f in (file, file.parent) if f.is_dir()), pathlib.Path("configs"))
    names = [str(p) for p in sorted(folder.glob("*.py"))]
    if file.is_dir():
      raise ValueError(f"the config {path} is a folder; name one of {', '.join(names) or 'none'}")
    raise ValueError(f"the config {path} does not exist; {_nearest(path, names)}")
  name = f"{__name__}.file_{hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:16]}"
  spec = importlib.util.spec_from_file_location(name, file.absolute())
  if spec is None or spec.loader is None:
    raise ValueError(f"{path} is not a Python file; pass one that defines get_config()")
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # dataclasses look their module up there
  try:
    spec.loader.exec_module(module)
    made = module.get_config() if callable(getattr(module, "get_config", None)) else None
  except Exception as error:  # whatever Python raises in a file that is not ours
    raise ValueError(f"{path} cannot be run: {_described(error, file.absolute())}") from error
  if not hasattr(module, "get_config"):
    raise ValueError(
      f"{path} defines no get_config(); a config is a function that returns a RunConfig"
    )
  if not callable(module.get_config):
    raise ValueError(f"get_config of {path} is no function; it must return a RunConfig")
  if not isinstance(made, RunConfig):
    raise ValueError(f"get_config() of {path} returns a {type(made).__name__}, not a RunConfig")
  return validate(with_overrides(made, overrides))


def _described(error: Exception, file: pathlib.Path) -> str:
  """The type and first line of an error, and the last line of `file` that led to it."""
  frames = traceback.extract_tb(error.__traceback__)
  lines = [frame.lineno for frame in frames if frame.filename == str(file)]
  text = str(error).partition("\n")[0].replace("\0", "")
  return f"{type(error).__name__}: {text}" + (f", at line {lines[-1]}" if lines else "")


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
  """A copy of `config` with each "a.b=c" applied; c is parsed as the type of the option. Of two for
  one option the later one holds. A section is checked once it has all of its own.
  """
  changes: list[_Change] = []
  for override in overrides:
    path, equals, text = override.partition("=")
    if not equals:
      raise ValueError(f"override {shown(override)} has no '='; write --set section.option=value")
    changes.append(_Change(path.strip().split("."), text.strip(), path.strip()))
  of_agent = [change for change in changes if change.path == ["agent"]]
  config = _replaced(config, of_agent)  # first: it decides which options there are
  return _replaced(config, [change for change in changes if change not in of_agent])


class _Change(NamedTuple):
  """An override: the path of the option within a section, its text, and its whole name."""

  path: list[str]
  text: str
  full: str


def options(config: Any, prefix: str = "") -> dict[str, Any]:
  """Every option as {"section.option": value}, sections flattened, records in a value as text."""
  flat: dict[str, Any] = {}
  for name, field in fields(config).items():
    value = getattr(config, field)
    if dataclasses.is_dataclass(value):
      flat |= options(value, f"{prefix}{name}.")
    elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
      flat[prefix + name] = tuple(map(str, value))
    else:
      flat[prefix + name] = value
  return flat


def changed(before: Mapping[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
  """{option: (value before, value now)} of what differs from earlier `options`, read from JSON.

  Options that only one side has are ignored.
  """
  now = json.loads(json.dumps(options(config), default=str))
  names = sorted(set(before) & set(now))
  return {name: (before[name], now[name]) for name in names if before[name] != now[name]}


def sha256(config: RunConfig) -> str:
  """A digest of all options: equal for equal configs, whatever file they came from."""
  text = json.dumps(options(config), sort_keys=True, default=str)
  return hashlib.sha256(text.encode()).hexdigest()


def fields(section: Any) -> dict[str, str]:
  """{name in overrides: field} of a section; an agent's options are called by the agent's name."""
  names = {field.name: field.name for field in dataclasses.fields(section)}
  if isinstance(section, RunConfig):
    own = import_path.agent(section.agent).name
    names = {own if name == "agent_config" else name: field for name, field in names.items()}
  return names


def _replaced(section: Any, changes: Sequence[_Change]) -> Any:
  named = fields(section)
  values: dict[str, Any] = {}
  inner: dict[str, list[_Change]] = {}
  for path, text, full in changes:
    if path[0] not in named:
      raise ValueError(f"no option {shown(full)}; {_why_none(section, path, full, list(named))}")
    name = named[path[0]]
    current = values.get(name, getattr(section, name))
    if len(path) > 1 and isinstance(current, Mapping):
      values[name] = {**current, ".".join(path[1:]): _number(text, full)}
    elif len(path) > 1 and dataclasses.is_dataclass(current):
      inner.setdefault(name, []).append(_Change(path[1:], text, full))
    elif len(path) > 1:
      raise ValueError(f"option {shown(full)} goes deeper than {path[0]!r}, which holds a value")
    elif dataclasses.is_dataclass(current):
      options = [f"{full}.{f.name}" for f in dataclasses.fields(current)]
      raise ValueError(f"{full!r} is a section; set one of its options: {', '.join(options)}")
    else:
      hint = typing.get_type_hints(type(section))[name]
      values[name] = _servers(text, full) if hint == _SERVERS else _value(hint, text, full)
  values |= {name: _replaced(getattr(section, name), of_it) for name, of_it in inner.items()}
  if isinstance(section, RunConfig) and values.get("agent", section.agent) != section.agent:
    values["agent_config"] = None
  try:
    return dataclasses.replace(section, **values) if values else section
  except ValueError as error:  # of a section that checks itself as it is made
    own = [f"{full}={shown(text)}" for path, text, full in changes if len(path) == 1]
    raise ValueError(f"{', '.join(own)}: {error}" if own else str(error)) from error


def _why_none(section: Any, path: list[str], full: str, names: list[str]) -> str:
  """Why `section` has no option path[0], or the nearest option that there is."""
  if full in _REASONS:
    return _REASONS[full]
  if not isinstance(section, RunConfig):
    parent = full[: len(full) - len(".".join(path))]
    return _nearest(parent + path[0], [parent + name for name in names])
  if path[0] in import_path.AGENTS:
    own = import_path.agent(section.agent).name
    return f"the agent of this config is {own}, and its options are {own}.NAME"
  return _nearest(full, [*options(section)] if len(path) > 1 else names)


_EXAMPLES: dict[Any, str] = {
  bool: "true",
  int: "8",
  float: "0.5",
  (str, ...): "\"('a', 'b')\"",
  (float, ...): "0.5,0.25",
  (int, ...): "8,16",
}
"""How an option of each type is written on a command line."""


_REASONS = {
  "sampler.top_p": "training needs the log-probability that the whole distribution gives a token, "
  "since that is what the learner computes; for evaluation set eval.top_p",
}
"""Why some options do not exist that a user may look for."""

_UNREADABLE = (
  KeyError,
  ValueError,
  SyntaxError,
  TypeError,
  OverflowError,
  RecursionError,
  MemoryError,
)
"""What parsing a text as a literal or a number may raise."""


def _number(text: str, full: str) -> float | bool:
  """`text` parsed as a bool or a float."""
  if text.lower() in ("true", "false"):
    return text.lower() == "true"
  try:
    return float(text)
  except ValueError:
    raise ValueError(f"{full}={shown(text)} is no number; write for example {full}=0.5") from None


_MOST_VALUES = 64
"""Most values of an option that holds several, on a command line."""


_SERVERS = tuple[mcp_servers.McpServer, ...]


def _servers(text: str, full: str) -> tuple[mcp_servers.McpServer, ...]:
  try:
    return mcp_servers.read(text)
  except ValueError as error:
    raise ValueError(f"{full}: {error}") from error


class _TooLargeError(ValueError):
  """A value can be read, but is larger than any use that there is for it."""


def _whole(text: str, full: str) -> int:
  number = int(text.replace("_", ""))
  if abs(number) >= LIMIT:
    raise _TooLargeError(f"{full}={shown(text)} must be less than 2^63")
  return number


def _value(hint: Any, text: str, full: str) -> Any:
  """`text` parsed as the type `hint`: bool, int, float, str, a Literal, a tuple, or `X | None`."""
  if typing.get_origin(hint) is typing.Annotated:
    hint = typing.get_args(hint)[0]
  origin = typing.get_origin(hint)
  if origin is Mapping:
    raise ValueError(f"{full} holds named numbers; set one of them, {full}.NAME=0.5")
  if origin is Literal:
    choices = [str(c) for c in typing.get_args(hint)]
    if text not in choices:
      raise ValueError(
        f"{full}={shown(text)} is not one of {', '.join(choices)}; {_nearest(text, choices)}"
      )
    return text
  if origin in (typing.Union, types.UnionType):
    inner = [h for h in typing.get_args(hint) if h is not type(None)]
    return None if text == "None" else _value(inner[0], text, full)
  try:
    if hint is bool:
      return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
    if origin is tuple:
      listed = ast.literal_eval(text)
      if not isinstance(listed, tuple | list):
        raise TypeError(f"{listed!r} is one value")
      if len(listed) > _MOST_VALUES:
        raise _TooLargeError(f"{full} is given {len(listed)} values; give at most {_MOST_VALUES}")
      of_value = typing.get_args(hint)[0]
      return tuple(_whole(str(v), full) if of_value is int else of_value(v) for v in listed)
    if hint is int:
      return _whole(text, full)
    if hint in (float, str):
      return hint(text)
  except _TooLargeError:
    raise
  except _UNREADABLE as error:
    name = getattr(hint, "__name__", str(hint))
    example = _EXAMPLES[typing.get_args(hint)[0], ...] if origin is tuple else _EXAMPLES[hint]
    raise ValueError(
      f"{full}={shown(text)} cannot be read as {name}; write for example {full}={example}"
    ) from error
  raise ValueError(
    f"{full} cannot be set from the command line (type {hint}); edit the config file"
  )


def _nearest(name: str, names: Sequence[str]) -> str:
  close = difflib.get_close_matches(name[:60], names, n=1, cutoff=0.0)
  return f"did you mean {close[0]!r}?" if close else "there are none"
