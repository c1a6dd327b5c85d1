"""What all training scripts share: their flags, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from absl import app, flags, logging

from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig

STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""

_CONFIG = flags.DEFINE_string("config", "configs/search_cpu.py", "a file with get_config()")
_SET = flags.DEFINE_multi_string("set", [], "section.option=value; may be given again")


def load_config() -> RunConfig:
  """The config of --config with every --set applied."""
  return config_lib.load(_CONFIG.value, _SET.value)


def run(main: Callable[[], None]) -> None:
  """Parses flags and calls `main`. Bad input is told in a line; Ctrl-C leaves a resumable run."""

  for name in ("config", "set"):  # shown by --help beside the script's own
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])

  def call(argv: list[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f"unexpected {argv[1]!r}; every argument is a --flag=value")
    logging.set_verbosity(logging.WARNING)  # orbax tells of every save otherwise
    try:
      main()
    except ValueError as error:
      if os.environ.get("JAXRL_TRACEBACK"):
        raise
      print(f"error: {error}\n(JAXRL_TRACEBACK=1 shows where)", file=sys.stderr)
      sys.exit(2)
    except KeyboardInterrupt:
      print("\nstopped; the same command goes on from the last checkpoint", file=sys.stderr)
      sys.exit(STOPPED)

  app.run(call)
