"""Groups on their way to the learner: one .npz per step, and a queue bounded in bytes.

A file holds one flat array per dtype and a JSON index that says where each array lies in it, so
that a step of thousands of small arrays is a handful of zip members. Loading gives back equal
records.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.types import Group, Message, Segment, Task, ToolCall, Trajectory

FORMAT = 1


class QueueTimeout(RuntimeError):
  """A put or get did not succeed in time; the message says what the queue held."""


class QueueClosed(RuntimeError):
  """The queue was closed: no more groups will come or be taken."""


# ------------------------------------------------------------------------------------------ files


def save_groups(path: str | os.PathLike[str], groups: Sequence[Group]) -> None:
  """Writes groups to one .npz, atomically: a reader sees the whole file or none.

  Raises:
    ValueError: a task's facts or a call's arguments are not plain JSON values.
  """
  target = pathlib.Path(path)
  arrays = _Arrays()
  index = {"format": FORMAT, "groups": [_group_record(group, arrays) for group in groups]}
  try:
    text = json.dumps(index, ensure_ascii=False)
  except TypeError as error:
    raise ValueError(f"a group for {target} holds what JSON cannot: {error}") from error
  flat: Any = arrays.flat()
  flat["index"] = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
  target.parent.mkdir(parents=True, exist_ok=True)
  partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
  try:
    with open(partial, "wb") as file:
      np.savez(file, **flat)
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, target)
  finally:
    partial.unlink(missing_ok=True)


def load_groups(path: str | os.PathLike[str]) -> list[Group]:
  """Reads what `save_groups` wrote.

  Raises:
    ValueError: the file is not one of ours, is cut short, or has another format number.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      flat = {name: file[name] for name in file.files}
    index = json.loads(flat.pop("index").tobytes().decode("utf-8", "surrogatepass"))
    found = index["format"]
  except FileNotFoundError:
    raise
  except Exception as error:
    raise ValueError(f"{path} is not a file of groups ({error}); write it again") from error
  if found != FORMAT:
    raise ValueError(f"{path} has format {found}, this code reads {FORMAT}; write it again")
  return [_group(record, flat) for record in index["groups"]]


class _Arrays:
  """Collects arrays. Invariant: each dtype's pieces are only appended, so references stay valid."""

  def __init__(self):
    self._pieces: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    self._sizes: dict[str, int] = collections.defaultdict(int)

  def add(self, array: np.ndarray | None) -> list[Any] | None:
    """A reference [dtype, offset, shape] to a copy of `array`."""
    if array is None:
      return None
    name = array.dtype.name
    reference = [name, self._sizes[name], list(array.shape)]
    self._pieces[name].append(np.ravel(array))
    self._sizes[name] += array.size
    return reference

  def flat(self) -> dict[str, np.ndarray]:
    return {name: np.concatenate(pieces) for name, pieces in self._pieces.items()}


def _array(reference: Sequence[Any] | None, flat: Mapping[str, np.ndarray]) -> Any:
  if reference is None:
    return None
  name, offset, shape = reference
  return flat[name][offset : offset + int(np.prod(shape))].reshape(shape)


def _group_record(group: Group, arrays: _Arrays) -> dict[str, Any]:
  return {
    "task": dataclasses.asdict(dataclasses.replace(group.task, facts=dict(group.task.facts))),
    "trajectories": [_trajectory_record(t, arrays) for t in group.trajectories],
  }


def _trajectory_record(trajectory: Trajectory, arrays: _Arrays) -> dict[str, Any]:
  return {
    "task_id": trajectory.task_id,
    "group_id": trajectory.group_id,
    "segments": [
      {f.name: arrays.add(getattr(segment, f.name)) for f in dataclasses.fields(Segment)}
      for segment in trajectory.segments
    ],
    "log": [_message_record(message, arrays) for message in trajectory.log],
    "rewards": {name: float(value) for name, value in trajectory.rewards.items()},
    "stop": trajectory.stop,
    "metrics": {name: float(value) for name, value in trajectory.metrics.items()},
    "children": [_trajectory_record(child, arrays) for child in trajectory.children],
    "error": trajectory.error,
  }


