"""Folders in the form that overlayfs reads: opened, linked, removed.

A character device 0:0 stands for what is gone, the attribute OPAQUE on a folder for one that hides
those of layers below. Nothing here recurses, and no path is longer than PATH_MAX: a policy may nest
folders as deep as it likes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl_agents.sandbox import holes

OPAQUE = "user.overlay.opaque"
MAX_PATH_BYTES = 4095
"""Bytes of a path below the top of a layer: what the kernel takes at once."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hides_below(fd: int) -> bool:
  """Whether an open folder of a layer hides what layers below have there."""
  try:
    return os.getxattr(fd, OPAQUE) == b"y"
  except OSError:
    return False


def joined(folder: str, name: str) -> str:
  """The path of `name` in `folder`, which is "" for the top."""
  return f"{folder}/{name}" if folder else name


def open_folder(path: str, root: int) -> int:
  """Opens a folder below the open folder `root`, by a path of any length without links in it."""
  fd = os.open(".", FOLDER, dir_fd=root)
  try:
    while path:
      piece = path
      if len(path) * 4 > MAX_PATH_BYTES:  # a character has at most four bytes
        piece = path[: path.rfind("/", 0, MAX_PATH_BYTES // 4)] if "/" in path else path
      inner = os.open(piece, FOLDER, dir_fd=fd)
      os.close(fd)
      fd, path = inner, path[len(piece) + 1 :]
  except BaseException:
    os.close(fd)
    raise
  return fd


def folders(root: int) -> Iterator[tuple[str, int, list[os.DirEntry[str]]]]:
  """(path, descriptor, entries by name) of all folders below `root` and itself, parents first."""
  waiting = [""]
  while waiting:
    path = waiting.pop()
    fd = open_folder(path, root)
    try:
      with os.scandir(fd) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
      inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
      waiting += [joined(path, name) for name in reversed(inner)]
      yield path, fd, entries
    finally:
      os.close(fd)


class Links:
  """Gives files further names. Where a file has as many as the file system allows, a copy of it
  takes over. Invariant: `_copies` has the newest copy of each such file, by its inode.
  """

  def __init__(self, target: int):
    self._target = target
    self._copies: dict[tuple[int, int], str] = {}

  def add(self, source: int, path: str, new_path: str) -> None:
    """Links `path` below the open folder `source` to `new_path` below the target."""
    try:
      self._link(source, path, new_path)
      return
    except OSError as error:
      if error.errno != errno.EMLINK:
        raise
    found = os.stat(path, dir_fd=source, follow_symlinks=False)
    key = found.st_dev, found.st_ino
    if key in self._copies:
      try:
        self._link(self._target, self._copies[key], new_path)
        return
      except OSError as error:
        if error.errno != errno.EMLINK:
          raise
    self._copy(source, path, new_path)
    self._copies[key] = new_path

  def _link(self, source: int, path: str, new_path: str) -> None:
    os.link(path, new_path, src_dir_fd=source, dst_dir_fd=self._target, follow_symlinks=False)

  def _copy(self, source: int, path: str, new_path: str) -> None:
    found = os.stat(path, dir_fd=source, follow_symlinks=False)
    here: Any = {"dir_fd": self._target, "follow_symlinks": False}
    if stat.S_ISREG(found.st_mode):
      copy_file(source, path, self._target, new_path)
    elif stat.S_ISLNK(found.st_mode):
      os.symlink(os.readlink(path, dir_fd=source), new_path, dir_fd=self._target)
    else:
      os.mknod(new_path, found.st_mode, found.st_rdev, dir_fd=self._target)
    os.chown(new_path, found.st_uid, found.st_gid, **here)
    if not stat.S_ISLNK(found.st_mode):
      os.chmod(new_path, stat.S_IMODE(found.st_mode), dir_fd=self._target)
    os.utime(new_path, ns=(found.st_mtime_ns, found.st_mtime_ns), **here)


def copy_file(source: int, path: str, target: int, new_path: str) -> None:
  """Copies the content of a regular file between two open folders; holes stay holes."""
  fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
  try:
    copy_open_file(fd, target, new_path)
  finally:
    os.close(fd)


def copy_open_file(source: int, target: int, new_path: str) -> None:
  """Copies an open file to a new path below the open folder `target`; holes stay holes."""
  flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
  fd = os.open(new_path, flags, 0o600, dir_fd=target)
  try:
    holes.copy(source, fd)
  finally:
    os.close(fd)


def remove(path: str, check: Callable[[], None] = lambda: None) -> None:
  """Removes a file, a link, or a tree of any depth in which folders may forbid it.

  Folders are moved up beside one another before they are emptied, so that nothing recurses and no
  path grows too long. What resists is left, and the rest is removed.

  Args:
    check: called before each removal; what it raises ends the work.

  Raises:
    OSError: the first thing that could not be removed, and why.
  """
  problems: list[OSError] = []
  try:
    top = os.lstat(path)
  except FileNotFoundError:
    return
  if stat.S_ISDIR(top.st_mode):
    _empty(path, top.st_dev, problems, check)
    _try(problems, os.rmdir, path)
  else:
    _try(problems, os.unlink, path)
  if problems:
    raise problems[0]


def _empty(path: str, device: int, problems: list[OSError], check: Callable[[], None]) -> None:
  prefix, count = f"{path}/.removing-{os.urandom(8).hex()}-", 0
  waiting = [path]
  while waiting:
    here = waiting.pop()
    _try([], os.chmod, here, 0o700)  # where it fails, the next step may succeed all the same
    for entry in _scanned(here, device, problems):
      check()
      if not entry.is_dir(follow_symlinks=False):
        _try(problems, os.unlink, entry.path)
        continue
      place = entry.path
      if here != path:
        _try([], os.chmod, place, 0o700)  # a folder that may not be written to cannot be moved
        place, count = f"{prefix}{count}", count + 1
        if not _try(problems, os.rename, entry.path, place):
          place = entry.path
      waiting.append(place)
    if here != path:
      _try(problems, os.rmdir, here)


def _scanned(path: str, device: int, problems: list[OSError]) -> list[os.DirEntry[str]]:
  try:
    if os.lstat(path).st_dev != device:
      raise OSError(errno.EBUSY, "another file system is mounted there", path)
    with os.scandir(path) as listed:
      return list(listed)
  except FileNotFoundError:
    return []
  except OSError as error:
    problems.extend([error] if not problems else [])
    return []


def _try(problems: list[OSError], change: Callable[..., object], *arguments: object) -> bool:
  """Whether it was done, or there is nothing left to do; `problems` gets the first failure."""
  try:
    change(*arguments)
  except FileNotFoundError:
    pass
  except OSError as error:
    problems.extend([error] if not problems else [])
    return False
  return True
