"""The files below a folder, however deep, without recursion."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

MAX_FILES = 1_000_000


def below(
  root: pathlib.Path, is_skipped: Callable[[str], bool] = lambda name: False
) -> list[pathlib.Path]:
  """Regular files, also by links, in the order of their paths. Links to folders are not followed.

  Args:
    is_skipped: by its name, a file or a folder that is left out with all that it holds.

  Raises:
    ValueError: a folder cannot be read, its path is too long, say, or there are too many files.
  """
  found: list[pathlib.Path] = []
  waiting = [str(root)]
  while waiting:
    folder = waiting.pop()
    try:
      with os.scandir(folder) as entries:
        for entry in entries:
          if is_skipped(entry.name):
            continue
          if entry.is_dir(follow_symlinks=False):
            waiting.append(entry.path)
          elif os.path.isfile(entry.path):  # False for a link that leads nowhere or in a circle
            found.append(pathlib.Path(entry.path))
    except OSError as error:
      raise ValueError(
        f"{folder[:300]}: cannot be read ({error.strerror}); mend it or move it out of {root}"
      ) from None
    if len(found) > MAX_FILES:
      raise ValueError(f"{root}: more than {MAX_FILES} files; name a folder of fewer")
  return sorted(found)
