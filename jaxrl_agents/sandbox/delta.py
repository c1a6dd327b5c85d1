"""What changed in a file tree, as a list of entries and the bytes of its files.

An entry is `[kind, path, mode, mtime_ns, extra]`, parents before children:
  d  directory; extra is 1 where it hides all that layers below have there
  f  file; extra is a list of [offset, length]: the parts that are not holes, and last [size, 0]
  l  symbolic link; extra is its target       h  hard link; extra is the path of an earlier file
  p  named pipe                               w  whiteout: what layers below have there is gone
Bytes of files follow one another in the order of the entries. Sockets are left out.

`gather` reads the upper directory of an overlay, or a whole tree (agent side); `unpack` makes a
layer of what came (host side) and trusts none of it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from typing import Any

from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.overlay import OPAQUE

Entry = list[Any]
_MODE_BITS = 0o1777  # no set-user-id
_MAX_ENTRIES = 100_000
_MAX_NAMES_BYTES = 16 << 20
_MAX_DEPTH = 64
_MAX_FILE_BYTES = 1 << 40  # holes included: what file systems of hosts can hold
_MAX_TIME_NS = 1 << 62
_BLOCK = 1 << 20


_TOP = ("tmp", "work")


def gather(root: int, max_bytes: int, *, is_whole: bool) -> tuple[list[Entry], int]:
  """The entries of `work` and `tmp` in the open directory `root`, and the bytes of their files.

  Args:
    is_whole: these are all files, not only those that changed: they hide all layers below.

  Raises:
    Refused: more than `max_bytes`, too many or too long names, or folders nested too deep.
  """
  entries: list[Entry] = []
  seen: dict[tuple[int, int], str] = {}
  total, named, waiting = 0, 0, [""]
  while waiting:
    folder = waiting.pop()
    try:
      fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    except OSError as error:
      raise Refused(f"/{folder[-200:]}: {error.strerror}; remove it") from None
    try:
      for name in sorted(os.listdir(fd)) if folder else _TOP:
        path = f"{folder}/{name}" if folder else name
        entry = _entry(fd, name, path, seen)
        if entry is None:
          continue
        if is_whole and not folder:
          entry[4] = 1
        entries.append(entry)
        if entry[0] == "d":
          waiting.append(path)
        if entry[0] == "f":
          total += sum(length for _, length in entry[4])
        named += len(json.dumps(entry))
        if total > max_bytes or len(entries) > _MAX_ENTRIES or named > _MAX_NAMES_BYTES:
          raise Refused(
            f"the changes are more than {max_bytes} bytes, {_MAX_ENTRIES} files, or names and "
            f"holes of {_MAX_NAMES_BYTES} bytes; remove some"
          )
        if path.count("/") > _MAX_DEPTH:
          raise Refused(f"/{path[:200]}: nested more than {_MAX_DEPTH} deep; flatten the folders")
    finally:
      os.close(fd)
  return entries, total


def _entry(fd: int, name: str, path: str, seen: dict[tuple[int, int], str]) -> Entry | None:
  try:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
  except FileNotFoundError:  # of `work` and `tmp`, what never changed
    return None
  mode, mtime = found.st_mode & _MODE_BITS, found.st_mtime_ns
  kind = stat.S_IFMT(found.st_mode)
  if kind == stat.S_IFDIR:
    return ["d", path, mode, mtime, int(_is_opaque(fd, name))]
  if kind == stat.S_IFLNK:
    return ["l", path, mode, mtime, os.readlink(name, dir_fd=fd)]
  if kind == stat.S_IFCHR and found.st_rdev == 0:
    return ["w", path, 0, mtime, 0]
  if kind == stat.S_IFIFO:
    return ["p", path, mode, mtime, 0]
  if kind != stat.S_IFREG:
    return None
  if found.st_nlink > 1:
    first = seen.setdefault((found.st_dev, found.st_ino), path)
    if first != path:
      return ["h", path, mode, mtime, first]
  return ["f", path, mode, mtime, _extents(fd, name, found)]


def _is_opaque(fd: int, name: str) -> bool:
  inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
  try:
    return os.getxattr(inner, OPAQUE) == b"y"
  except OSError:
    return False
  finally:
    os.close(inner)


def _extents(fd: int, name: str, found: os.stat_result) -> list[list[int]]:
  size = found.st_size
  if found.st_blocks * 512 >= size:
    return [[0, size], [size, 0]] if size else [[0, 0]]
  extents, offset = [], 0
  file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)
  try:
    while offset < size:
      try:
        start = os.lseek(file, offset, os.SEEK_DATA)
      except OSError:  # nothing but a hole is left
        break
      offset = os.lseek(file, start, os.SEEK_HOLE)
      extents.append([start, offset - start])
  finally:
    os.close(file)
  return [*extents, [size, 0]]


def send_files(root: int, entries: Iterable[Entry], out_fd: int) -> None:
  """Writes the bytes of the files that `gather` listed to `out_fd`."""
  for kind, path, _, _, extra in entries:
    if kind != "f":
      continue
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=root)
    try:
      for offset, length in extra:
        while length:
          sent = os.sendfile(out_fd, file, offset, length)
          if not sent:
            raise OSError(f"{path} shrank while it was read")
          offset, length = offset + sent, length - sent
    finally:
      os.close(file)


def check(entries: Any, body_bytes: int) -> list[Entry]:
  """The entries, once they are known to stay inside a folder and to match the bytes that came.

  Raises:
    ValueError: what an honest agent would not send, with the entry.
  """
  folders, files, total = {""}, set(), 0
  if len(entries) > _MAX_ENTRIES:
    raise ValueError(f"a delta has {len(entries)} entries; at most {_MAX_ENTRIES} are allowed")
  for entry in entries:
    kind, path, mode, mtime, extra = entry
    if not isinstance(path, str) or path.count("/") > _MAX_DEPTH:
      raise ValueError(f"a path of a delta is no text or too deep: {str(path)[:200]!r}")
    parent, _, name = path.rpartition("/")
    if parent not in folders or name in ("", ".", "..") or "\0" in path or path in files:
      raise ValueError(f"an entry of a delta is out of order or unsafe: {path[:200]!r}")
    if not isinstance(mode, int) or not isinstance(mtime, int) or mode & ~_MODE_BITS:
      raise ValueError(f"an entry of a delta has an unsafe mode: {entry[:4]!r}"[:300])
    if abs(mtime) > _MAX_TIME_NS:
      raise ValueError(f"an entry of a delta has an impossible time: {entry[:4]!r}"[:300])
    if kind == "d":
      folders.add(path)
    elif kind == "f":
      total += _checked_length(extra, path)
    elif kind == "h" and extra not in files:
      raise ValueError(f"a hard link of a delta leads to an unknown file: {extra!r}"[:300])
    elif kind == "l" and not isinstance(extra, str):
      raise ValueError(f"a link of a delta has no target: {path!r}"[:300])
    elif kind not in "flhpw":
      raise ValueError(f"a delta has an entry of unknown kind {kind!r}"[:300])
    files.add(path)
  if total != body_bytes:
    raise ValueError(f"a delta tells of {total} bytes and brings {body_bytes}")
  return entries


def _checked_length(extents: Any, path: str) -> int:
  end = total = 0
  for offset, length in extents:
    if not isinstance(offset, int) or not isinstance(length, int) or offset < end or length < 0:
      raise ValueError(f"a file of a delta has unsafe extents: {path!r}"[:300])
    end, total = offset + length, total + length
  if end > _MAX_FILE_BYTES:
    raise ValueError(f"a file of a delta is larger than {_MAX_FILE_BYTES} bytes: {path!r}"[:300])
  return total


def unpack(entries: list[Entry], body: bytes, folder: str, own: Callable[[str], None]) -> None:
  """Makes the tree of checked `entries` in `folder`, which is new and reached by nobody else.

  Args:
    own: called with every path that was made, to give it to the sandboxes' user.
  """
  view, at = memoryview(body), 0
  folders = []
  for kind, path, mode, mtime, extra in entries:
    target = os.path.join(folder, path)
    if kind == "d":
      os.mkdir(target, 0o700)
      folders.append((target, mode, mtime, extra))
      continue
    if kind == "f":
      with open(target, "xb", buffering=0) as file:
        for offset, length in extra:
          if length:
            file.seek(offset)
            file.write(view[at : at + length])
          else:
            file.truncate(offset)
          at += length
        os.fchmod(file.fileno(), mode)
        os.utime(file.fileno(), ns=(mtime, mtime))
    elif kind == "l":
      os.symlink(extra, target)
      os.utime(target, ns=(mtime, mtime), follow_symlinks=False)
    elif kind == "h":
      os.link(os.path.join(folder, extra), target, follow_symlinks=False)
    elif kind == "p":
      os.mkfifo(target)
      os.chmod(target, mode)  # whatever the umask is
      os.utime(target, ns=(mtime, mtime))
    elif kind == "w":
      os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
    own(target)
  for target, mode, mtime, opaque in reversed(folders):
    if opaque:
      os.setxattr(target, OPAQUE, b"y")
    own(target)
    os.utime(target, ns=(mtime, mtime))
    os.chmod(target, mode)
