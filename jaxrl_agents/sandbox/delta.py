"""What changed in a file tree, as a list of entries and the bytes of its files.

An entry is `[kind, path, mode, mtime_ns, extra]`, parents before children:
  d  directory; extra is 1 where it hides all that layers below have there
  f  file; extra is a list of [offset, length]: the parts that are not holes, and last [size, 0]
  l  symbolic link; extra is its target       h  hard link; extra is the path of an earlier file
  p  named pipe                               w  whiteout: what layers below have there is gone
Bytes of files follow one another in the order of the entries. Sockets are left out.

`gather` reads the upper directory of an overlay, or a whole tree, inside of a sandbox;
`host.unpacking` makes a layer of what came.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from typing import Any

from jaxrl_agents.sandbox import holes, overlay
from jaxrl_agents.sandbox.errors import Refused

Entry = list[Any]
MODE_BITS = 0o1777  # no set-user-id
MAX_ENTRIES = 100_000
_MAX_NAMES_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_TIME_NS = 1 << 62  # the year 2116
MAX_FILE_BYTES = 1 << 40  # holes included: what file systems of hosts can hold
TOP = ("tmp", "work")


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
      fd = os.open(folder or ".", overlay.FOLDER, dir_fd=root)
    except OSError as error:
      raise Refused(f"/{folder[-200:]}: {error.strerror}; remove it") from None
    try:
      for name in sorted(os.listdir(fd)) if folder else TOP:
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
        if total > max_bytes or len(entries) > MAX_ENTRIES or named > _MAX_NAMES_BYTES:
          raise Refused(
            f"the changes are more than {max_bytes} bytes, {MAX_ENTRIES} files, or names and "
            f"holes of {_MAX_NAMES_BYTES} bytes; remove some"
          )
        if path.count("/") > MAX_DEPTH:
          raise Refused(f"/{path[:200]}: nested more than {MAX_DEPTH} deep; flatten the folders")
        if len(os.fsencode(path)) > overlay.MAX_PATH_BYTES:
          raise Refused(f"/{path[:200]}: the path is too long; shorten the names of the folders")
    finally:
      os.close(fd)
  return entries, total


def _entry(fd: int, name: str, path: str, seen: dict[tuple[int, int], str]) -> Entry | None:
  try:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
  except FileNotFoundError:  # of `work` and `tmp`, what never changed
    return None
  mode, mtime = found.st_mode & MODE_BITS, max(-MAX_TIME_NS, min(MAX_TIME_NS, found.st_mtime_ns))
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
  if found.st_size > MAX_FILE_BYTES:
    raise Refused(f"/{path[:200]}: {found.st_size} bytes with its holes; remove it")
  if found.st_nlink > 1:
    first = seen.setdefault((found.st_dev, found.st_ino), path)
    if first != path:
      return ["h", path, mode, mtime, first]
  return ["f", path, mode, mtime, _extents(fd, name, found)]


def _is_opaque(fd: int, name: str) -> bool:
  inner = os.open(name, overlay.FOLDER, dir_fd=fd)
  try:
    return overlay.hides_below(inner)
  finally:
    os.close(inner)


def _extents(fd: int, name: str, found: os.stat_result) -> list[list[int]]:
  size = found.st_size
  if found.st_blocks * 512 >= size:
    return [[0, size], [size, 0]] if size else [[0, 0]]
  file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)
  try:
    return [*map(list, holes.extents(file, size)), [size, 0]]
  finally:
    os.close(file)


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
