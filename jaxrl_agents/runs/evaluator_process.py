"""The evaluator as a process beside the learner."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

import jax

from jaxrl_agents.config import RunConfig
from jaxrl_agents.runs import evaluator
from jaxrl_agents.runs.evaluator import Ended
from jaxrl_agents.runs.workdir import Workdir

_TERM_S = 10.0


class LocalEvaluator:
  """A process of this machine, which computes on the CPU; see `evaluator_service.Place`.

  Invariant: at most one process lives.

  Args:
    config: of the run.
    workdir: of the run.
  """

  def __init__(self, config: RunConfig, workdir: Workdir):
    self._arguments = config, str(workdir.path)
    self._spawn = multiprocessing.get_context("spawn")

  def start(self) -> None:
    """Starts a process."""
    # A pipe for each process, and no Event, whose lock one that is killed may take with it.
    over, self._over = self._spawn.Pipe(duplex=False)
    arguments = (*self._arguments, over)
    self._process: Any = self._spawn.Process(target=_serve, args=arguments, name="evaluator")
    self._process.start()
    over.close()

  def ended(self, wait_s: float) -> Ended | None:
    """How the process ended, if it has within `wait_s`."""
    self._process.join(wait_s)
    status = self._process.exitcode
    return None if status is None else Ended(f"with status {status}", well=status == 0)

  def tell_over(self) -> None:
    """Tells it that no more versions will be published."""
    with contextlib.suppress(OSError):  # it is dead
      self._over.send_bytes(b"over")

  def end(self) -> None:
    """Ends it."""
    self._process.terminate()
    self._process.join(_TERM_S)
    if self._process.is_alive():
      self._process.kill()
      self._process.join(_TERM_S)


def _serve(config: RunConfig, folder: str, over: Connection) -> None:
  """The body of the process. Once `over` has something to read, no more versions are published."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the run, which ends this process
  threading.Thread(target=_end_with_parent, daemon=True).start()
  jax.config.update("jax_platforms", "cpu")  # the accelerators are the learner's
  evaluator.serve(config, folder, over.poll)


def _end_with_parent() -> None:
  parent = multiprocessing.parent_process()
  assert parent is not None
  while parent.is_alive():
    parent.join(10.0)
  os._exit(1)  # killed: the claim of this process counts no more
