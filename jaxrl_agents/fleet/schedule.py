"""The schedule of an asynchronous run (`fleet.depth`): all that decides it beside its options.

What an engine computes depends on its calls and its clock alone (sampler.engine_calls), and what
the learner computes on its batches. So a run is determined by the order in which requests reached
the engines, the steps between which weights were swapped, and the groups of each batch. These are
appended to a `record_log`:

    {"is": "began", "options": {option: value}, "start": digest of the warm start}
    {"is": "drafts", "costs": {engine: [cost of a step with drafts]}}
    {"is": "step", "now": seconds, "calls": [["submit" or "cancel", engine, key of a request]]}
    {"is": "swapped", "version": number}
    {"is": "ended", "group": id, "digest": of what was played}
    {"is": "taken", "groups": [id]}
    {"is": "resumed", "step": number}

A replay (`fleet.replay`) waits at each place of the record until the requests of the next step are
there, or the group has ended, or the weights were published, whatever its own tools and learner
take. It cannot wait in vain: all of these came before the place in the recorded run too. Digests of
groups tell at once where it departs from the record.
"""

from __future__ import annotations

import collections
import hashlib
import json
import pathlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxrl_agents import record_log
from jaxrl_agents.types import Group, Trajectory

Kind = Literal["submit", "cancel"]
Call = tuple[Kind, str, str]
"""(kind, engine, key of the request)."""

_EVENTS = ("step", "swapped", "ended")


class ReplayError(RuntimeError):
  """A replay departs from its record, or the record is at its end; says where and why."""


class Recorded:
  """A record that is read.

  Invariant: `events` are what is still to come of steps, swaps and ends of groups, `batches` of
  batches.

  Args:
    path: of the record.

  Attributes:
    options, start, draft_costs: as recorded.
    digests: of the groups that ended, by id.
    submissions: how often each request is still to be submitted, by its key.

  Raises:
    ValueError: there is no record, or the run was resumed.
    record_log.DamagedLog: it is damaged.
  """

  def __init__(self, path: pathlib.Path):
    try:
      records = list(record_log.scan(path))
    except FileNotFoundError:
      raise ValueError(
        f"{path} is not there: fleet.replay must name the folder of a run with fleet.depth of 1 or "
        "more"
      ) from None
    self.path = path
    of = lambda kind: [record for record in records if record["is"] == kind]
    if resumed := of("resumed"):
      raise ValueError(
        f"{path} records a run that was resumed at step {resumed[0]['step']}, where rollouts in "
        "play began again; only a run that was never resumed can be replayed"
      )
    if not of("began") or not of("drafts"):
      raise ValueError(f"{path} ends before the run began to train; replay another run")
    self.options: Mapping[str, Any] = of("began")[0]["options"]
    self.start: str = of("began")[0]["start"]
    self.draft_costs: dict[str, list[float]] = of("drafts")[0]["costs"]
    self.events = collections.deque(record for record in records if record["is"] in _EVENTS)
    self.batches = collections.deque(record["groups"] for record in of("taken"))
    self.digests = {record["group"]: record["digest"] for record in of("ended")}
    self.submissions = collections.Counter(
      key for step in of("step") for kind, _, key in step["calls"] if kind == "submit"
    )


