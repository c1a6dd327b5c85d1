"""What a sandbox sees that starts from several layers, read folder by folder.

Each folder of each layer is listed at most once, so that the time grows with the entries of the
folders that are looked at, whatever a policy made of them.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxrl_agents.sandbox import overlay


class Found(NamedTuple):
  """What the newest layer that has a path has there.

  Attributes:
    kind: "f" file, "d" folder, "l" link, "p" pipe, "w" whiteout: nothing is to be seen.
    layer: its number among the layers.
    path: below the top of a layer.
    stack: of a folder, the numbers of the layers that may add to it, the newest first.
    ends: a layer further down has something else there, and hides those below it.
  """

  kind: str
  layer: int
  path: str
  stack: tuple[int, ...]
  ends: bool


class Layers:
  """Layers of a store, open for reading. A context manager.

  Invariant: layers do not change, but for the modes of folders that their owner may not read: such
  ones are opened while any reader of this process needs them (`_opened_up`).

  Args:
    folder: of the store.
    names: of the layers, the newest first.
    check: called now and then; what it raises ends the work.
  """

  def __init__(
    self, folder: pathlib.Path, names: Sequence[str], check: Callable[[], None] = lambda: None
  ):
    self.all = tuple(range(len(names)))
    self.check = check
    self._held: list[tuple[tuple[int, int], int, str]] = []
    self._shown: dict[str, dict[str, Found]] = {}
    self._fds: list[int] = []
    with contextlib.ExitStack() as opened:
      for name in names:
        self._fds.append(os.open(folder / name, overlay.FOLDER))
        opened.callback(os.close, self._fds[-1])
      self._opened = opened.pop_all()

  def __enter__(self) -> Layers:
    return self

  def __exit__(self, *_: object) -> None:
    for key, layer, path in reversed(self._held):
      _close_again(key, path, self._fds[layer])
    self._opened.close()

  def listing(self, path: str, stack: tuple[int, ...]) -> tuple[dict[str, Found], bool]:
    """{name: what is there} of a folder, whiteouts too; and whether it hides what lies deeper."""
    found: dict[str, Found] = {}
    closed: set[str] = set()
    for layer in stack:
      self.check()
      fd = self._open_folder(layer, path)
      try:
        with os.scandir(fd) as entries:
          for entry in entries:
            name = entry.name
            known = found.get(name)
            if known is not None and name in closed:
              continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder:
              closed.add(name)
            if known is None:
              kind = "d" if is_folder else _kind(entry)
              inner = (layer,) if is_folder else ()
              found[name] = Found(kind, layer, overlay.joined(path, name), inner, False)
            elif is_folder:
              found[name] = known._replace(stack=(*known.stack, layer))
            else:
              found[name] = known._replace(ends=True)
        if overlay.hides_below(fd):
          return found, True
      finally:
        os.close(fd)
    return found, False

  def shown(self, path: str) -> dict[str, Found]:
    """{name: what is there} of a folder of all layers; empty where no folder is to be seen."""
    known, at = self._shown, path
    while at and at not in known:
      at = at.rpartition("/")[0]
    if at not in known:
      known[""] = _visible(self.listing("", self.all)[0])
    while at != path:
      name = path[len(at) + bool(at) :].partition("/")[0]
      inner = known[at].get(name)
      at = overlay.joined(at, name)
      stack = inner.stack if inner else ()
      known[at] = _visible(self.listing(at, stack)[0]) if stack else {}
    return known[path]

  def find(self, path: str) -> Found | None:
    """What is to be seen at a path."""
    folder, _, name = path.rpartition("/")
    return self.shown(folder).get(name)

  def below(self, folder: Found) -> Iterator[Found]:
    """All that is to be seen below a folder, parents before children."""
    waiting = [folder]
    while waiting:
      here = waiting.pop()
      for found in _visible(self.listing(here.path, here.stack)[0]).values():
        yield found
        if found.kind == "d":
          waiting.append(found)

  def differing(
    self, path: str, new: tuple[int, ...], old: tuple[int, ...]
  ) -> Iterator[tuple[Found | None, Found | None]]:
    """(new, old) of all below the folder `path` that two choices of layers show differently.

    Folders are not told, only what is in them; those that all come from the same layers are
    passed over.
    """
    waiting = [(path, new, old)]
    while waiting:
      path, new, old = waiting.pop()
      if new == old:
        continue
      ours, theirs = (_visible(self.listing(path, s)[0]) if s else {} for s in (new, old))
      for name in ours.keys() | theirs.keys():
        here, there = ours.get(name), theirs.get(name)
        new, old = here.stack if here else (), there.stack if there else ()
        if new or old:
          waiting.append((overlay.joined(path, name), new, old))
        files = [None if found is None or found.kind == "d" else found for found in (here, there)]
        if files[0] != files[1]:
          yield files[0], files[1]

  def stat(self, found: Found) -> os.stat_result:
    """The status of what was found, links not followed (see `mode` for the mode)."""
    return os.stat(found.path, dir_fd=self._fds[found.layer], follow_symlinks=False)

  def mode(self, found: Found) -> int:
    """The permission bits, as they are when no reader opens the folder up."""
    with _lock:
      status = self.stat(found)
      opened = _opened_up.get((status.st_dev, status.st_ino))
      return stat.S_IMODE(opened[0] if opened else status.st_mode)

  def target(self, found: Found) -> str:
    """What a link leads to."""
    return os.readlink(found.path, dir_fd=self._fds[found.layer])

  def fd_of(self, layer: int) -> int:
    """The descriptor of the top of a layer; it stays this object's."""
    return self._fds[layer]

  def open(self, found: Found) -> int:
    """Opens a regular file for reading, whatever its mode is."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    place = self._fds[found.layer]
    try:
      return os.open(found.path, flags, dir_fd=place)
    except PermissionError:
      with _lock:
        mode = stat.S_IMODE(os.stat(found.path, dir_fd=place, follow_symlinks=False).st_mode)
        os.chmod(found.path, mode | 0o400, dir_fd=place)
        try:
          return os.open(found.path, flags, dir_fd=place)
        finally:
          os.chmod(found.path, mode, dir_fd=place)

  def _open_folder(self, layer: int, path: str) -> int:
    place = self._fds[layer]
    if os.geteuid() == 0:
      return os.open(path or ".", overlay.FOLDER, dir_fd=place)
    with _lock:
      status = os.stat(path or ".", dir_fd=place, follow_symlinks=False)
      key = status.st_dev, status.st_ino
      mode, readers = _opened_up.get(key, (stat.S_IMODE(status.st_mode), 0))
      if mode & 0o500 != 0o500:
        os.chmod(path or ".", mode | 0o700, dir_fd=place)
        _opened_up[key] = mode, readers + 1
        self._held.append((key, layer, path))
    return os.open(path or ".", overlay.FOLDER, dir_fd=place)


_lock = threading.Lock()
_opened_up: dict[tuple[int, int], tuple[int, int]] = {}
"""{inode of a folder: (its mode, readers that need it open)}."""


def _close_again(key: tuple[int, int], path: str, place: int) -> None:
  with _lock:
    mode, readers = _opened_up.pop(key)
    if readers > 1:
      _opened_up[key] = mode, readers - 1
      return
    with contextlib.suppress(OSError):  # the layer was removed meanwhile
      os.chmod(path or ".", mode, dir_fd=place)


def _kind(entry: os.DirEntry[str]) -> str:
  if entry.is_symlink():
    return "l"
  if entry.is_file(follow_symlinks=False):
    return "f"
  return "w" if stat.S_ISCHR(entry.stat(follow_symlinks=False).st_mode) else "p"


def _visible(listing: dict[str, Found]) -> dict[str, Found]:
  return {name: found for name, found in listing.items() if found.kind != "w"}
