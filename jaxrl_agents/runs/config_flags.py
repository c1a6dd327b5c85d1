"""The flags that name a config, for the scripts that take one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.runs import setup


def define() -> Callable[[], RunConfig]:
  """Defines --config and --set; returns what loads the one with the others applied, once parsed."""
  path = flags.DEFINE_string("config", "configs/search_cpu.py", "a file with get_config()")
  overrides = flags.DEFINE_multi_string("set", [], "section.option=value; may be given again")
  for flag in (path, overrides):  # shown by --help beside the script's own
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[flag.name])
  return lambda: load(path.value, overrides.value)


def load(path: str, overrides: Sequence[str]) -> RunConfig:
  """`config.load`, with the loss of `learner` checked, too.

  Raises:
    ValueError: the config is not valid; the text says what to change.
  """
  config = config_lib.load(path, overrides)
  setup.policy_loss(config)
  return config
