"""The evaluator that a run starts: beside the learner or on a node, and again after a failure."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from jaxrl_agents import service_log
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet import cluster
from jaxrl_agents.fleet.version_scores import VersionScores
from jaxrl_agents.runs import evaluator, evaluator_node, evaluator_process
from jaxrl_agents.runs.evaluator import Ended
from jaxrl_agents.runs.workdir import Workdir

_MAX_DEATHS = 4
"""Deaths in a row, without a new score between them, after which it is not started again."""


class Place(Protocol):
  """Where the evaluator runs. At most one lives there at a time."""

  def start(self) -> None:
    """Starts one, now or as soon as it can; returns at once."""

  def ended(self, wait_s: float) -> Ended | None:
    """How it ended; None if it has not, or not been started, after `wait_s`."""

  def tell_over(self) -> None:
    """Tells it that no more versions will be published."""

  def end(self) -> None:
    """Ends it."""


@contextlib.contextmanager
def serving(config: RunConfig, corpus: Tasks, workdir: Workdir) -> Iterator[Callable[[], None]]:
  """Starts an evaluator if `evaluator.every` asks for one. Yields what starts it again if it died
  or hung in an evaluation, to be called now and then.

  At the end it may evaluate the newest version, for at most `evaluator.deadline_s`; after an
  exception it is ended at once.

  Raises:
    ValueError: there are no tasks to evaluate with, the disk of the run has no hard links, or the
      Ray cluster cannot be joined.
  """
  if not config.evaluator.every:
    yield lambda: None
    return
  corpus.sample(evaluator.SPLIT, 1, config.seed)  # raises here, not in the process
  workdir.check_hard_links()
  with contextlib.ExitStack() as stack:
    place: Place
    if config.evaluator.on_node:
      ray = stack.enter_context(cluster.joined(config.fleet.address))
      place = evaluator_node.RemoteEvaluator(ray, config, workdir)
    else:
      place = evaluator_process.LocalEvaluator(config, workdir)
    scores = VersionScores(workdir.evaluations, 0.0)
    supervised = Supervised(place, scores, workdir.services, evaluator.longest_s(config))
    try:
      yield supervised.poll
      supervised.finish(config.evaluator.deadline_s)
    finally:
      place.end()


class Supervised:
  """Starts an evaluator, and again when it has died or hangs.

  Args:
    place: where it runs.
    scores: of the run.
    services: folder of the states of the run's services.
    longest_s: an evaluation that takes longer hangs.
  """

  def __init__(self, place: Place, scores: VersionScores, services: pathlib.Path, longest_s: float):
    self._place, self._scores = place, scores
    self._services, self._longest_s = services, longest_s
    self._newest = scores.newest()
    self._deaths, self._given_up = 0, False
    self._start()

  def _start(self) -> None:
    self._started = time.time()
    self._place.start()

  def poll(self) -> None:
    """Starts one that died or hangs again, unless it does so again and again; returns soon."""
    ended = None if self._given_up else self._place.ended(0.0) or self._killed()
    if ended is None:
      return
    newest = self._scores.newest()
    if ended.well:
      self._deaths = 0
    else:
      self._deaths = self._deaths + 1 if newest == self._newest else 1
    self._newest, self._given_up = newest, self._deaths >= _MAX_DEATHS
    print(
      f"the evaluator ended {ended.how}; "
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

  def _killed(self) -> Ended | None:
    """Kills one that hangs in an evaluation. What an earlier one did is older than its start."""
    state = service_log.newest(self._services, evaluator.NAME)
    if state is None or state.does != evaluator.EVALUATES or state.time < self._started:
      return None
    took_s = time.time() - state.time
    if took_s < self._longest_s:
      return None
    self._place.end()
    return Ended(
      f"by force: it had evaluated version {state.facts.get('version')} for {took_s:.0f} s"
    )

  def finish(self, deadline_s: float) -> None:
    """Lets it evaluate what is newest, also if it dies meanwhile."""
    began = time.monotonic()
    self.poll()
    while not self._given_up:
      self._place.tell_over()
      waited_s = time.monotonic() - began
      ended = self._place.ended(max(deadline_s - waited_s, 0.0))
      if ended is None:
        print(
          f"the evaluator did not end within {time.monotonic() - began:.0f} s; the last version "
          "may have no score",
          file=sys.stderr,
          flush=True,
        )
        return
      if ended.well:
        return
      self.poll()
