"""The sessions that a gateway holds, found by key or by id."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from jaxrl_agents.gateway.requests import Refusal
from jaxrl_agents.gateway.sessions import Session

KEPT_S = 60.0
"""Seconds for which a session is kept after the time for its rewards."""

MOST = 100_000


class Registry:
  """Sessions by key and id. Invariant: one that was `add`ed is found until its time is over.

  Args:
    clock: seconds.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._by_id: dict[str, Session] = {}
    self._until: list[tuple[float, str]] = []  # a heap, with keys
    self._by_key: dict[str, Session] = {}

  def add(self, session: Session) -> Session:
    """Adds a session.

    Raises:
      Refusal: 409, its id is taken; 503, there are MOST sessions, none of which ended long ago.
    """
    self._forget()
    if len(self._by_id) >= MOST:
      for each in self.sessions():
        if each.over(each.limits.reward_s):
          self.remove(each)
    if session.id in self._by_id:
      raise Refusal(409, f"there is a session {session.id} already", retry=False)
    if len(self._by_id) >= MOST:
      raise Refusal(
        503,
        f"{MOST} sessions are held; finish some, and open one when the time for "
        "their rewards is over",
        retry=True,
      )
    until = self._clock() + session.limits.ttl_s + session.limits.reward_s + KEPT_S
    heapq.heappush(self._until, (until, session.key))
    self._by_id[session.id] = session
    self._by_key[session.key] = session
    return session

  def remove(self, session: Session) -> None:
    """Forgets a session."""
    self._by_id.pop(session.id, None)
    self._by_key.pop(session.key, None)

  def sessions(self) -> list[Session]:
    """All of them."""
    return list(self._by_id.values())

  def of_key(self, key: str) -> Session | None:
    """The session that a key opens."""
    return self._by_key.get(key)

  def of_id(self, id: str) -> Session:
    """The session of an id.

    Raises:
      Refusal: 404, there is none.
    """
    if id not in self._by_id:
      raise Refusal(404, f"there is no session {id!r}, or it is over", code="session_not_found")
    return self._by_id[id]

  def has(self, id: str) -> bool:
    """Whether there is a session of this id."""
    self._forget()
    return id in self._by_id

  def _forget(self) -> None:
    now = self._clock()
    while self._until and self._until[0][0] < now:
      _, key = heapq.heappop(self._until)
      if session := self._by_key.get(key):
        self.remove(session)
