"""The flags that name a config, for the scripts that take one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.learner import loop
from jaxrl_agents.runs import setup

DEFAULT = "configs/search_cpu.py"
_HELP = {"--help", "-help", "-h", "-?", "--helpfull", "--helpshort"}


def define() -> Callable[[], RunConfig]:
  """Defines --config and --set; returns what loads the one with the others applied, once parsed.

  --help then lists the options of the config, with their types, ranges and values.
  """
  path = flags.DEFINE_string("config", DEFAULT, "a file with get_config()")
  overrides = flags.DEFINE_multi_string(
    "set", [], "section.option=value, of the options above; may be given again"
  )
  for flag in (path, overrides):  # shown by --help beside the script's own
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[flag.name])
  if _HELP.intersection(sys.argv[1:]):
    main = sys.modules["__main__"]  # whose docstring absl shows first
    main.__doc__ = f"{main.__doc__ or ''}\n{options_text(sys.argv[1:])}"
  return lambda: load(path.value, overrides.value)


def options_text(arguments: Sequence[str]) -> str:
  """The options of the config that the arguments name, one a line; or why it cannot be loaded."""
  named = flags.FlagValues()
  path = flags.DEFINE_string("config", DEFAULT, "", flag_values=named)
  overrides = flags.DEFINE_multi_string("set", [], "", flag_values=named)
  try:
    named(["", *arguments], known_only=True)
    config = load(path.value, overrides.value)
  except (flags.Error, ValueError) as error:
    return f"The options for --set cannot be listed: {error}".replace("%", "%%")
  listed = config_lib.options_text(config)
  return f"Options of {path.value} for --set, [with their values]:\n\n{listed}".replace("%", "%%")


def load(path: str, overrides: Sequence[str]) -> RunConfig:
  """`config.load`, with the loss and the advantages of `learner` checked, too.

  Raises:
    ValueError: the config is not valid; the text says what to change.
  """
  return checked(config_lib.load(path, overrides))


def checked(config: RunConfig) -> RunConfig:
  """The config, if its `learner.loss` exists and takes its options, and its `learner.advantage`
  makes advantages; else ValueError.
  """
  loop.advantage_options(config.learner, setup.policy_loss(config))
  return config
