"""The evaluator as a process beside the learner, with few threads and a low priority."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from typing import Any

import jax

from jaxrl_agents import service_log
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import MeshConfig, RunConfig
from jaxrl_agents.learner.preemption import Preempted
from jaxrl_agents.runs import evaluator, setup
from jaxrl_agents.runs.workdir import Workdir

_MAX_STARTS = 4
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
    self._spawn = multiprocessing.get_context("spawn")
    self._over = self._spawn.Event()
    self._starts = 0
    self._start()

  def look(self) -> None:
    """Starts a process that died again, a few times; returns at once."""
    code = self._process.exitcode
    if code is None or self._starts > _MAX_STARTS:
      return
    again = self._starts < _MAX_STARTS
    print(
      f"the evaluator ended with status {code}; "
      + ("it is started again" if again else "it is not started again, and training goes on"),
      file=sys.stderr,
      flush=True,
    )
    if again:
      self._start()
    else:
      self._starts += 1

  def finish(self, deadline_s: float) -> None:
    """Lets it evaluate what is newest."""
    self._over.set()
    self._process.join(deadline_s)
    if self._process.is_alive():
      print(
        f"the evaluator did not end within {deadline_s:g} s; the last version has no score",
        file=sys.stderr,
        flush=True,
      )

  def end(self) -> None:
    """Ends it."""
    self._process.terminate()
    self._process.join(_TERM_S)
    if self._process.is_alive():
      self._process.kill()
      self._process.join(_TERM_S)

  def _start(self) -> None:
    self._starts += 1
    arguments = (self._config, str(self._workdir.path), self._over)
    self._process: Any = self._spawn.Process(target=_serve, args=arguments, name="evaluator")
    self._process.start()


def _serve(config: RunConfig, folder: str, over: Event) -> None:
  """The body of the process."""
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
    evaluator.follow(config, corpus, workdir, tell, over.is_set)


def _end_with_parent() -> None:
  parent = multiprocessing.parent_process()
  assert parent is not None
  while parent.is_alive():
    parent.join(10.0)
  os._exit(1)  # killed: the claim of this process counts no more
