"""An append-only file of records that survives a process that is killed at any byte.

The file begins with MAGIC. A record is MARK, the length of its content (4 bytes, little endian), a
blake2b digest of length and content (8 bytes), and the content, JSON in ASCII, in which MARK cannot
occur. A record that was being written when its process died lies at the end: it is cut off at the
next start, and named. Damage anywhere else is an error, since cutting there would lose records that
were complete.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxrl_agents import durable, full_disk

MAGIC = b"jaxrl log 1\n"
MARK = b"\xa5\xd6\xb7\xe9"
_HEAD = len(MARK) + 4 + 8

Record = Mapping[str, Any]


class DamagedLog(ValueError):
  """Bytes in the middle of a log are not what was written; the message names the place."""


@dataclasses.dataclass(frozen=True)
class Torn:
  """The end of a log that was cut off.

  Attributes:
    at: the byte at which it began.
    size: how many bytes it had.
  """

  at: int
  size: int

  def __str__(self) -> str:
    return (
      f"the last {self.size} bytes, from byte {self.at} on, were the beginning of a record that a "
      "crash cut off; they are removed"
    )


class Log:
  """A log that is open for appending, by one process at a time.

  Invariant: the file is MAGIC and whole records, but for the record that is being written.

  Args:
    path: of the file; made if it is not there.

  Attributes:
    torn: what was cut off the end as it was opened; None if nothing was.

  Raises:
    DamagedLog: see `scan`.
    BlockingIOError: another process has it open.
    FullDiskError: there is no room.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115
    try:
      try:
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError as error:
        text = "another process has it open; end that one, or name another file"
        raise BlockingIOError(error.errno, text, str(self.path)) from None
      content = self.path.read_bytes()
      fresh = _is_fresh(content)
      whole = 0 if fresh else max(_ends(content, self.path), default=len(MAGIC))
      self.torn = Torn(whole, len(content) - whole) if len(content) > whole else None
      if self.torn:
        self._file.truncate(whole)
      with full_disk.named(self.path):
        if fresh:
          self._write(MAGIC)
        os.fsync(self._file.fileno())
        if fresh:
          durable.sync(self.path.parent)
    except BaseException:
      self._file.close()
      raise

  def __enter__(self) -> Log:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def append(self, record: Record, *, durable: bool = False) -> int:
    """Adds a record; returns the byte at which it begins, see `read_at`.

    Args:
      record: to be written as JSON.
      durable: whether to wait until it, and all before it, would survive a loss of power. A killed
        process loses none that was added.

    Raises:
      FullDiskError: there is no room; the log is as it was before.
    """
    before = self._file.seek(0, os.SEEK_END)
    try:
      with full_disk.named(self.path):
        self._write(packed(record))
        if durable:
          os.fsync(self._file.fileno())
    except OSError:
      self._file.truncate(before)
      raise
    return before

  @property
  def size(self) -> int:
    """Bytes of the file."""
    return os.fstat(self._file.fileno()).st_size

  def sync(self) -> None:
    """Waits until all records would survive a loss of power.

    Raises:
      FullDiskError: there is no room.
    """
    with full_disk.named(self.path):
      os.fsync(self._file.fileno())

  def close(self) -> None:
    """Closes the file, durably.

    Raises:
      FullDiskError: there is no room for what the system has not written yet.
    """
    if not self._file.closed:
      try:
        self.sync()
      finally:
        self._file.close()

  def _write(self, content: bytes) -> None:
    view = memoryview(content)
    while view:
      view = view[self._file.write(view) :]


def rewritten(log: Log, records: Iterable[Record]) -> tuple[Log, list[int]]:
  """Replaces the file of a log, atomically and durably.

  Args:
    log: is closed; its file can be read while `records` are drawn.
    records: all that the new file will have.

  Returns:
    (the new log, open at the same path; the byte at which each record begins)

  Raises:
    FullDiskError: there is no room; the log is open, and as it was before.
  """
  path = log.path.with_suffix(".new")
  path.unlink(missing_ok=True)
  fresh = Log(path)
  try:
    begins = [fresh.append(record) for record in records]
    fresh.sync()
    os.replace(path, log.path)
  except BaseException:
    path.unlink(missing_ok=True)
    fresh._file.close()
    raise
  log._file.close()
  fresh.path = log.path
  durable.sync(log.path.parent)
  return fresh, begins


def packed(record: Record) -> bytes:
  """The bytes of a record."""
  content = json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii")
  size = len(content).to_bytes(4, "little")
  return MARK + size + _digest(size, content) + content


def read_at(path: str | os.PathLike[str], begin: int) -> dict[str, Any]:
  """The record that begins at a byte.

  Raises:
    DamagedLog: there is no whole one.
  """
  with open(path, "rb") as file:
    file.seek(begin)
    head = file.read(_HEAD)
    content = head + file.read(int.from_bytes(head[len(MARK) : len(MARK) + 4], "little"))
  if _end(content, 0) != len(content):
    raise DamagedLog(f"{path} has no whole record at byte {begin}; restore it, or remove it")
  return json.loads(content[_HEAD:])


def scan(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
  """The whole records of a log, in order; a record that is torn at its end is left out.

  Raises:
    FileNotFoundError, DamagedLog: see `places`.
  """
  return (record for *_, record in places(path))


def places(path: str | os.PathLike[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
  """The records of a log, each with the bytes at which it begins and ends.

  Raises:
    FileNotFoundError: there is no log.
    DamagedLog: the file is no log, or a record is damaged and whole ones follow.
  """
  content = pathlib.Path(path).read_bytes()
  if _is_fresh(content):
    return
  begin = len(MAGIC)
  for end in _ends(content, pathlib.Path(path)):
    yield begin, end, json.loads(content[begin + _HEAD : end])
    begin = end


def _is_fresh(content: bytes) -> bool:
  """Whether a log was made and its first line was not written in full."""
  return len(content) < len(MAGIC) and MAGIC.startswith(content)


def _ends(content: bytes, path: pathlib.Path) -> Iterator[int]:
  """Where each whole record ends."""
  if not content.startswith(MAGIC):
    raise DamagedLog(f"{path} does not begin as a log; name another file, or move this one away")
  begin = len(MAGIC)
  while begin < len(content):
    end = _end(content, begin)
    if not end:
      break
    yield end
    begin = end
  later = content.find(MARK, begin + 1)
  while later >= 0:
    if _end(content, later):
      raise DamagedLog(
        f"{path} is damaged at byte {begin}, and whole records follow from byte {later}; restore "
        "it from a copy, or cut it at the first of these bytes to give up what follows"
      )
    later = content.find(MARK, later + 1)


def _end(content: bytes, begin: int) -> int:
  """Where the record that begins at a byte ends; 0 if there is no whole one."""
  head = content[begin : begin + _HEAD]
  if len(head) < _HEAD or not head.startswith(MARK):
    return 0
  size = head[len(MARK) : len(MARK) + 4]
  end = begin + _HEAD + int.from_bytes(size, "little")
  found = content[begin + _HEAD : end]
  whole = end <= len(content) and _digest(size, found) == head[len(MARK) + 4 :]
  return end if whole else 0


def _digest(size: bytes, content: bytes) -> bytes:
  return hashlib.blake2b(size + content, digest_size=8).digest()
