"""Reading, writing and searching files from inside a sandbox (agent side).

Paths are resolved by the sandbox's own kernel view, so that a link leads nowhere else. Only regular
files are opened for good, and none of /proc: the agent's own entries there are not the policy's.
"""

from __future__ import annotations

import errno
import os
import stat

from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.holes import extents

_SKIPPED = ("proc", "sys", "dev")
_BLOCK = 1 << 20


def _open_regular(path: str, flags: int, mode: int = 0) -> int:
  try:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, mode)
  except OSError as error:
    raise Refused(f"{path}: {error.strerror}") from None
  found = os.fstat(fd)
  if not stat.S_ISREG(found.st_mode):
    os.close(fd)
    kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no regular file"
    raise Refused(f"{path} is {kind}; use a command for it")
  if found.st_dev == os.stat("/proc").st_dev:
    os.close(fd)
    raise Refused(f"{path} belongs to /proc; use a command for it")
  return fd


def read(path: str, offset: int, limit: int) -> tuple[int, bytes]:
  """Size of the file, and up to `limit` bytes of it from `offset`."""
  fd = _open_regular(path, os.O_RDONLY)
  try:
    size = os.fstat(fd).st_size
    parts = []
    while limit > 0 and (part := os.pread(fd, min(limit, _BLOCK), offset)):
      parts.append(part)
      offset, limit = offset + len(part), limit - len(part)
    return size, b"".join(parts)
  except OSError as error:
    raise Refused(f"{path}: {error.strerror}") from None
  finally:
    os.close(fd)


def write(path: str, content: bytes, mode: int) -> None:
  """Writes the whole file; missing folders are made. `mode` is that of a new file. Where the disk
  has no room for the new content, a file stays as it was.
  """
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
  except OSError as error:
    raise Refused(f"{error.filename}: {error.strerror}") from None
  is_new = not os.path.lexists(path)
  fd = _open_regular(path, os.O_WRONLY | os.O_CREAT, mode)
  view = memoryview(content)
  try:
    _reserve(fd, len(content))
    while view:
      view = view[os.write(fd, view) :]
    os.ftruncate(fd, len(content))
    if is_new:
      os.fchmod(fd, mode)
  except OSError as error:
    raise Refused(f"{path}: {error.strerror} after {len(content) - len(view)} bytes") from None
  finally:
    os.close(fd)


def _reserve(fd: int, size: int) -> None:
  """Takes the space for `size` bytes, where the file system can do that.

  Raises:
    OSError: there is not so much; the file has its size again.
  """
  before = os.fstat(fd).st_size
  try:
    if size:
      os.posix_fallocate(fd, 0, size)
  except OSError as error:
    os.ftruncate(fd, before)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      raise


def find(root: str, needles: list[bytes], limit: int) -> tuple[list[str], int]:
  """Every visible file that contains one of `needles`, `limit` at most; and how many were read.

  The walk begins at `root` and leaves out /proc, /sys and /dev. Links are not followed: what
  they lead to is met where it lies. Folders may be nested to any depth, holes are not searched, and
  a file of several names is read once.
  """
  found: list[str] = []
  searched = 0
  of_several_names: dict[tuple[int, int], bool] = {}
  top = os.open(root, overlay.FOLDER)
  try:
    waiting = [""]
    while waiting:
      folder = waiting.pop()
      try:
        fd = overlay.open_folder(folder, top)
      except OSError:
        continue
      try:
        names, folders = _listed(fd)
        if root == "/" and not folder:
          folders = [name for name in folders if name not in _SKIPPED]
        waiting += [overlay.joined(folder, name) for name in reversed(folders)]
        for name in names:
          holds = _holds(fd, name, needles, of_several_names)
          searched += holds is not None
          if holds:
            found.append(os.path.join(root, overlay.joined(folder, name)))
            if len(found) == limit:
              return found, searched
      finally:
        os.close(fd)
  finally:
    os.close(top)
  return found, searched


def _listed(fd: int) -> tuple[list[str], list[str]]:
  """Names of the files, and of the folders, of an open folder."""
  names: list[str] = []
  folders: list[str] = []
  with os.scandir(fd) as entries:
    for entry in entries:
      (folders if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
  return names, folders


def _holds(
  fd: int, name: str, needles: list[bytes], of_several_names: dict[tuple[int, int], bool]
) -> bool | None:
  """Whether a file in an open folder contains one of `needles`; None if it cannot be read."""
  try:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(name, flags, dir_fd=fd)
  except OSError:
    return None
  try:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
      return None
    key = status.st_dev, status.st_ino
    if key not in of_several_names:
      holds = _searched(file, status, needles)
      if status.st_nlink == 1:
        return holds
      of_several_names[key] = holds
    return of_several_names[key]
  except OSError:
    return None
  finally:
    os.close(file)


def _searched(file: int, status: os.stat_result, needles: list[bytes]) -> bool:
  """Whether an open file contains one of `needles`, read in blocks that overlap."""
  size, overlap = status.st_size, max(map(len, needles)) - 1
  parts: list[tuple[int, int]] = [(0, size)]
  if status.st_blocks * 512 < size:
    # Beside its data a hole is read as far as a needle may reach into it.
    parts = [(offset - overlap, length + 2 * overlap) for offset, length in extents(file, size)]
  for start, length in parts:
    offset, end = max(0, start), min(size, start + length)
    tail = b""
    while offset < end and (block := os.pread(file, min(_BLOCK, end - offset), offset)):
      text = tail + block
      if any(needle in text for needle in needles):
        return True
      offset, tail = offset + len(block), text[-overlap:]
  return False
