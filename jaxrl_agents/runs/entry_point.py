"""How every script begins and ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import psutil
from absl import app, flags, logging

from jaxrl_agents import stopwatch
from jaxrl_agents.learner.preemption import Preempted

FAILED = 1
BAD_INPUT = 2
STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""
PREEMPTED = 143
"""Exit status after SIGTERM, likewise."""


MALLOC_ARENAS = 2
_M_ARENA_MAX = -8  # of malloc.h


def limit_malloc_arenas() -> None:
  """Lets the threads of this process share `MALLOC_ARENAS` heaps, where the C library is glibc.

  By default glibc opens up to eight heaps a core, and memory that XLA's threads free in one of them
  is of no use to the others. In configs/search_cpu.py a process came to 1,754 MiB in 16 steps and
  still grew; with two heaps it stays between 1,500 and 1,560 MiB (docs/performance.md).
  """
  with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MALLOC_ARENAS)


def run(main: Callable[[], None], leave: Callable[[int], NoReturn] = sys.exit) -> None:
  """Parses flags and calls `main`. Bad input is reported in a line, with status `BAD_INPUT`; Ctrl-C
  leaves a resumable run.
  """

  def call(_: list[str]) -> None:
    limit_malloc_arenas()
    stopwatch.add("imports", time.time() - psutil.Process().create_time())
    logging.set_verbosity(logging.WARNING)  # orbax tells of every save otherwise
    try:
      main()
    except (ValueError, OSError) as error:
      if os.environ.get("JAXRL_TRACEBACK"):
        raise
      print(f"error: {error}\n(JAXRL_TRACEBACK=1 shows where)", file=sys.stderr)
      leave(BAD_INPUT)
    except KeyboardInterrupt as stop:
      print("\nstopped; a training run goes on with the same command", file=sys.stderr)
      leave(PREEMPTED if isinstance(stop, Preempted) else STOPPED)
    except Exception:
      traceback.print_exc()
      leave(FAILED)

  app.run(call, flags_parser=_parsed)


def _parsed(argv: list[str]) -> list[str]:
  """Parses the flags; ends with `BAD_INPUT` where one is wrong, or where an argument is no flag."""
  try:
    others = flags.FLAGS(list(map(_with_home, argv)))[1:]
    wrong = f"unexpected {others[0]!r}; every argument is a --flag=value" if others else ""
    option = others[0] if others else ""
  except flags.UnrecognizedFlagError as error:
    wrong, option = str(error), f"{error.flagname}=VALUE"
  except flags.Error as error:
    wrong, option = str(error), ""
  if not wrong:
    return argv[:1]
  if "." in option.partition("=")[0] and "set" in flags.FLAGS:
    wrong += f"; for an option of the config write --set {option}"
  print(f"error: {wrong}\n(--help lists the flags)", file=sys.stderr)
  sys.exit(BAD_INPUT)


def _with_home(argument: str) -> str:
  """An argument `--flag=~/FOLDER` with the folder of the user, which shells leave as it is."""
  flag, equals, value = argument.partition("=")
  is_path = flag.startswith("-") and value.startswith("~")
  return f"{flag}{equals}{os.path.expanduser(value)}" if is_path else argument
