"""A progress bar that says what is being learnt and how long is left."""

from __future__ import annotations

import time

import rich.console
import rich.progress


class Progress:
  """One bar. On a terminal it is redrawn in place; in a log file a line appears now and then."""

  LOG_EVERY_S = 20.0

  def __init__(self, label: str, total: int, done: int = 0):
    console = rich.console.Console()
    self._label, self._total, self._done = label, total, done
    self._live = console.is_terminal
    self._began, self._began_at = time.monotonic(), done
    self._logged = self._began
    self._bar = rich.progress.Progress(
      rich.progress.TextColumn("{task.description:>16}"),
      rich.progress.BarColumn(bar_width=24),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TimeRemainingColumn(),
      rich.progress.TextColumn("{task.fields[numbers]}"),
      console=console,
      disable=not self._live,
    )
    self._task = self._bar.add_task(label, total=total, completed=done, numbers="")

  def __enter__(self) -> Progress:
    self._bar.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._bar.stop()

  def advance(self, **numbers: float) -> None:
    """One unit done; `numbers` are shown beside the bar."""
    self._done += 1
    text = "  ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in numbers.items())
    self._bar.update(self._task, completed=self._done, numbers=text)
    now = time.monotonic()
    last = self._done == self._total
    if not self._live and (last or now - self._logged > self.LOG_EVERY_S):
      self._logged = now
      per_unit = (now - self._began) / (self._done - self._began_at)
      left = per_unit * (self._total - self._done)
      print(f"{self._label} {self._done}/{self._total}  {left:.0f} s left  {text}", flush=True)
