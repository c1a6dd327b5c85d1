"""Which groups are played when, and which the next batch holds. No jax.

    dispatch a group  iff  in flight + ready + being learnt < (depth + 1) x batch
                           and (in flight + ready < batch  or  room for it in memory)
    age of a group    =    publications of weights between its oldest token with loss and the step

A bound on what is in flight bounds the age, so nothing has to be thrown away: every group that is
dispatched is trained, however long it takes. A group that is too old all the same was played by
much slower machines than the others; it is counted.

A group has room while the bytes of the ready ones, and of those in flight at the mean size of the
last two batches that ended, are below a bound; until one has ended, nothing is known of their size.
Less than a batch is played whatever its bytes, so that the learner never waits for room.

Depth and age are separate because a bound on the age alone settles at the bound
(tinker-cookbook, pull request 822).
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.types import Group, Task


@dataclasses.dataclass(frozen=True)
class Draw:
  """A task on its way to a batch.

  Attributes:
    batch: that it was drawn for, which gives its seed. It may be trained with a later one.
    place: its number in this batch.
    task: what is played.
    repeat: how many draws of the batch before it have the same task; another seed for each.
  """

  batch: int
  place: int
  task: Task
  repeat: int = 0

  @property
  def label(self) -> str:
    """The id of its group."""
    return f"step {self.batch} {self.place}"


class Pacing:
  """Tasks drawn, groups in flight and groups that are ready.

  Invariant: a task that was drawn is in exactly one of `waiting`, `in_flight`, `ready`, or `take`
  returned it. Tasks are dispatched in the order in which they were drawn.

  Args:
    draw: (batch) -> its tasks.
    batch: groups that the learner takes at once.
    depth: batches that are played while the learner has one.
    first: number of the first batch, where there is no state.
    batches: how many are still to be taken.
    ready_bytes: the bound of `nbytes` of the ready groups and those in flight, beyond a batch.
    state: of an earlier object, see `state`; its depth may have been another.
    tasks: the tasks that `state` may name.
    groups: that ended and were not trained, by their ids those of draws in `state` or of later
      ones; these are not played again. Others are ignored, and those of another task.
  """

  def __init__(
    self,
    draw: Callable[[int], Sequence[Task]],
    *,
    batch: int,
    depth: int,
    batches: int,
    ready_bytes: float = math.inf,
    first: int = 0,
    state: Mapping[str, Any] | None = None,
    tasks: Sequence[Task] = (),
    groups: Sequence[Group] = (),
  ):
    self._draw, self._batch, self._depth = draw, batch, depth
    self._left = batches * batch
    self._drawn, self._learning = first, 0
    self._most_bytes = ready_bytes
    self._sizes = collections.deque[int](maxlen=2 * batch)  # of the groups that ended last
    self._kept = {group.id: group for group in groups}
    self._bytes = sum(map(nbytes, self._kept.values()))  # of these and the ready ones
    self.waiting: collections.OrderedDict[str, Draw] = collections.OrderedDict()
    self.in_flight: dict[str, Draw] = {}
    self.ready: dict[str, tuple[Draw, Group]] = {}
    if state:
      known = {task.id: task for task in tasks}
      self._drawn = state["drawn"]
      for number, place, task_id, *repeat in state["unfinished"]:
        if task_id not in known:
          raise ValueError(
            f"the checkpoint names task {task_id!r}, which the task set does not have; continue "
            "with the tasks that the run began with"
          )
        self._admit(Draw(number, place, known[task_id], *repeat))
    later = lambda group_id: draw_of(group_id)[0] >= self._drawn
    for name in [name for name in self._kept if not later(name)]:
      self._bytes -= nbytes(self._kept.pop(name))

  @property
  def kept(self) -> set[str]:
    """Ids of the groups of an earlier object that are ready, or will be once they are drawn."""
    return {*self.ready, *self._kept}

  def is_to_play(self, group_id: str) -> bool:
    """Whether a group is that of a draw which waits, or is to come."""
    if group_id in self.ready or group_id in self._kept:
      return False
    return group_id in self.waiting or draw_of(group_id)[0] >= self._drawn

  def next(self) -> Draw | None:
    """The next task to play, which is in flight from now on; None if no more may be played yet."""
    while True:
      ahead = len(self.in_flight) + len(self.ready)
      if ahead + self._learning >= (self._depth + 1) * self._batch or ahead >= self._left:
        return None
      if ahead >= self._batch and self._expected_bytes() >= self._most_bytes:
        return None
      if self.waiting:
        break
      before: collections.Counter[str] = collections.Counter()
      for place, task in enumerate(self._draw(self._drawn)):
        self._admit(Draw(self._drawn, place, task, before[task.id]))
        before[task.id] += 1
      self._drawn += 1
    _, draw = self.waiting.popitem(last=False)
    self.in_flight[draw.label] = draw
    return draw

  def _admit(self, draw: Draw) -> None:
    """Takes a draw in: it is ready if its group was played by an earlier run, else it waits."""
    group = self._kept.pop(draw.label, None)
    if group and (group.task.id, group.task.prompt) == (draw.task.id, draw.task.prompt):
      self.ready[draw.label] = (draw, group)
      return
    self._bytes -= nbytes(group) if group else 0
    self.waiting[draw.label] = draw

  def _expected_bytes(self) -> float:
    """Of the groups that are held, and of those in flight if they are as large as the last ones."""
    mean = sum(self._sizes) / max(len(self._sizes), 1)
    return self._bytes + mean * len(self.in_flight)

  def finished(self, group: Group) -> None:
    """A group in flight has ended."""
    self.ready[group.id] = (self.in_flight.pop(group.id), group)
    size = nbytes(group)
    self._bytes += size
    if size:  # else all its rollouts failed
      self._sizes.append(size)

  def take(self, count: int, named: Sequence[str] | None = None) -> list[Group] | None:
    """`count` groups, those that ended first or those named, in the order in which they were drawn;
    None if they have not all ended. The learner has them until `learnt`.
    """
    if len(self.ready) < count or not self.ready.keys() >= set(named or ()):
      return None
    first = list(self.ready)[:count] if named is None else named
    taken = sorted((self.ready.pop(name) for name in first), key=lambda x: (x[0].batch, x[0].place))
    self._left -= len(taken)
    self._learning += len(taken)
    self._bytes -= sum(nbytes(group) for _, group in taken)
    return [group for _, group in taken]

  def learnt(self, count: int) -> None:
    """The learner is done with so many of the groups that `take` returned."""
    self._learning -= count

  def replace(self, count: int) -> None:
    """Lets `count` further groups be played, in the place of some that `take` returned."""
    self._left += count
    self._learning -= count

  def state(self) -> dict[str, Any]:
    """For JSON: what is to be trained after a restart."""
    draws = [draw for draw, _ in self.ready.values()] + [
      *self.in_flight.values(),
      *self.waiting.values(),
    ]
    draws.sort(key=lambda draw: (draw.batch, draw.place))
    unfinished = [[draw.batch, draw.place, draw.task.id, draw.repeat] for draw in draws]
    return {"drawn": self._drawn, "unfinished": unfinished}


def draw_of(group_id: str) -> tuple[int, int]:
  """The batch and the place of the draw that a group is of."""
  _, batch, place = group_id.split(" ")
  return int(batch), int(place)


def nbytes(group: Group) -> int:
  """The bytes of the arrays of a group's rollouts and their sub-agents, most of which are routing:
  2 for each token, layer and chosen expert.
  """
  waiting, total = list(group.trajectories), 0
  while waiting:
    trajectory = waiting.pop()
    waiting += trajectory.children
    for each in trajectory.segments:
      arrays = (each.tokens, each.loss_mask, each.logprobs, each.versions, each.routing, each.kept)
      total += sum(array.nbytes for array in arrays if array is not None)
  return total


def oldest_version(group: Group) -> int | None:
  """The smallest version of a token with loss in a group; None if it has no such token."""
  versions = [
    int(segment.versions[segment.loss_mask].min())
    for trajectory in group.trajectories
    if not trajectory.error
    for segment in trajectory.segments
    if np.any(segment.loss_mask)
  ]
  return min(versions, default=None)


def age(group: Group, published: Sequence[int]) -> int:
  """Publications since the oldest token with loss of a group was sampled.

  Args:
    group: complete.
    published: the versions that were published, rising; the last is what the learner holds.
  """
  oldest = oldest_version(group)
  return 0 if oldest is None else sum(version > oldest for version in published)
