"""Reading, writing and searching files from inside a sandbox (agent side).

Paths are resolved by the sandbox's own kernel view, so that a link leads nowhere else. Only regular
files are opened for good, and none of /proc: the agent's own entries there are not the policy's.
"""

from __future__ import annotations

import os
import stat

from jaxrl_agents.sandbox.errors import Refused

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
  """Writes the whole file; missing folders are made."""
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
  except OSError as error:
    raise Refused(f"{error.filename}: {error.strerror}") from None
  fd = _open_regular(path, os.O_WRONLY | os.O_CREAT, mode)
  try:
    os.ftruncate(fd, 0)
    view = memoryview(content)
    while view:
      view = view[os.write(fd, view) :]
    os.fchmod(fd, mode)
  except OSError as error:
    raise Refused(f"{path}: {error.strerror} after {len(content) - len(view)} bytes") from None
  finally:
    os.close(fd)


def find(root: str, needles: list[bytes], limit: int) -> tuple[list[str], int]:
  """Every visible file that contains one of `needles`, `limit` at most; and how many were read.

  The walk begins at `root` and leaves out /proc, /sys and /dev. Links are not followed: what
  they lead to is met where it lies.
  """
  found, searched = [], 0
  for folder, folders, names in os.walk(root):
    if folder == "/":
      folders[:] = [name for name in folders if name not in _SKIPPED]
    for name in names:
      path = os.path.join(folder, name)
      try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
          continue
        with open(path, "rb") as file:
          content = file.read()
      except OSError:
        continue
      searched += 1
      if any(needle in content for needle in needles):
        found.append(path)
        if len(found) == limit:
          return found, searched
  return found, searched