def _message_record(message: Message, arrays: _Arrays) -> dict[str, Any]:
  calls = [
    {f.name: getattr(call, f.name) for f in dataclasses.fields(ToolCall)}
    | {"arguments": dict(call.arguments)}
    for call in message.tool_calls
  ]
  return {
    "role": message.role,
    "content": message.content,
    "tool_calls": calls,
    "tool_call_id": message.tool_call_id,
    "tokens": arrays.add(message.tokens),
    "ephemeral": message.ephemeral,
    "reasoning": message.reasoning,
  }


def _group(record: Mapping[str, Any], flat: Mapping[str, np.ndarray]) -> Group:
  return Group(
    task=Task(**record["task"]),
    trajectories=tuple(_trajectory(t, flat) for t in record["trajectories"]),
  )


def _trajectory(record: Mapping[str, Any], flat: Mapping[str, np.ndarray]) -> Trajectory:
  segments = ({k: _array(v, flat) for k, v in s.items()} for s in record["segments"])
  return Trajectory(
    **dict(record)
    | {
      "segments": tuple(Segment(**segment) for segment in segments),
      "log": tuple(_message(message, flat) for message in record["log"]),
      "children": tuple(_trajectory(child, flat) for child in record["children"]),
    }
  )


def _message(record: Mapping[str, Any], flat: Mapping[str, np.ndarray]) -> Message:
  return Message(
    **dict(record)
    | {
      "tool_calls": tuple(ToolCall(**call) for call in record["tool_calls"]),
      "tokens": _array(record["tokens"], flat),
    }
  )


# ------------------------------------------------------------------------------------------ queue


def group_bytes(group: Group) -> int:
  """Bytes of the arrays and texts of a group: what it weighs on a queue."""
  return sum(_trajectory_bytes(trajectory) for trajectory in group.trajectories)


def _trajectory_bytes(trajectory: Trajectory) -> int:
  arrays: Iterable[np.ndarray | None] = [
    *(getattr(s, f.name) for s in trajectory.segments for f in dataclasses.fields(Segment)),
    *(message.tokens for message in trajectory.log),
  ]
  texts = sum(len(m.content) + len(m.reasoning) for m in trajectory.log)
  children = sum(_trajectory_bytes(child) for child in trajectory.children)
  return sum(array.nbytes for array in arrays if array is not None) + texts + children


class GroupQueue:
  """Groups in the order they were put, between threads of one process.

  Invariant: the groups held weigh at most `max_bytes`, except that one group alone always fits.
  """

  def __init__(self, max_bytes: int):
    if max_bytes < 1:
      raise ValueError(f"max_bytes={max_bytes} must be at least 1")
    self._max_bytes = max_bytes
    self._held: collections.deque[tuple[Group, int]] = collections.deque()
    self._bytes = 0
    self._closed = False
    self._changed = threading.Condition()

  def __len__(self) -> int:
    return len(self._held)

  @property
  def num_bytes(self) -> int:
    """Bytes held now."""
    return self._bytes

  def put(self, group: Group, timeout_s: float) -> None:
    """Adds a group, waiting for room.

    Raises:
      QueueTimeout: there was no room within `timeout_s` seconds.
      QueueClosed: the queue is closed.
    """
    size = group_bytes(group)

    def has_room() -> bool:
      return not self._held or self._bytes + size <= self._max_bytes

    with self._changed:
      self._wait(has_room, timeout_s, f"no room for a group of {size} bytes")
      if self._closed:
        raise QueueClosed("the queue is closed; the group was not taken")
      self._held.append((group, size))
      self._bytes += size
      self._changed.notify_all()

  def get(self, timeout_s: float) -> Group:
    """Takes the oldest group, waiting for one.

    Raises:
      QueueTimeout: none came within `timeout_s` seconds.
      QueueClosed: the queue is closed and empty.
    """
    with self._changed:
      self._wait(lambda: bool(self._held), timeout_s, "no group came")
      if not self._held:
        raise QueueClosed("the queue is closed and empty")
      group, size = self._held.popleft()
      self._bytes -= size
      self._changed.notify_all()
      return group

  def close(self) -> None:
    """Lets every waiting put and get end with QueueClosed; what is held can still be taken."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()

  def _wait(self, ready, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready() and not self._closed:
      left = deadline - time.monotonic()
      if left <= 0:
        raise QueueTimeout(
          f"{what} within {timeout_s:g} s; the queue holds {len(self._held)} groups, "
          f"{self._bytes} of {self._max_bytes} bytes"
        )
      self._changed.wait(left)
