"""Events of users, joined with the calls that they are about: each once, within its window.

The log is the truth, and `Join` is a function of it: read again after a crash it stands where it
stood. An event is acknowledged once it is in the log, so a sender repeats it until it is, with the
same `event_id`, which counts once.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.realtime import calls as calls_lib
from jaxrl_agents.realtime.calls import LoggedCall

EVENT, DELIVERED, BATCH, FIGURES = "event", "delivered", "batch", "figures"
"""Kinds of records: an event; calls whose replies left the server; a batch that is trained; what
replies of an accepted version were like."""


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of event.

  Attributes:
    window_s: seconds after a call during which an event of this kind belongs to its reward.
    silence: the value of a call about which no event of this kind came. Users who are not satisfied
      speak up more often, so it is chosen for each kind.
    weight: of the value in the reward.
    low, high: bounds of a value.
  """

  window_s: float
  silence: float = 0.0
  weight: float = 1.0
  low: float = 0.0
  high: float = 1.0


KINDS: Mapping[str, Kind] = {
  "persist": Kind(1_800.0, weight=1.0),
  "dissatisfied": Kind(1_800.0, weight=-1.0),
  "revert": Kind(1_800.0, weight=-0.5),
  "abort": Kind(300.0, weight=-0.3),
}
"""Signals of Composer 2's loop; windows and weights are ours, as they are not published
(https://cursor.com/blog/real-time-rl-for-composer)."""

INVALID_TOOL = -0.5
"""Added to the reward of a call with a tool call that could not be read."""


@dataclasses.dataclass(frozen=True)
class Event:
  """What a user did.

  Attributes:
    event_id: names it among the events of its user: nobody can use up the ids of others.
    session: that it is about.
    call: that it is about; "" for each call of the session whose window is open as it comes.
    user: keyed hash of who sent it.
    kind: of `Kind`s.
    value: within the bounds of its kind.
    time_s: when it came, by the clock of the server. What a client says of its own clock is in
      `client_time_s`, and decides nothing.
  """

  event_id: str
  session: str
  call: str
  user: str
  kind: str
  value: float
  time_s: float
  client_time_s: float = 0.0

  def record(self) -> dict[str, Any]:
    """The record of the event in the log."""
    return {"kind": EVENT, "event": dataclasses.asdict(self)}


@dataclasses.dataclass
class Joined:
  """A call, and the values that it got: the first of each kind.

  `delivered`: whether the reply was sent, or the user spoke of it: the silence of those who got no
  reply means nothing. `batch`: the number of the batch that trains it; -1 for none.
  """

  call: LoggedCall
  values: dict[str, float] = dataclasses.field(default_factory=dict)
  delivered: bool = False
  batch: int = -1

  def reward(self, kinds: Mapping[str, Kind]) -> float:
    """sum over kinds of weight * value, or weight * silence; and INVALID_TOOL."""
    found = sum(k.weight * self.values.get(name, k.silence) for name, k in kinds.items())
    return found + INVALID_TOOL * bool(self.call.errors)


class Join:
  """Calls and events of a log, joined.

  Invariant: an event changes the value of a call at most once, and one call has at most one value
  of each kind. A call is in at most one batch.

  Args:
    kinds: of events.

  Attributes:
    counts: what became of the events: "joined" (at least one call took its value), "late" (no
      window was open), "repeated" (the call had a value of this kind), "duplicate" (its id was
      there before).
    batches: {number: the calls that it trains}.
    versions: {number of a batch: the version of the weights that it leads to}.
    figures: what replies of accepted versions were like, for the guards of the gate, in order.
  """

  def __init__(self, kinds: Mapping[str, Kind] = KINDS):
    self.kinds = kinds
    self.calls: dict[str, Joined] = {}
    self.counts: collections.Counter[str] = collections.Counter()
    self.figures: list[dict[str, float]] = []
    self._sessions: dict[str, list[Joined]] = {}
    self._users: dict[str, str] = {}
    self._events: set[tuple[str, str]] = set()
    self.batches: dict[int, tuple[str, ...]] = {}
    self.versions: dict[int, int] = {}

  def has(self, event: Event) -> bool:
    """Whether an event of this id and user is in the log."""
    return (event.user, event.event_id) in self._events

  def sessions(self) -> Mapping[str, Sequence[Joined]]:
    """The calls of each session, in the order of the log."""
    return self._sessions

  @property
  def longest_window_s(self) -> float:
    """Seconds after which nothing changes the reward of a call."""
    return max(kind.window_s for kind in self.kinds.values())

  def user_of(self, session: str) -> str:
    """Whose session it is; "" if it has no call yet."""
    return self._users.get(session, "")

  @property
  def newest(self) -> int:
    """The highest version that a batch leads to, or was to lead to; 0 if there is none."""
    return max(self.versions.values(), default=0)

  def apply(self, record: Mapping[str, Any]) -> None:
    """Takes the next record of the log. Records of other kinds change nothing."""
    if record["kind"] == calls_lib.KIND:
      joined = Joined(calls_lib.from_record(record))
      self.calls[joined.call.id] = joined
      self._sessions.setdefault(joined.call.session, []).append(joined)
      self._users[joined.call.session] = joined.call.user
    elif record["kind"] == DELIVERED:
      for name in record["calls"]:
        self.calls[name].delivered = True
    elif record["kind"] == EVENT:
      self.counts[self._take(Event(**record["event"]))] += 1
    elif record["kind"] == BATCH:
      self.batches[record["number"]] = tuple(record["calls"])
      self.versions[record["number"]] = record["version"]
      for name in (*record["calls"], *record["dropped"]):
        self.calls[name].batch = record["number"]
    elif record["kind"] == FIGURES:
      self.figures.append(dict(record["figures"]))

  def closed(self, now_s: float) -> list[Joined]:
    """The delivered calls all of whose windows are over, and which are in no batch, in the order of
    the log."""
    over = lambda j: now_s > j.call.time_s + self.longest_window_s
    return [j for j in self.calls.values() if j.delivered and j.batch < 0 and over(j)]

  def _take(self, event: Event) -> str:
    if self.has(event):
      return "duplicate"
    self._events.add((event.user, event.event_id))
    kind = self.kinds.get(event.kind)
    if kind is None:  # of a log with other kinds
      return "late"
    own = self._sessions.get(event.session, ())
    about = [j for j in own if event.call in ("", j.call.id)]
    within = [j for j in about if 0 <= event.time_s - j.call.time_s <= kind.window_s]
    fresh = [j for j in within if event.kind not in j.values and j.batch < 0]
    for joined in fresh:
      joined.values[event.kind] = event.value
      joined.delivered = joined.delivered or bool(event.call)  # that reply was seen
    if fresh:
      return "joined"
    return "repeated" if within else "late"


def problem(event: Event, kinds: Mapping[str, Kind], join: Join) -> str:
  """Why an event is refused; "" if it is taken."""
  kind = kinds.get(event.kind)
  if kind is None:
    return f"kind={event.kind!r}; there are {', '.join(sorted(kinds))}"
  if not math.isfinite(event.value) or not kind.low <= event.value <= kind.high:
    return f"value={event.value}; {event.kind} goes from {kind.low:g} to {kind.high:g}"
  owner = join.user_of(event.session)
  if not owner:
    return f"session {event.session!r} has no logged call"
  if owner != event.user:
    return f"session {event.session!r} is another user's"
  about = join.calls.get(event.call)
  if event.call and (about is None or about.call.session != event.session):
    return f"call {event.call!r} is not of session {event.session!r}"
  return ""
