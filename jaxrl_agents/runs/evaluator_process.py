"""The evaluator as a process beside the learner, with few threads and a low priority."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import jax

from jaxrl_agents import service_log
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import MeshConfig, RunConfig
from jaxrl_agents.fleet.version_scores import VersionScores
from jaxrl_agents.learner.preemption import Preempted
from jaxrl_agents.runs import evaluator, setup
from jaxrl_agents.runs.workdir import Workdir

_MAX_DEATHS = 4
"""Deaths in a row, without a new score between them, after which it is not started again."""

_TERM_S = 10.0


@contextlib.contextmanager
def serving(config: RunConfig, corpus: Tasks, workdir: Workdir) -> Iterator[Callable[[], None]]:
  """Starts an evaluator if `evaluator.every` asks for one. Yields what starts it again if it died,
  to be called now and then.

  At the end it may evaluate the newest version, for at most `evaluator.deadline_s`; after an
  exception it is ended at once.

  Raises:
    ValueError: there are no tasks to evaluate with.
  """
  if not config.evaluator.every:
    yield lambda: None
    return
  corpus.sample(evaluator.SPLIT, 1, config.seed)  # raises here, not in the process
  process = _EvaluatorProcess(config, workdir)
  try:
    yield process.look
    process.finish(config.evaluator.deadline_s)
  finally:
    process.end()


class _EvaluatorProcess:
  """Invariant: at most one process lives."""

  def __init__(self, config: RunConfig, workdir: Workdir):
    self._config, self._workdir = config, workdir
    self._scores = VersionScores(workdir.evaluations, 0.0)
    self._spawn = multiprocessing.get_context("spawn")
    self._newest = self._scores.newest()
    self._deaths, self._given_up = 0, False
    self._start()

  def look(self) -> None:
    """Starts a process that died again, unless it dies again and again; returns at once."""
    if self._process.exitcode is None or self._given_up:
      return
    newest = self._scores.newest()
    self._deaths = self._deaths + 1 if newest == self._newest else 1
    self._newest, self._given_up = newest, self._deaths >= _MAX_DEATHS
    print(
      f"the evaluator ended with status {self._process.exitcode}; "
      + (
        f"it has died {self._deaths} times without a new score, and is not started again; training "
        "goes on, and scripts/evaluate.py --follow can take its place"
        if self._given_up
        else "it is started again"
      ),
      file=sys.stderr,
      flush=True,
    )
    if not self._given_up:
      self._start()

  def finish(self, deadline_s: float) -> None:
    """Lets it evaluate what is newest, also if it dies meanwhile."""
    deadline = time.monotonic() + deadline_s
    self.look()
    while not self._given_up:
      self._tell_over()
      self._process.join(max(deadline - time.monotonic(), 0.0))
      if self._process.exitcode == 0:
        return
      if self._process.exitcode is None:
        print(
          f"the evaluator did not end within {deadline_s:g} s; the last version may have no score",
          file=sys.stderr,
          flush=True,
        )
        return
      self.look()

  def end(self) -> None:
    """Ends it."""
    self._process.terminate()
    self._process.join(_TERM_S)
    if self._process.is_alive():
      self._process.kill()
      self._process.join(_TERM_S)

  def _start(self) -> None:
    # A pipe for each process, and no Event, whose lock one that is killed may take with it.
    over, self._over = self._spawn.Pipe(duplex=False)
    arguments = (self._config, str(self._workdir.path), over)
    self._process: Any = self._spawn.Process(target=_serve, args=arguments, name="evaluator")
    self._process.start()
    over.close()

  def _tell_over(self) -> None:
    """Tells it that no more versions will be published."""
    with contextlib.suppress(OSError):  # it is dead
      self._over.send_bytes(b"over")


def _serve(config: RunConfig, folder: str, over: Connection) -> None:
  """The body of the process. Once `over` has something to read, no more versions are published."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the run, which ends this process
  threading.Thread(target=_end_with_parent, daemon=True).start()
  own = config.evaluator
  os.nice(own.nice)
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-own.threads :])
  jax.config.update("jax_platforms", "cpu")  # the accelerators are the learner's
  setup.compilation_cache(config)
  config = dataclasses.replace(
    config,
    mesh=MeshConfig(),
    workers=dataclasses.replace(
      config.workers, processes=min(config.workers.processes, own.threads)
    ),
  )
  workdir = Workdir(folder)
  corpus = setup.open_tasks(config, report=lambda *_: None)
  with contextlib.suppress(Preempted), service_log.opened(workdir.services, "evaluator") as tell:
    evaluator.follow(config, corpus, workdir, tell, over.poll)


def _end_with_parent() -> None:
  parent = multiprocessing.parent_process()
  assert parent is not None
  while parent.is_alive():
    parent.join(10.0)
  os._exit(1)  # killed: the claim of this process counts no more
