"""Opens the schedule of an asynchronous run, and checks that a record fits the run that is to
repeat it.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator

from jaxrl_agents import config as config_lib
from jaxrl_agents import record_log
from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet.schedule import Recorded, Schedule

_FREE = ("name", "fleet.replay", "workers.processes", "workers.stall_s")
_FREE_SECTIONS = ("monitor", "evaluator", "eval")
"""Options on which what is trained does not depend."""


@contextlib.contextmanager
def opened(
  path: pathlib.Path, config: RunConfig, *, step: int, start: str
) -> Iterator[Schedule | None]:
  """The schedule of a run; None if it goes on from a checkpoint, which the record then says, or if
  nothing can replay it: with nodes of a cluster no record is kept.

  Args:
    path: of its record.
    config: of the run.
    step: its first one.
    start: digest of the warm start.

  Raises:
    ValueError: a replay goes on from a checkpoint, or its record does not fit.
    record_log.DamagedLog: the record is damaged.
  """
  if config.fleet.backend != "local":
    path.unlink(missing_ok=True)
    yield None
    return
  replay = config.fleet.replay
  if step:
    if replay and step < config.learner.steps:
      raise ValueError(
        f"fleet.replay={replay} cannot go on from the checkpoint of step {step}, since rollouts in "
        "play begin again there; replay into an empty --workdir, or leave fleet.replay empty"
      )
    with record_log.Log(path) as log:
      log.append({"is": "resumed", "step": step})
    yield None
    return
  recorded = None
  if replay:
    other = pathlib.Path(replay).expanduser() / path.name
    if other.resolve() == path.resolve():
      raise ValueError(f"fleet.replay={replay} is the folder of this run; choose another --workdir")
    recorded = Recorded(other)
    check_fits(recorded, config, start)
  path.unlink(missing_ok=True)  # of a process that ended before its first checkpoint
  with record_log.Log(path) as log:
    options = json.loads(json.dumps(config_lib.options(config), default=str))
    log.append({"is": "began", "options": options, "start": start})
    yield Schedule(log, recorded)


def check_fits(recorded: Recorded, config: RunConfig, start: str) -> None:
  """Raises ValueError for a run of other options, or of another warm start, than the record's."""
  free = lambda name: name in _FREE or name.partition(".")[0] in _FREE_SECTIONS
  differ = [
    f"{name}={before!r} -> {now!r}"
    for name, (before, now) in config_lib.changed(recorded.options, config).items()
    if not free(name)
  ]
  if differ:
    raise ValueError(
      f"{recorded.path} is of a run with other options: {', '.join(differ)}; set them as they "
      "were, or leave fleet.replay empty"
    )
  if start != recorded.start:
    raise ValueError(
      f"{recorded.path} is of a run that began with another warm start; copy its warm_start/ into "
      "this --workdir, or leave fleet.replay empty"
    )
