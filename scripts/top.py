"""Shows a run in the terminal: what each service does, the queue, and the newest numbers.

    python scripts/top.py --workdir=W

Reads the files of the run alone, so any number may look at it, also from other machines that see
the folder, while it goes on or later. Ctrl-C ends it.
"""

import contextlib
import time

import rich.console
import rich.live
from absl import flags

from jaxrl_agents.runs import entry_point
from jaxrl_agents.viewer import live, top

_WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a run", required=True)
_ONCE = flags.DEFINE_bool("once", False, "print one picture and end")
_EVERY_S = flags.DEFINE_float("every_s", 2.0, "seconds between two pictures", lower_bound=0.1)


def main() -> None:
  """Draws one picture after the other."""
  console = rich.console.Console()
  if _ONCE.value:
    console.print(top.frame(live.read(_WORKDIR.value)))
    return
  with (
    contextlib.suppress(KeyboardInterrupt),
    rich.live.Live(console=console, screen=console.is_terminal, auto_refresh=False) as screen,
  ):
    while True:
      screen.update(top.frame(live.read(_WORKDIR.value)), refresh=True)
      time.sleep(_EVERY_S.value)


if __name__ == "__main__":
  entry_point.run(main)
