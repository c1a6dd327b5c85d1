"""One candidate among users: compares it with the stable policy, widens it, or rolls it back."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence

from jaxrl_agents.realtime.arms import CANARY
from jaxrl_agents.realtime.calls import LoggedCall
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import Join, Joined
from jaxrl_agents.realtime.sequential_test import Comparison


@dataclasses.dataclass(frozen=True)
class Rules:
  """When a candidate goes on.

  Attributes:
    sessions: of the canary whose rewards must be known before it leaves 5 %, and 50 %. With fewer
      users than sessions[0] / most_per_user / 5 % (2,000 by default) a trial may never end.
    alpha: see `Comparison`.
    most_per_user: sessions of one user in one arm that are compared, so that nobody decides alone.
  """

  sessions: tuple[int, int] = (300, 500)
  alpha: float = 0.05
  most_per_user: int = 3


class Trial:
  """The trial of the candidate of a deployment. All that it knows is in log and deployment, so it
  can be made again after a crash.

  Invariant: each session is compared once, when the windows of all its calls are over; its value is
  the mean reward of its calls. The trial goes on after the last stage, since rewards come late.

  Args:
    deployer: with a candidate beyond the shadow stage, or about to leave it.
    join: of the log.
    rules: when it goes on.

  Attributes:
    compared: the rewards of both arms.
    rolled_back: whether the candidate was withdrawn.
  """

  def __init__(self, deployer: Deployer, join: Join, rules: Rules = Rules()):
    now = deployer.now
    if now.candidate is None or now.previous is None:
      raise ValueError("no candidate is being tried; propose a version first")
    self._deployer, self._join, self._rules = deployer, join, rules
    self._digests = {True: now.candidate.digest, False: now.previous.digest}
    self._taken: set[str] = set()
    self._per_user: collections.Counter[tuple[str, bool]] = collections.Counter()
    self._began_s = math.inf
    self.compared = Comparison(rules.alpha)
    self.rolled_back = False

  @property
  def exposed(self) -> set[str]:
    """The users (hashes) whom the candidate answered before it was stable."""
    return {call.user for call in self._answered()}

  def step(self, now_s: float) -> bool:
    """Compares what became known; then rolls back, goes to the next stage, or waits.

    Returns:
      Whether the deployment changed.
    """
    candidate = self._deployer.now.candidate
    if self.rolled_back or candidate is None or candidate.digest != self._digests[True]:
      return False  # another candidate is being tried meanwhile
    if self._began_s == math.inf:
      self._began_s = min((call.time_s for call in self._answered()), default=math.inf)
    for session, calls in self._join.sessions().items():
      if session not in self._taken and self._is_known(calls, now_s):
        self._taken.add(session)
        self._take(calls)
    if self.compared.worse:
      self._deployer.roll_back(self._join.newest)
      self.rolled_back = True
      return True
    stage, trial = self._deployer.now.stage, self._deployer.now.trial
    if trial and stage and self.compared.canary.n >= self._rules.sessions[stage - 1]:
      self._deployer.advance()
      return True
    return False

  def _is_known(self, calls: Sequence[Joined], now_s: float) -> bool:
    last = max(joined.call.time_s for joined in calls)
    return now_s > last + self._join.longest_window_s

  def _take(self, calls: Sequence[Joined]) -> None:
    first = calls[0].call
    canary = first.arm == CANARY
    seen = [joined for joined in calls if joined.delivered]
    if not seen or first.digest != self._digests[canary]:
      return
    if not canary and first.time_s < self._began_s:
      return  # what users thought before the trial is not compared with what they think now
    # By arm: who was counted with the stable one may come into the canary as that is widened.
    self._per_user[first.user, canary] += 1
    if self._per_user[first.user, canary] <= self._rules.most_per_user and not self.compared.worse:
      mean = sum(joined.reward(self._join.kinds) for joined in seen) / len(seen)
      self.compared.add(mean, canary=canary)

  def _answered(self) -> Iterator[LoggedCall]:
    """The calls that the canary answered."""
    calls = (joined.call for joined in self._join.calls.values())
    return (c for c in calls if c.arm == CANARY and c.digest == self._digests[True])
