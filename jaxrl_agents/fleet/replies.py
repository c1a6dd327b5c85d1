"""Replies of rollouts in play, on the disk: what a rollout that is played again need not sample.

When a worker dies or the run is killed, a rollout begins again with the same seeds. It asks the
same environment, runs its tools again, and makes the same requests, as far as tools answer alike.
Each of them is answered with the tokens, log-probabilities, versions and experts that were sampled
before; from where it was cut off, or where a tool answers otherwise, the rollout is sampled. A
reply is found by all that it was sampled from: the group, the prompt, and the limits with their
seed. So what is trained was sampled from the prompt that stands before it, always.
"""

from __future__ import annotations

import base64
import collections
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_agents import record_log
from jaxrl_agents.types import Generation, SamplingLimits

_Places = collections.defaultdict[str, dict[str, tuple[int, int]]]
"""{group: {key of a request: bytes at which its reply begins and ends}}."""

_ROOM_BYTES = 1 << 24
"""Bytes by which the file may exceed twice what is still needed of it."""


class Replies:
  """A file of replies. Any thread may call it. Use as a context manager.

  Invariant: `_places` has the replies of groups in play; the file has them, and others until it is
  replaced.

  Args:
    path: of the file; made if it is not there, and begun anew if it is damaged.
    newest: replies of later versions of the weights are removed: these are trained again, and the
      same numbers then stand for other weights.
    is_wanted: (group) -> whether it is still to be played.
  """

  def __init__(self, path: pathlib.Path, newest: int, is_wanted: Callable[[str], bool]):
    self._lock = threading.Lock()
    self._places: _Places = collections.defaultdict(dict)
    self._found = 0
    self._log = _opened(path)
    is_later = False
    for begin, end, record in record_log.places(path):
      if record["version"] > newest:
        is_later = True
      elif is_wanted(record["group"]):
        self._places[record["group"]][record["key"]] = begin, end
    if is_later:
      self._rewrite()

  def __enter__(self) -> Replies:
    return self

  def __exit__(self, *_: object) -> None:
    self._log.close()

  def find(self, group: str, prompt: np.ndarray, limits: SamplingLimits) -> Generation | None:
    """The reply to a request that an earlier attempt of a rollout of the group has made."""
    with self._lock:
      place = self._places.get(group, {}).get(limits.key(prompt))
      if place is None:
        return None
      self._found += 1
      return _generation(record_log.read_at(self._log.path, place[0]))

  def sampled(
    self, group: str, prompt: np.ndarray, limits: SamplingLimits, reply: Generation
  ) -> None:
    """Adds the reply to a request of a rollout of the group.

    Raises:
      FullDiskError: there is no room.
    """
    key = limits.key(prompt)
    with self._lock:
      begin = self._log.append({"group": group, "key": key, **_record(reply)})
      self._places[group][key] = begin, self._log.size

  def ended(self, group: str) -> None:
    """All rollouts of a group have ended: its replies are not needed any more."""
    with self._lock:
      self._places.pop(group, None)

  def take_found(self) -> int:
    """How many replies were found since the last call."""
    with self._lock:
      found, self._found = self._found, 0
      return found

  def shrink(self) -> None:
    """Replaces the file by one with the replies that are needed, where it has become much larger.

    Raises:
      FullDiskError: there is no room; the file is as it was before.
    """
    with self._lock:
      needed = sum(end - begin for each in self._places.values() for begin, end in each.values())
      if self._log.size <= 2 * needed + _ROOM_BYTES:
        return
      self._rewrite()

  def _rewrite(self) -> None:
    """Replaces the file by one with the replies in `_places`."""
    path = self._log.path
    kept = [
      (group, key, begin)
      for group, each in self._places.items()
      for key, (begin, _) in each.items()
    ]
    records = (record_log.read_at(path, begin) for *_, begin in kept)
    self._log, begins = record_log.rewritten(self._log, records)
    ends = [*begins, self._log.size][1:]
    for (group, key, _), begin, end in zip(kept, begins, ends, strict=True):
      self._places[group][key] = begin, end


def _opened(path: pathlib.Path) -> record_log.Log:
  """The log at a path. A torn end is nothing to tell of: its request is sampled again."""
  try:
    return record_log.Log(path)
  except record_log.DamagedLog as error:
    print(f"unfinished rollouts are sampled again: {error}", file=sys.stderr, flush=True)
    path.unlink()
    return record_log.Log(path)


_ARRAYS = {"tokens": np.int32, "logprobs": np.float32, "versions": np.int32, "routing": np.uint16}


def _record(reply: Generation) -> dict[str, Any]:
  arrays = {name: getattr(reply, name) for name in _ARRAYS}
  return {
    "version": int(max(np.max(reply.versions, initial=-1), reply.began)),
    "arrays": {
      name: [list(array.shape), base64.b64encode(array.astype(_ARRAYS[name]).tobytes()).decode()]
      for name, array in arrays.items()
      if array is not None
    },
    "stop": reply.stop,
    "trained": reply.trained,
    "began": reply.began,
    "kept": reply.kept,
  }


def _generation(record: dict[str, Any]) -> Generation:
  arrays: dict[str, Any] = {
    name: np.frombuffer(base64.b64decode(text), _ARRAYS[name]).reshape(shape)
    for name, (shape, text) in record["arrays"].items()
  }
  rest = {name: record[name] for name in ("stop", "trained", "began", "kept")}
  return Generation(**{"routing": None, **arrays, **rest})
