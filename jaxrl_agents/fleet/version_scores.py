"""Scores of published versions of the weights: one result a version, whoever evaluates. No jax.

    W/evaluations/v0000000012.json                      a result: version, step, scores, digest
    W/evaluations/v0000000012.HOST-PID-XXXX.claim       somebody evaluates this version
    W/evaluations/v0000000012.0.holder                  names the first claim that was granted

A claim is granted by the link of a file with its name to the first holder that is not there. A
later holder is only tried when the claims that all earlier ones name count no more, and holders are
never removed: so one of several processes that come at once has the version, whatever their order.

A result is written into the file of its claim, and then linked to its name. The link fails if there
is a result already, and if the claim is gone because the learner withdrew the version meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import re
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any

import psutil

from jaxrl_agents import file_digests, full_disk

_RESULT = re.compile(r"v(\d{10})\.json")
_CLAIM = re.compile(r"v(\d{10})\.(.+)-(\d+)-[0-9a-f]+\.claim")


class VersionScores:
  """The results of a run, and the claims of those who work on further ones.

  Any number of processes, also of several machines that share the disk, may have one.

  Invariant: a version has at most one result, and at most one claim that was granted and counts.

  Args:
    folder: of the results; made if missing.
    deadline_s: a claim that is older, or whose process is gone from this machine, counts no more.
  """

  def __init__(self, folder: pathlib.Path, deadline_s: float):
    self._folder, self._deadline_s = folder, deadline_s
    folder.mkdir(parents=True, exist_ok=True)

  def newest(self) -> tuple[int, int] | None:
    """(version, step) of the newest result that can be read; None if there is none."""
    for path in sorted(self._folder.glob("v*.json"), reverse=True):
      with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = file_digests.read_record(path.read_bytes())
        return int(record["version"]), int(record["step"])
    return None

  def claim(self, version: int) -> pathlib.Path | None:
    """The claim of a version, which this process evaluates from now on; None if another one does or
    there is a result.
    """
    if self._result(version).exists():
      return None
    name = f"v{version:010d}.{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.claim"
    own = self._folder / name
    own.touch()
    # An evaluator that ended meanwhile made its result before it removed its claim.
    if self._granted(version, own) and not self._result(version).exists():
      return own
    own.unlink(missing_ok=True)
    return None

  def keep(self, claim: pathlib.Path, record: Mapping[str, Any]) -> bool:
    """Makes a record the result of the version that was claimed; False if there is one already, or
    if the version was withdrawn.
    """
    match = _CLAIM.fullmatch(claim.name)
    assert match, claim
    text = json.dumps(file_digests.with_digest(record)) + "\n"
    try:
      with full_disk.named(self._folder), claim.open("r+") as file:  # which does not make it
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
      os.link(claim, self._result(int(match[1])))
    except (FileNotFoundError, FileExistsError):
      return False
    finally:
      claim.unlink(missing_ok=True)
    return True

  def withdraw_after(self, version: int) -> None:
    """Removes results and claims of later versions, which a resumed run will publish again."""
    for path in self._folder.iterdir():
      match = _RESULT.fullmatch(path.name) or _CLAIM.fullmatch(path.name)
      if match and int(match[1]) > version:
        path.unlink(missing_ok=True)

  def _result(self, version: int) -> pathlib.Path:
    return self._folder / f"v{version:010d}.json"

  def _granted(self, version: int, own: pathlib.Path) -> bool:
    """Whether a claim becomes the holder of its version; removes claims of holders that count no
    more.
    """
    fresh = own.with_suffix(".partial")
    try:
      with full_disk.named(self._folder):
        fresh.write_text(own.name)
      for number in itertools.count():
        holder = self._folder / f"v{version:010d}.{number}.holder"
        try:
          os.link(fresh, holder)
          return True
        except FileExistsError:
          other = self._folder / holder.read_text()
        if other == own:  # NFS made the link, and its answer was lost
          return True
        if self._counts(other):
          return False
        if _CLAIM.fullmatch(other.name):
          other.unlink(missing_ok=True)
    finally:
      fresh.unlink(missing_ok=True)
    raise AssertionError("the count has no end")

  def _counts(self, claim: pathlib.Path) -> bool:
    match = _CLAIM.fullmatch(claim.name)
    if not match:
      return False
    if match[2] == socket.gethostname() and not psutil.pid_exists(int(match[3])):
      return False
    try:
      return time.time() - claim.stat().st_mtime < self._deadline_s
    except FileNotFoundError:
      return False
