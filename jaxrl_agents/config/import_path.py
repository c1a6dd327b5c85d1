"""Objects named by "package.module:name": the agents of this package, and your own objects."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.config.ranges import shown

AGENTS: Mapping[str, str] = {
  name: f"jaxrl_agents.agents.{name}.agent:AGENT"
  for name in ("search", "swarm", "coding", "external")
}
"""{name: import path} of the agents of this package."""


def agent(name: str) -> Any:
  """The `agents.agent.Agent` with a name in AGENTS, or at an import path.

  Raises:
    ValueError: there is no such agent.
  """
  if ":" not in name and name not in AGENTS:
    close = difflib.get_close_matches(name, list(AGENTS), n=1, cutoff=0.0)[0]
    raise ValueError(
      f"agent={shown(name)} is none of {', '.join(AGENTS)}; did you mean {close!r}? An agent of "
      "your own is named by its import path, package.module:NAME"
    )
  found = load(AGENTS.get(name, name), "agent")
  if not dataclasses.is_dataclass(getattr(found, "config", None)) or not hasattr(found, "name"):
    raise ValueError(
      f"agent={name!r} is a {type(found).__name__}, not an agent: an instance of a subclass of "
      "jaxrl_agents.agents.agent:Agent that sets name and config"
    )
  options = {field.name for field in dataclasses.fields(found.config)}
  if "token_budget" not in options and not hasattr(found.config, "token_budget"):
    raise ValueError(
      f"agent={name!r}: its options {found.config.__name__} lack token_budget, the most tokens of "
      "a context; add this field, with a default"
    )
  return found


@functools.cache
def load(path: str, option: str) -> Any:
  """The object at "package.module:name"; modules below the working directory are found, too.

  Raises:
    ValueError: the module or name does not exist; the message names `option`, which holds the path.
  """
  module_name, _, name = path.partition(":")
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())
  try:
    module = importlib.import_module(module_name)
  except Exception as error:
    parents = [module_name.rsplit(".", n)[0] for n in range(module_name.count(".") + 1)]
    missing = isinstance(error, ModuleNotFoundError) and error.name in parents
    if missing or not _is_dotted(module_name):
      raise ValueError(
        f"{option}={shown(path)}: {str(error)[:200]}; write package.module:name, with the package "
        f"installed or below the working directory {os.getcwd()}"
      ) from error
    raise ValueError(
      f"{option}={shown(path)}: importing {module_name} raises {type(error).__name__}: "
      f"{str(error)[:200]}"
    ) from error
  if not hasattr(module, name):
    known = [each for each in vars(module) if not each.startswith("_")]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"{option}={shown(path)}: {module.__name__} defines no {name!r}{hint}")
  return getattr(module, name)


def _is_dotted(name: str) -> bool:
  return all(part.isidentifier() for part in name.split("."))
