"""Contents of the files of layers, read without letting a policy fill the memory."""

from __future__ import annotations

import os

from jaxrl_agents.sandbox.host.merged_layers import Found, Layers

MAX_HOLE_BYTES = 64 << 20
_SMALL_BYTES = 4096  # some file systems keep such files without blocks


class TooLarge(OSError):
  """A file is longer than its reader takes, or files have too many holes in all."""


class Contents:
  """Reads files. Invariants: a file of several names is read and held once, and all that is read
  has at most MAX_HOLE_BYTES of holes, so that contents take no more memory than disk and that.
  """

  def __init__(self, layers: Layers):
    self._layers = layers
    self._of_several_names: dict[tuple[int, int], bytes] = {}
    self._hole_bytes = 0

  def of(self, found: Found, max_bytes: int | None = None) -> bytes:
    """The content of a regular file.

    Raises:
      TooLarge: it is longer than `max_bytes`, or the holes are too large in all.
      OSError: it cannot be read.
    """
    fd = self._layers.open(found)
    try:
      status = os.fstat(fd)
      key = status.st_dev, status.st_ino
      if key in self._of_several_names:
        return self._of_several_names[key]
      self._check(found, status, max_bytes)
      with open(fd, "rb", closefd=False, buffering=0) as file:
        content = file.read(status.st_size)
        if len(content) < status.st_size:
          content += file.readall()
      if status.st_nlink > 1:
        self._of_several_names[key] = content
      return content
    finally:
      os.close(fd)

  def _check(self, found: Found, status: os.stat_result, max_bytes: int | None) -> None:
    size = status.st_size
    if max_bytes is not None and size > max_bytes:
      raise TooLarge(f"/{found.path[:200]}: {size} bytes are more than {max_bytes}")
    holes = size - 512 * status.st_blocks if size > _SMALL_BYTES else 0
    if holes > 0 and self._hole_bytes + holes > MAX_HOLE_BYTES:
      raise TooLarge(
        f"/{found.path[:200]}: the files that changed have holes of more than {MAX_HOLE_BYTES} "
        "bytes in all"
      )
    self._hole_bytes += max(0, holes)
