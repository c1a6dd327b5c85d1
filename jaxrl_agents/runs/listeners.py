"""Passes each line of metrics to event files of TensorBoard and to a tracker of the user (section
`monitor`).
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from jaxrl_agents.config import RunConfig, import_path
from jaxrl_agents.runs import event_files
from jaxrl_agents.runs.workdir import Listener


@contextlib.contextmanager
def opened(config: RunConfig, workdir: pathlib.Path) -> Iterator[list[Listener]]:
  """The listeners of a run while the context lasts; they are closed at its end.

  Args:
    config: of the run.
    workdir: folder of the run.

  Raises:
    ValueError: see EventFiles; or `monitor.listener` names no function that returns a context
      manager.
  """
  name = config.monitor.listener
  with contextlib.ExitStack() as stack:
    files = stack.enter_context(event_files.opened(config.monitor.tensorboard, workdir))
    found: list[Listener] = [each.write for each in files]
    if name:
      function = import_path.load(name, "monitor.listener")
      if not callable(function):
        raise ValueError(
          f"monitor.listener={name} is a {type(function).__name__}; name a function of "
          "(config, workdir) (docs/getting-started.md)"
        )
      made = function(config, workdir)
      if not isinstance(made, contextlib.AbstractContextManager):
        raise ValueError(
          f"monitor.listener={name} returned a {type(made).__name__}; return a context manager "
          "whose value is called with (phase, step, numbers, time) (docs/getting-started.md)"
        )
      found.append(stack.enter_context(made))
    yield found