class Schedule:
  """Records a run, and has it follow another one's record if there is one.

  Engines are used by one thread; batches are taken by another.

  Args:
    log: to which this run is recorded.
    recorded: what it follows.
  """

  def __init__(self, log: record_log.Log, recorded: Recorded | None = None):
    self._log, self._recorded = log, recorded
    self._lock = threading.Lock()
    self._calls: list[Call] = []
    self._now = time.monotonic()
    self._ended: set[str] = set()

  @property
  def follows(self) -> bool:
    """Whether this run is a replay."""
    return self._recorded is not None

  def time(self) -> float:
    """The clock of the engines, seconds: stands still between two calls of `due`."""
    return self._now

  def draft_costs(self, measured: dict[str, list[float]]) -> dict[str, list[float]]:
    """What drafts cost in each engine: as they were measured, or as recorded."""
    used = self._recorded.draft_costs if self._recorded else measured
    self._note({"is": "drafts", "costs": used})
    return used

  def due(self, held: Sequence[str]) -> list[Call] | None:
    """In a replay the calls that come before the next step, which is then to be made.

    Args:
      held: keys of the requests that wait to be submitted.

    Returns:
      The calls; None if something else comes next, or requests lack.

    Raises:
      ReplayError: the record is at its end.
    """
    assert self._recorded
    event = self._next()
    if event is None:
      raise ReplayError(
        f"{self._recorded.path} ends here, because the recorded run was stopped; {len(held)} "
        "requests wait. All training so far equals that of the run; to train on, start a run "
        "without fleet.replay"
      )
    if event["is"] != "step" or _lacking(event, held):
      return None
    self._now = event["now"]
    return [(kind, engine, request) for kind, engine, request in event["calls"]]

  def is_to_come(self, request: str) -> bool:
    """Whether the record has a request, by its key, that was not submitted yet."""
    assert self._recorded
    return self._recorded.submissions[request] > 0

  def tick(self) -> None:
    """The time of the calls that follow, where no record says it."""
    if not self._recorded:
      self._now = time.monotonic()

  def called(self, kind: Kind, engine: str, request: str) -> None:
    """A call was made."""
    self._calls.append((kind, engine, request))
    if self._recorded and kind == "submit":
      self._recorded.submissions[request] -= 1

  def stepped(self) -> None:
    """Every engine with something to do is about to make a step."""
    self._note({"is": "step", "now": self._now, "calls": self._calls})
    self._calls = []
    if self._recorded:
      self._recorded.events.popleft()

  def ended(self, group: Group) -> None:
    """All rollouts of a group have ended.

    Raises:
      ReplayError: they were played otherwise than in the record.
    """
    found = digest(group)
    self._note({"is": "ended", "group": group.id, "digest": found})
    if not self._recorded:
      return
    self._ended.add(group.id)
    if self._recorded.digests.get(group.id, found) != found:
      raise ReplayError(
        f"group {group.id!r} was played otherwise than {self._recorded.path} says: it began with "
        "other weights, or is on another kind of machine or version of jax, or a tool or a judge "
        "answered otherwise, or a deadline passed"
      )

  def swap_is_due(self) -> bool:
    """Whether weights may be swapped now: in a replay, only where they were."""
    if not self._recorded:
      return True
    event = self._next()
    return event is not None and event["is"] == "swapped"

  def swapped(self, version: int) -> None:
    """The engine holds another version of the weights.

    Raises:
      ReplayError: the record has another one here.
    """
    self._note({"is": "swapped", "version": version})
    if not self._recorded:
      return
    event = self._next()
    if not event or event.get("version") != version:
      raise ReplayError(
        f"version {version} was published where {self._recorded.path} has {event}: the replay is "
        "not what was recorded; use the code, options and kind of machine of the recorded run"
      )
    self._recorded.events.popleft()

  def batch(self) -> list[str] | None:
    """The ids of the groups that are taken next; None for those that end first.

    Raises:
      ReplayError: the record is at its end.
    """
    if not self._recorded:
      return None
    if not self._recorded.batches:
      raise ReplayError(f"{self._recorded.path} has no further batch: the run was stopped here")
    return self._recorded.batches.popleft()

  def taken(self, groups: Sequence[Group]) -> None:
    """The learner has taken groups."""
    self._note({"is": "taken", "groups": [group.id for group in groups]})

  def describe(self) -> str:
    """What a replay waits for, for messages about a lack of progress."""
    event = self._next() if self._recorded else None
    return f"the replay waits for {json.dumps(event)[:400]}" if event else ""

  def _next(self) -> Mapping[str, Any] | None:
    """The next event that has not come about, in a replay."""
    assert self._recorded
    events = self._recorded.events
    while events and events[0]["is"] == "ended" and events[0]["group"] in self._ended:
      events.popleft()
    return events[0] if events else None

  def _note(self, record: dict[str, Any]) -> None:
    with self._lock:
      self._log.append(record)


def digest(group: Group) -> str:
  """A digest of what a group's rollouts are trained from: tokens, log-probabilities, rewards."""
  content = hashlib.blake2b(digest_size=16)

  def add(trajectory: Trajectory) -> None:
    rewards = sorted(trajectory.rewards.items())
    content.update(repr((bool(trajectory.error), trajectory.stop, rewards)).encode())
    for each in trajectory.segments:
      arrays = (each.tokens, each.loss_mask, each.logprobs, each.versions, each.routing)
      for array in arrays:
        content.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
      content.update(repr((len(each.tokens), each.began)).encode())
    for child in trajectory.children:
      add(child)

  for trajectory in group.trajectories:
    add(trajectory)
  return content.hexdigest()


def _lacking(step: Mapping[str, Any], held: Sequence[str]) -> bool:
  """Whether a step has requests that neither wait nor are canceled before it."""
  of = lambda kind: collections.Counter(name for made, _, name in step["calls"] if made == kind)
  return bool(of("submit") - of("cancel") - collections.Counter(held))
