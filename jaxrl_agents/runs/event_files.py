"""Metrics as event files of TensorBoard, beside the JSON lines (extra `tensorboard`).

W/tensorboard/rl, sft, held_out        a folder for each phase: a scalar of several has one chart
tensorboard --logdir=W/tensorboard     shows them; the library that writes them is tensorboardX
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

FOLDER = "tensorboard"
_FLUSH_S = 10


class EventFiles:
  """Writes scalars to event files. Use as a context manager.

  Args:
    workdir: of the run.

  Raises:
    ValueError: the library is not installed.
  """

  def __init__(self, workdir: pathlib.Path):
    try:
      import tensorboardX
    except ImportError as error:
      raise ValueError(
        f"monitor.tensorboard=True needs tensorboardX ({error}): pip install "
        "'jaxrl_agents[tensorboard]', or set monitor.tensorboard=False"
      ) from None
    self._library, self._folder = tensorboardX, workdir / FOLDER
    self._writers: dict[str, Any] = {}

  def __enter__(self) -> EventFiles:
    return self

  def __exit__(self, *_: object) -> None:
    for writer in self._writers.values():
      writer.close()

  def write(self, phase: str, step: int, numbers: Mapping[str, Any], when: float) -> None:
    """Writes the finite numbers of a step.

    The first one of a phase also tells TensorBoard to leave out this step and later ones of earlier
    files: a resumed run writes them again.
    """
    if phase not in self._writers:
      self._writers[phase] = self._library.SummaryWriter(
        logdir=str(self._folder / phase),
        purge_step=step,
        flush_secs=_FLUSH_S,
        filename_suffix=f".{time.time_ns()}",  # the library's names have whole seconds
      )
    for name, value in numbers.items():
      if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        self._writers[phase].add_scalar(name, value, step, walltime=when)
    self._writers[phase].flush()


@contextlib.contextmanager
def opened(wanted: bool, workdir: pathlib.Path) -> Iterator[list[EventFiles]]:
  """[the event files of a run] while the context lasts; [] if they are not wanted.

  Raises:
    ValueError: see EventFiles.
  """
  if not wanted:
    yield []
    return
  with EventFiles(workdir) as files:
    yield [files]
