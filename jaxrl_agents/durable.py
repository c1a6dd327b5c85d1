"""Renames that survive a loss of power.

A rename alone is atomic for other processes. After a loss of power the name may be gone, or stand
for a file that is empty, unless content and folders were written out before and after it.
"""

from __future__ import annotations

import os
import pathlib


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
  """Gives a file, or a folder with all that it holds, the name `target`, durably.

  A file of that name is replaced; of a folder it must be free. After a loss of power the name has
  what it had before, or all of the new content.
  """
  sync_tree(source)
  os.replace(source, target)
  for folder in sorted({pathlib.Path(source).parent, pathlib.Path(target).parent}):
    sync(folder)


def sync_tree(place: str | os.PathLike[str]) -> None:
  """Waits until a file, or a folder with all that it holds, is on the disk."""
  for folder, _, names in os.walk(place, topdown=False):
    for path in (pathlib.Path(folder, name) for name in names):
      if not path.is_symlink():
        sync(path)
    sync(folder)
  if not os.path.isdir(place):
    sync(place)


def sync(path: str | os.PathLike[str]) -> None:
  """Waits until the content of a file, also what was written through a memory map, or the names in
  a folder are on the disk.
  """
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
