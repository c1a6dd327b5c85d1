"""The state of every rollout of a run, in one file: nothing is lost unnoticed, or trained twice.

    dispatched -> finished -> ready -> trained in a step
                                    -> dropped, with the reason

A rollout is identified by its task, its index in the group, and the number of the attempt. It is
"finished" when its group has ended, and "ready" when its group is on the disk too
(`fleet.ready_groups`; only where rollouts are played ahead). An attempt is dropped when its worker
died, when the run was killed before its group was on the disk, when it failed, or when its step had
nothing to learn from it or left its update out. What was trained after the checkpoint that a run
goes on from is undone: it is finished again, and used or replayed.

The file is a `record_log`: each record has a digest, and a record that was being written when the
process died is cut off at the next start, and named. Changes are appended, one record for a group
or a step. When they have grown larger than all before them, the file is replaced by a compact one.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import json
import os
import pathlib
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents import record_log
from jaxrl_agents.types import Group

TRAINED, DROPPED = "trained", "dropped"
KILLED = "the run ended before its group was on the disk"
_KINDS = ("dispatched", "again", "finished", "ready", "learnt", "resumed", "all_closed", "all_open")
_ROOM_BYTES = 1 << 20
"""Changes that are always kept as they were appended."""


@dataclasses.dataclass(frozen=True)
class State:
  """The state of one rollout.

  Attributes:
    group: id of its group, which names the draw of its task.
    task: its id.
    sample: number in the group.
    attempt: counts from 1.
    state: "dispatched", "finished", "ready", "trained" or "dropped".
    step: in which it was trained, or its group dropped; -1 if it was not.
    why: it was dropped.
  """

  group: str
  task: str
  sample: int
  attempt: int
  state: str
  step: int = -1
  why: str = ""


@dataclasses.dataclass
class _Open:
  """A group that is neither trained nor dropped: the attempt of each sample, how some failed."""

  task: str
  attempts: list[int]
  state: str = "dispatched"
  failed: dict[int, str] = dataclasses.field(default_factory=dict)


class States:
  """What the records say. Invariant: a sample of a group has at most one attempt that is open or
  was trained or dropped in a step; every earlier one was dropped outside of any.

  Attributes:
    doubled: {group: step} of steps that used a group which was trained or dropped already. There
      are none, unless the run is wrong.
  """

  def __init__(self) -> None:
    self.doubled: dict[str, int] = {}
    self._open: dict[str, _Open] = {}
    self._closed: list[tuple[str, str, int, list[int], int, str]] = []  # as in the compact file

  def __iter__(self) -> Iterator[State]:
    for group, task, attempt, samples, step, why in self._closed:
      for sample in samples:
        yield State(group, task, sample, attempt, DROPPED if why else TRAINED, step, why)
    for group, each in self._open.items():
      for sample, attempt in enumerate(each.attempts):
        yield State(group, each.task, sample, attempt, each.state)

  def apply(self, record: Mapping[str, Any]) -> None:
    """Takes the next record. Records of other kinds change nothing."""
    if (kind := record["is"]) in _KINDS:
      getattr(self, f"_{kind}")(**{name: value for name, value in record.items() if name != "is"})

  def compact(self) -> list[dict[str, Any]]:
    """Records that say the same as all before, in fewer bytes."""
    packed = zlib.compress(json.dumps(self._closed, separators=(",", ":")).encode(), 9)
    rows = base64.b64encode(packed).decode()
    groups = {group: dataclasses.astuple(each) for group, each in self._open.items()}
    closed = {"is": "all_closed", "rows": rows, "doubled": self.doubled}
    return [closed, {"is": "all_open", "groups": groups}]

  def is_open(self, group: str) -> bool:
    """Whether a group was dispatched and is neither trained nor dropped."""
    return group in self._open

  def _dispatched(self, group: str, task: str, rollouts: int) -> None:
    earlier = self._open.pop(group, None)
    attempts = [0] * rollouts
    if earlier:
      self._close(group, earlier, -1, KILLED)
      attempts = [*earlier.attempts, *attempts][:rollouts]
    self._open[group] = _Open(task, [attempt + 1 for attempt in attempts])

  def _again(self, group: str, samples: list[int], why: str) -> None:
    each = self._open[group]
    for sample in samples or range(len(each.attempts)):
      self._closed.append((group, each.task, each.attempts[sample], [sample], -1, why))
      each.attempts[sample] += 1

  def _finished(self, group: str, failed: Mapping[str, str]) -> None:
    self._open[group].state = "finished"
    self._open[group].failed = {int(sample): why for sample, why in failed.items()}

  def _ready(self, group: str) -> None:
    if group in self._open:  # a step may be done before the disk is
      self._open[group].state = "ready"

  def _learnt(self, step: int, groups: Mapping[str, str]) -> None:
    for group, why in groups.items():
      if group in self._open:
        self._close(group, self._open.pop(group), step, why)
      else:
        self.doubled[group] = step

  def _close(self, group: str, each: _Open, step: int, why: str) -> None:
    """Adds a row for the samples of one attempt and one reason."""
    rows = collections.defaultdict(list)
    for sample, attempt in enumerate(each.attempts):
      rows[attempt, each.failed.get(sample, why)].append(sample)
    for (attempt, reason), samples in rows.items():
      self._closed.append((group, each.task, attempt, samples, step, reason))

  def _resumed(self, step: int) -> None:
    undone = [row for row in self._closed if row[4] >= step]
    self._closed = [row for row in self._closed if row[4] < step]
    self.doubled = {group: used for group, used in self.doubled.items() if used < step}
    for group, task, attempt, samples, _, _ in undone:
      each = self._open.setdefault(group, _Open(task, [], "finished"))
      each.attempts += [0] * (max(samples) + 1 - len(each.attempts))
      for sample in samples:
        each.attempts[sample] = attempt

  def _all_closed(self, rows: str, doubled: Mapping[str, int]) -> None:
    self.doubled = dict(doubled)
    packed = zlib.decompress(base64.b64decode(rows))
    self._closed = [tuple(row) for row in json.loads(packed)]

  def _all_open(self, groups: Mapping[str, Sequence[Any]]) -> None:
    self._open = {
      group: _Open(task, attempts, state, {int(n): why for n, why in failed.items()})
      for group, (task, attempts, state, failed) in groups.items()
    }


class Ledger:
  """The file of a run that goes on. Any thread may call it. Use as a context manager.

  Args:
    path: of the file; made if it is not there.
    step: first one of the run: that of the checkpoint it goes on from, or 0.

  Raises:
    record_log.DamagedLog: the file is damaged elsewhere than at its end.
    BlockingIOError: another process has it open.
  """

  def __init__(self, path: pathlib.Path, step: int):
    if step and not path.exists():
      print(f"{path} is gone: it will not know of rollouts before step {step}", file=sys.stderr)
    self._lock = threading.Lock()
    self._log = record_log.Log(path)
    if torn := self._log.torn:
      print(f"{path}: {torn}", file=sys.stderr, flush=True)
    self._states = read(path)
    self._compact_bytes = 0
    self._note({"is": "resumed", "step": step})

  def __enter__(self) -> Ledger:
    return self

  def __exit__(self, *_: object) -> None:
    self._log.close()

  def dispatched(self, group: str, task: str, rollouts: int) -> None:
    """A group of rollouts is about to be played, for the first time or again after a restart."""
    self._note({"is": "dispatched", "group": group, "task": task, "rollouts": rollouts})

  def played_again(self, group: str, samples: Sequence[int], why: str) -> None:
    """The next attempt of some samples of a group begins, of all if none are named; groups of
    evaluations are in no ledger.
    """
    if self._states.is_open(group):
      self._note({"is": "again", "group": group, "samples": list(samples), "why": why})

  def finished(self, group: Group) -> None:
    """All rollouts of a group have ended."""
    self._note({"is": "finished", "group": group.id, "failed": _failed(group)})

  def ready(self, group: str) -> None:
    """A group that has finished is on the disk."""
    self._note({"is": "ready", "group": group})

  def kept(self, group: Group) -> None:
    """A group that an earlier process of the run played is used."""
    if not self._states.is_open(group.id):  # of a ledger that was lost
      self.dispatched(group.id, group.task.id, len(group.trajectories))
    self.finished(group)
    self.ready(group.id)

  def learnt(self, step: int, groups: Mapping[str, str]) -> None:
    """A step has used groups: {group: why it was not trained, or ""}."""
    self._note({"is": "learnt", "step": step, "groups": dict(groups)})

  def saved(self) -> None:
    """A checkpoint is complete: makes all before it durable, and compacts the file if it has grown.

    Raises:
      FullDiskError: there is no room; the ledger is as it was before.
    """
    with self._lock:
      self._log.sync()
      if self._log.size > 2 * self._compact_bytes + _ROOM_BYTES:
        self._log, _ = record_log.rewritten(self._log, self._states.compact())
        self._compact_bytes = self._log.size

  def _note(self, record: dict[str, Any]) -> None:
    with self._lock:
      self._log.append(record)
      self._states.apply(record)


def read(path: str | os.PathLike[str]) -> States:
  """The states in a ledger, whose run may be going on.

  Raises:
    FileNotFoundError: there is none.
    record_log.DamagedLog: it is damaged elsewhere than at its end.
  """
  states = States()
  for record in record_log.scan(path):
    states.apply(record)
  return states


def _failed(group: Group) -> dict[str, str]:
  """Why rollouts of a group failed, by the numbers of their samples (text, as JSON has it)."""
  errors = {str(n): each.error for n, each in enumerate(group.trajectories) if each.error}
  return {n: error.partition("\n")[0][:200] for n, error in errors.items()}
