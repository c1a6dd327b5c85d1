"""Layers of files in the form overlayfs reads: seen through, laid over one another, removed.

A character device 0:0 stands for what is gone, the attribute OPAQUE on a folder for one that hides
those of layers below.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

OPAQUE = "user.overlay.opaque"


def find(
  root: pathlib.Path, layers: tuple[str, ...], path: str
) -> tuple[str, os.stat_result] | None:
  """Where `path` really lies in the newest of `layers` that has it; None if none does.

  Links are not followed.
  """
  for layer in layers:
    found = _find_in(root / layer, path)
    if found:
      return None if stat.S_ISCHR(found[1].st_mode) else found
    if _ends_at(root / layer, path):
      return None
  return None


def walk(root: pathlib.Path, layers: tuple[str, ...], folder: str) -> Iterator[str]:
  """Every path below `folder`, as a sandbox that starts from `layers` sees it."""
  names: set[str] = set()
  for layer in layers:
    found = _find_in(root / layer, folder)
    if found and stat.S_ISDIR(found[1].st_mode):
      with opened_up(found[0]):
        names.update(os.listdir(found[0]))
    if _ends_at(root / layer, folder):
      break
  for name in sorted(names):
    path = f"{folder}/{name}"
    at = find(root, layers, path)
    if at:
      yield path
      if stat.S_ISDIR(at[1].st_mode):
        yield from walk(root, layers, path)


def files(root: pathlib.Path, layers: tuple[str, ...], folder: str) -> dict[str, str]:
  """{path below `folder`: where it really lies} of the regular files that `walk` would yield.

  One pass over each layer, the oldest first: the time it takes is in proportion to the entries.
  """
  top: dict[str, Any] = {}
  for layer in reversed(layers):
    waiting = [(top, str(root / layer / folder))]
    while waiting:
      known, place = waiting.pop()
      if not os.path.isdir(place) or os.path.islink(place):
        continue
      with opened_up(place), os.scandir(place) as entries:
        for entry in entries:
          mode = entry.stat(follow_symlinks=False).st_mode
          if stat.S_ISDIR(mode):
            older = known.get(entry.name)
            if not isinstance(older, dict) or hides_below(entry.path):
              known[entry.name] = older = {}
            waiting.append((older, entry.path))
          elif stat.S_ISREG(mode):
            known[entry.name] = entry.path
          else:  # a whiteout, or what is no file: it hides what was there
            known.pop(entry.name, None)
  found: dict[str, str] = {}
  left: list[tuple[str, Any]] = [("", top)]
  while left:
    path, node = left.pop()
    for name, inner in node.items():
      if isinstance(inner, str):
        found[f"{path}{name}"] = inner
      else:
        left.append((f"{path}{name}/", inner))
  return found


def _find_in(layer: pathlib.Path, path: str) -> tuple[str, os.stat_result] | None:
  with contextlib.ExitStack() as opened:
    at = str(layer)
    for part in path.split("/"):
      if os.path.islink(at) or not os.path.isdir(at):
        return None
      opened.enter_context(opened_up(at))
      at = f"{at}/{part}"
      if not os.path.lexists(at):
        return None
    return at, os.lstat(at)


def _ends_at(layer: pathlib.Path, path: str) -> bool:
  """Whether `layer` hides `path` of the layers below it."""
  parts = path.split("/")
  for end in range(1, len(parts) + 1):
    found = _find_in(layer, "/".join(parts[:end]))
    if not found:
      return False
    if not stat.S_ISDIR(found[1].st_mode) or hides_below(found[0]):
      return True
  return False


def drop_idle_whiteouts(root: pathlib.Path, path: pathlib.Path, below: tuple[str, ...]) -> None:
  """Removes whiteouts of what no layer below has.

  overlayfs never leaves such ones: a folder that only one layer has is listed as it is, and a
  whiteout in it would be shown as a name that leads to nothing.
  """
  hiding: set[str] = set()
  for folder, _, names in os.walk(path):
    inner = os.path.relpath(folder, path)
    if os.path.dirname(inner) in hiding or hides_below(folder):
      hiding.add(inner)
    with opened_up(folder):
      mtime = os.stat(folder).st_mtime_ns
      for name in names:
        at = os.path.join(folder, name)
        is_whiteout = stat.S_ISCHR(os.lstat(at).st_mode)
        if is_whiteout and (inner in hiding or not find(root, below, f"{inner}/{name}")):
          os.unlink(at)
      os.utime(folder, ns=(mtime, mtime))


def hides_below(path: str) -> bool:
  """Whether the folder of a layer hides what layers below have there."""
  try:
    return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
  except OSError:
    return False


@contextlib.contextmanager
def opened_up(path: str) -> Iterator[None]:
  """The owner may read (and enter) `path` meanwhile, whatever its mode is."""
  mode = stat.S_IMODE(os.lstat(path).st_mode)
  wanted = mode | (0o700 if os.path.isdir(path) else 0o400)
  if wanted == mode or os.geteuid() == 0:
    yield
    return
  os.chmod(path, wanted)
  try:
    yield
  finally:
    os.chmod(path, mode)


def lay_over(layer: str, target: str) -> None:
  """Adds the changes of `layer` to the older ones in the folder `target`; files are linked."""
  with opened_up(layer), opened_up(target):
    for name in os.listdir(layer):
      source, at = f"{layer}/{name}", f"{target}/{name}"
      found = os.lstat(source)
      older = os.lstat(at) if os.path.lexists(at) else None
      if not stat.S_ISDIR(found.st_mode):
        if older:
          _remove_any(at)
        os.link(source, at, follow_symlinks=False)
        continue
      hides = hides_below(source)
      if older and (hides or not stat.S_ISDIR(older.st_mode)):
        hides = True  # over a file or a whiteout a folder hides what lies deeper
        _remove_any(at)
        older = None
      if not older:
        os.mkdir(at, 0o700)
        os.chown(at, found.st_uid, found.st_gid)
        if hides:
          os.setxattr(at, OPAQUE, b"y")
      lay_over(source, at)
      os.utime(at, ns=(found.st_mtime_ns, found.st_mtime_ns))
      os.chmod(at, stat.S_IMODE(found.st_mode))


def _remove_any(path: str) -> None:
  if stat.S_ISDIR(os.lstat(path).st_mode):
    remove(path)
  else:
    os.unlink(path)


def remove(folder: str) -> None:
  """Removes a tree of any depth, in which folders may forbid it.

  Folders are moved up beside one another before they are emptied, so that nothing recurses and no
  path grows too long.
  """
  with contextlib.suppress(FileNotFoundError):
    os.chmod(folder, 0o700)
    prefix, count = f"{folder}/.removing-{os.urandom(8).hex()}-", 0
    waiting = [folder]
    while waiting:
      here = waiting.pop()
      with os.scandir(here) as listed:
        entries = list(listed)
      for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
          os.unlink(entry.path)
          continue
        os.chmod(entry.path, 0o700)
        place = entry.path
        if here != folder:
          place, count = f"{prefix}{count}", count + 1
          os.rename(entry.path, place)
        waiting.append(place)
      if here != folder:
        os.rmdir(here)
    os.rmdir(folder)
