"""Files of groups: one .npz for the groups of a step or of an evaluation.

A file holds one flat array per dtype and a JSON index that says where each array lies in it, so
that a step of thousands of small arrays is a handful of zip members. Loading gives back equal
records, except that tuples in a task's facts come back as lists and their keys as text, as JSON has
them, and without the routing of segments unless it was asked for: only the learner reads it, and it
weighs more than all the rest.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents import durable, full_disk
from jaxrl_agents.types import Group, Message, Segment, Task, ToolCall, Trajectory

FORMAT = 3

STORED = ("tokens", "loss_mask", "logprobs", "versions")
"""The arrays of a segment that every file holds."""


def save_groups(
  path: str | os.PathLike[str], groups: Sequence[Group], *, routing: bool = False
) -> None:
  """Writes groups to one .npz, atomically: a reader sees the whole file or none.

  Args:
    path: of the file.
    groups: complete groups.
    routing: whether to write what the learner alone reads too, the routing of segments and what is
      known of their caches, for groups that are yet to be trained.

  Raises:
    ValueError: a task's facts or a call's arguments are not plain JSON values.
  """
  target = pathlib.Path(path)
  arrays = _Arrays()
  stored = (*STORED, "routing", "kept") if routing else STORED
  index = {"format": FORMAT, "groups": [_group_record(g, arrays, stored) for g in groups]}
  try:
    text = json.dumps(index, ensure_ascii=False)
  except TypeError as error:
    raise ValueError(f"a group for {target} holds what JSON cannot: {error}") from error
  flat: Any = arrays.flat()
  flat["index"] = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
  target.parent.mkdir(parents=True, exist_ok=True)
  partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
  try:
    with full_disk.named(target.parent):
      with open(partial, "wb") as file:
        np.savez(file, **flat)
      durable.replace(partial, target)
  finally:
    partial.unlink(missing_ok=True)


def remove_partial(folder: pathlib.Path) -> None:
  """Removes what processes left that were killed in `save_groups`; none may be in it now."""
  for partial in folder.glob(".*.partial"):
    partial.unlink(missing_ok=True)


def load_groups(path: str | os.PathLike[str]) -> list[Group]:
  """Reads what `save_groups` wrote.

  Raises:
    ValueError: the file is not one of ours, is damaged, or has another format number.
  """
  path = pathlib.Path(path)
  try:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
      flat = {name: arrays[name] for name in arrays.files}  # each is compared with its CRC
    index = json.loads(flat.pop("index").tobytes().decode("utf-8", "surrogatepass"))
    found = index["format"]
    groups = [_group(record, flat) for record in index["groups"]] if found == FORMAT else []
  except FileNotFoundError:
    raise
  except Exception as error:  # whatever zip files, arrays and records of other content lead to
    raise ValueError(
      f"{path} is damaged, or not a file of groups ({type(error).__name__}: {error}); restore it "
      "from a copy, or remove it"
    ) from error
  if found != FORMAT:
    raise ValueError(
      f"{path} has format {found}, this code reads {FORMAT}; remove it, or use the version of "
      "jaxrl_agents that wrote it"
    )
  return groups


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


def _group_record(group: Group, arrays: _Arrays, stored: Sequence[str]) -> dict[str, Any]:
  return {
    "id": group.id,
    "task": dataclasses.asdict(dataclasses.replace(group.task, facts=dict(group.task.facts))),
    "trajectories": [_trajectory_record(t, arrays, stored) for t in group.trajectories],
  }


def _trajectory_record(
  trajectory: Trajectory, arrays: _Arrays, stored: Sequence[str]
) -> dict[str, Any]:
  return {
    "task_id": trajectory.task_id,
    "segments": [
      {name: arrays.add(getattr(segment, name)) for name in stored} | {"began": segment.began}
      for segment in trajectory.segments
    ],
    "log": [_message_record(message, arrays) for message in trajectory.log],
    "rewards": {name: float(value) for name, value in trajectory.rewards.items()},
    "stop": trajectory.stop,
    "metrics": {name: float(value) for name, value in trajectory.metrics.items()},
    "children": [_trajectory_record(child, arrays, stored) for child in trajectory.children],
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
    id=record["id"],
  )


def _trajectory(record: Mapping[str, Any], flat: Mapping[str, np.ndarray]) -> Trajectory:
  segments = (
    {name: _array(s[name], flat) for name in s if name != "began"} | {"began": s["began"]}
    for s in record["segments"]
  )
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
