"""Groups that have ended and were not trained yet, each in a file of its own: what a run that was
killed does not have to play again.

A thread writes them, so that the sampler does not wait for the disk.
"""

from __future__ import annotations

import collections
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Collection

from jaxrl_agents.harness import group_files
from jaxrl_agents.types import LARGEST_REWARD, Group


class ReadyGroups:
  """A folder of groups, and the thread that writes it. Use as a context manager.

  Invariant: a file holds one whole group, with the routing of its segments, or is not there.

  Args:
    folder: made if missing.
    ready: called with the id of each group once it would survive a loss of power.
    timeout_s: longest time that the disk may take, for all that `keep` has handed over.
  """

  def __init__(
    self, folder: pathlib.Path, ready: Callable[[str], None], *, timeout_s: float = 300.0
  ):
    self._folder, self._ready, self._timeout_s = folder, ready, timeout_s
    self._waiting: collections.deque[Group] = collections.deque()
    self._changed = threading.Condition()
    self._closed = False
    self._error: BaseException | None = None
    self._thread = threading.Thread(target=self._write, name="ready groups", daemon=True)

  def __enter__(self) -> ReadyGroups:
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    with self._changed:
      self._closed = True
      self._changed.notify_all()
    self._thread.join(self._timeout_s)

  def load(self, newest: int) -> list[Group]:
    """The groups in the folder without tokens of versions above `newest`; names damaged files.

    Weights above the version of a checkpoint are trained again when a run goes on from it, and are
    then others of the same number.
    """
    groups = []
    for path in sorted(self._folder.glob("*.npz")):
      try:
        [group] = group_files.load_groups(path)
      except ValueError as error:
        print(f"a group that was ready is played again: {error}", file=sys.stderr, flush=True)
        continue
      if _newest(group) <= newest:
        groups.append(group)
    return groups

  def keep(self, group: Group) -> None:
    """Hands a group over to be written.

    One that ends the run is left out, with a reward beyond `types.LARGEST_REWARD` or without a
    rollout that did not fail: it is played again once its environment is mended.

    Raises:
      Exception: what ended the thread, such as FullDiskError.
    """
    with self._changed:
      self._check()
      rewards = [part for each in group.trajectories for part in each.rewards.values()]
      played = not all(each.error for each in group.trajectories)
      if played and all(abs(part) <= LARGEST_REWARD for part in rewards):  # NaN is not, either
        self._waiting.append(group)
        self._changed.notify_all()

  def flush(self) -> None:
    """Returns when all groups that were handed over are on the disk.

    Raises:
      TimeoutError: they are not within timeout_s.
      Exception: what ended the thread, such as FullDiskError.
    """
    deadline = time.monotonic() + self._timeout_s
    with self._changed:
      while self._waiting:
        self._check()
        if time.monotonic() > deadline:
          raise TimeoutError(
            f"{self._folder} did not take {len(self._waiting)} groups within "
            f"{self._timeout_s:g} s; see whether its disk answers"
          )
        self._changed.wait(1.0)
      self._check()

  def remove(self, ids: Collection[str]) -> None:
    """Removes the files of groups, where there are any."""
    for group_id in ids:
      self._path(group_id).unlink(missing_ok=True)

  def remove_others(self, ids: Collection[str]) -> None:
    """Removes all files but those of these groups; to be called while none is written."""
    group_files.remove_partial(self._folder)
    kept = {self._path(group_id).name for group_id in ids}
    for path in self._folder.glob("*.npz"):
      if path.name not in kept:
        path.unlink()

  def _path(self, group_id: str) -> pathlib.Path:
    return self._folder / f"{group_id.replace(' ', '_')}.npz"

  def _check(self) -> None:
    if self._error:
      raise self._error

  def _write(self) -> None:
    try:
      while True:
        with self._changed:
          while not self._waiting:
            if self._closed:
              return
            self._changed.wait(1.0)
          group = self._waiting[0]
        group_files.save_groups(self._path(group.id), [group], routing=True)
        self._ready(group.id)
        with self._changed:
          self._waiting.popleft()
          self._changed.notify_all()
    except BaseException as error:
      with self._changed:
        self._error = error
        self._changed.notify_all()


def _newest(group: Group) -> int:
  """The largest version of a token with loss in a group, or of the cache it was sampled from."""
  segments = [segment for each in group.trajectories for segment in each.segments]
  return max((max(int(s.versions.max(initial=-1)), s.began) for s in segments), default=-1)
