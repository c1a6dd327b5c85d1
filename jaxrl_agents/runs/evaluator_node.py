"""The evaluator as an actor on a node of the Ray cluster that offers the resource "evaluator".

It follows the folder of the run on the shared disk, where it leaves its scores and states. Nothing
but its end comes back over Ray.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet import cluster
from jaxrl_agents.runs import evaluator
from jaxrl_agents.runs.evaluator import Ended
from jaxrl_agents.runs.workdir import Workdir

RESOURCE = "evaluator"
"""What the node was started with."""

_TELL = "tell"
"""The concurrency group of the actor in which it is told that the run is over."""
_POLL_S = 1.0
"""Seconds between two looks for a node."""
_NODE_S = 60.0
"""Longest wait for a node at the end of the run."""
_START_S = 600.0
"""Longest start of an actor."""
_GET_S = 60.0


class EvaluatorNode:
  """The actor.

  Args:
    code: `cluster.code()` of the run.
    config: of the run.
    folder: of the run.
  """

  def __init__(self, code: str, config: RunConfig, folder: str):
    self._code, self._config, self._folder = code, config, folder
    self._over = threading.Event()

  def follow(self) -> None:
    """Evaluates until the run is over and the newest version has its score.

    Raises:
      ClusterError: the node has other code than the run.
    """
    cluster.check_code(self._code)
    evaluator.serve(self._config, self._folder, self._over.is_set)

  def tell_over(self) -> None:
    """No more versions will be published; called in a thread of its own."""
    self._over.set()


class RemoteEvaluator:
  """Starts the actor on a node that has come; see `evaluator_service.Place`.

  Invariant: at most one actor lives, and none after `ended` has said how.

  Args:
    ray: the package.
    config: of the run.
    workdir: of the run.
  """

  def __init__(self, ray: Any, config: RunConfig, workdir: Workdir):
    self._ray = ray
    self._arguments = cluster.code(), config, str(workdir.path.absolute())
    self._actor: Any = None
    self._node, self._started, self._end = "", None, None
    self._since = 0.0  # of the start of the actor, as time.monotonic
    self._over, self._missed = False, False

  def start(self) -> None:
    """Starts the actor; `ended` does so once there is a node, if there is none now."""
    node = next(iter(cluster.nodes(self._ray, **{RESOURCE: 1})), None)
    if node is None:
      if not self._missed:
        print(
          "no node for the evaluator: start one with ray start "
          f"--resources='{{\"{RESOURCE}\": 1}}'; training goes on, and has no scores until then",
          file=sys.stderr,
          flush=True,
        )
      self._missed = True
      return
    made = cluster.whole_node(self._ray, node, RESOURCE, concurrency_groups={_TELL: 1})
    self._actor = made(EvaluatorNode).remote(*self._arguments)
    self._node, self._missed, self._since = node.name, False, time.monotonic()
    self._started = self._actor.__ray_ready__.remote()
    self._end = self._actor.follow.remote()
    if self._over:
      self.tell_over()

  def ended(self, wait_s: float) -> Ended | None:
    """How the actor ended, if it has within `wait_s`; without a node within _NODE_S at most."""
    began = time.monotonic()
    while self._actor is None:
      self.start()
      if self._actor is None:
        if time.monotonic() - began >= min(wait_s, _NODE_S):
          return None
        time.sleep(_POLL_S)
    left_s = max(wait_s - (time.monotonic() - began), 0.0)
    come, _ = self._ray.wait([self._end], timeout=left_s)
    how, well = self._how() if come else self._late()
    if not how:
      return None
    self.end()
    return Ended(f"on node {self._node}: {how}", well)

  def tell_over(self) -> None:
    """Tells the actor, and any that is started later, that no more versions will be published."""
    self._over = True
    if self._actor is not None:
      self._actor.tell_over.options(concurrency_group=_TELL).remote()

  def end(self) -> None:
    """Kills the actor."""
    if self._actor is not None:
      self._ray.kill(self._actor)
    self._actor = None

  def _how(self) -> tuple[str, bool]:
    """How the actor ended, and whether well."""
    try:
      self._ray.get(self._end, timeout=_GET_S)
    except self._ray.exceptions.RayTaskError as error:
      return f"{type(error.cause).__name__}: {error.cause}", False
    except self._ray.exceptions.RayError as error:
      return str(error).partition("\n")[0], False
    return "there was nothing left to evaluate", True

  def _late(self) -> tuple[str, bool]:
    """The report that an actor which lives has not started in time; "" if it has, or may still."""
    come, _ = self._ray.wait([self._started], timeout=0)
    if come or time.monotonic() - self._since < _START_S:
      return "", False
    return f"it did not start within {_START_S:g} s; has something else its resource?", False
