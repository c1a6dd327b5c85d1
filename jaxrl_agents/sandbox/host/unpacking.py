"""Makes layers of the changes that agents send (see `delta`), and trusts none of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any

from jaxrl_agents.sandbox import delta, holes, overlay
from jaxrl_agents.sandbox.delta import Entry

_MAX_NAME_BYTES = 255
_BLOCK = 1 << 20
Body = Callable[[int], bytes | memoryview]
"""Gives the next bytes of the files, at most as many as asked for and at least one."""


def check(entries: Any, body_bytes: int) -> list[Entry]:
  """The entries, once they are known to stay inside a folder and to match the bytes that came.

  Raises:
    ValueError: what an honest agent would not send, with the entry.
  """
  if len(entries) > delta.MAX_ENTRIES:
    raise ValueError(f"a delta has {len(entries)} entries; at most {delta.MAX_ENTRIES} are allowed")
  folders, files, seen, total = {""}, set(), set(), 0
  for entry in entries:
    if not isinstance(entry, list) or len(entry) != 5:
      raise ValueError(f"an entry of a delta is no list of five: {entry!r:.300}")
    kind, path, _, _, extra = entry
    parent = _checked_parent(path)
    if parent not in folders or path in seen:
      raise ValueError(f"an entry of a delta is out of order or unsafe: {path[:200]!r}")
    seen.add(path)
    _check_status(entry)
    if kind == "d":
      folders.add(path)
    elif not parent:
      raise ValueError(f"an entry of a delta is no folder: {path!r}")
    elif kind == "f":
      total += _checked_length(extra, path)
      files.add(path)
    elif kind == "h":
      if not isinstance(extra, str) or extra not in files:
        raise ValueError(f"a hard link of a delta leads to an unknown file: {extra!r:.300}")
    elif kind == "l":
      if not _is_text(extra) or not extra:
        raise ValueError(f"a link of a delta has no target: {path!r:.300}")
    elif kind not in ("p", "w"):
      raise ValueError(f"a delta has an entry of unknown kind {kind!r:.300}")
  if total != body_bytes:
    raise ValueError(f"a delta tells of {total} bytes and brings {body_bytes}")
  return entries


def _checked_parent(path: Any) -> str:
  """The folder of a path, which is one that a file system takes below the top of a layer."""
  if not _is_text(path) or path.count("/") > delta.MAX_DEPTH:
    raise ValueError(f"a path of a delta is unsafe, too long or too deep: {path!r:.200}")
  parent, _, name = path.rpartition("/")
  if name in ("", ".", "..") or (not parent and path[0] == "/"):
    raise ValueError(f"a path of a delta is unsafe: {path[:200]!r}")
  if len(os.fsencode(name)) > _MAX_NAME_BYTES or (not parent and name not in delta.TOP):
    raise ValueError(f"an entry of a delta has an unsafe name: {path[:200]!r}")
  return str(parent)


def _check_status(entry: Entry) -> None:
  mode, mtime = entry[2], entry[3]
  if not isinstance(mode, int) or not isinstance(mtime, int) or mode & ~delta.MODE_BITS:
    raise ValueError(f"an entry of a delta has an unsafe mode: {entry[:4]!r:.300}")
  if abs(mtime) > delta.MAX_TIME_NS:
    raise ValueError(f"an entry of a delta has an impossible time: {entry[:4]!r:.300}")


def _is_text(text: Any) -> bool:
  """Whether the file system takes it for a path or for the target of a link."""
  try:
    is_text = isinstance(text, str) and "\0" not in text
    return is_text and len(os.fsencode(text)) <= overlay.MAX_PATH_BYTES
  except UnicodeEncodeError:
    return False


def _checked_length(extents: Any, path: str) -> int:
  end = total = 0
  if not isinstance(extents, list) or not extents:
    raise ValueError(f"a file of a delta has no size: {path!r:.300}")
  for extent in extents:
    if not isinstance(extent, list) or len(extent) != 2:
      raise ValueError(f"a file of a delta has unsafe extents: {path!r:.300}")
    offset, length = extent
    if not isinstance(offset, int) or not isinstance(length, int) or offset < end or length < 0:
      raise ValueError(f"a file of a delta has unsafe extents: {path!r:.300}")
    end, total = offset + length, total + length
  if extents[-1][1]:
    raise ValueError(f"a file of a delta has no size: {path!r:.300}")
  if end > delta.MAX_FILE_BYTES:
    raise ValueError(f"a file of a delta has more than {delta.MAX_FILE_BYTES} bytes: {path!r:.300}")
  return total


def slices(body: bytes | bytearray) -> Body:
  """The bytes of files that are in memory."""
  view, at = memoryview(body), 0

  def following(count: int) -> memoryview:
    nonlocal at
    at += count
    return view[at - count : at]

  return following


def unpack(
  entries: list[Entry],
  body: Body,
  folder: int,
  *,
  own: Callable[[str], None],
  check: Callable[[], None] = lambda: None,
) -> None:
  """Makes the tree of checked `entries` in the open folder, which nobody else reaches.

  Args:
    own: called with every path that was made, to give it to the sandboxes' user.
    check: called now and then; what it raises ends the work.

  Raises:
    OSError: the disk is full, say; what was made by then stays.
  """
  links = overlay.Links(folder)
  folders = []
  for entry in entries:
    check()
    kind, path, mode, mtime, extra = entry
    here: Any = {"dir_fd": folder, "follow_symlinks": False}
    if kind == "d":
      os.mkdir(path, 0o700, dir_fd=folder)
      folders.append(entry)
      continue
    if kind == "f":
      _unpack_file(entry, body, folder, check)
    elif kind == "l":
      os.symlink(extra, path, dir_fd=folder)
      os.utime(path, ns=(mtime, mtime), **here)
    elif kind == "h":
      links.add(folder, extra, path)
    elif kind == "p":
      os.mkfifo(path, dir_fd=folder)
      os.chmod(path, mode, dir_fd=folder)  # whatever the umask is
      os.utime(path, ns=(mtime, mtime), **here)
    elif kind == "w":
      os.mknod(path, stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)
    own(path)
  for _, path, mode, mtime, opaque in reversed(folders):
    fd = os.open(path, overlay.FOLDER, dir_fd=folder)
    try:
      if opaque:
        os.setxattr(fd, overlay.OPAQUE, b"y")
      own(path)
      os.utime(fd, ns=(mtime, mtime))
      os.fchmod(fd, mode)
    finally:
      os.close(fd)


def _unpack_file(entry: Entry, body: Body, folder: int, check: Callable[[], None]) -> None:
  _, path, mode, mtime, extents = entry
  fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
  try:
    for offset, length in extents:
      while length:
        check()
        part = body(min(length, _BLOCK))
        holes.write(fd, part, offset)
        offset, length = offset + len(part), length - len(part)
    os.ftruncate(fd, extents[-1][0])
    os.fchmod(fd, mode)
    os.utime(fd, ns=(mtime, mtime))
  finally:
    os.close(fd)
