"""Files with holes: where their data lies, and copies that keep the holes."""

from __future__ import annotations

import os
from collections.abc import Iterator

_BLOCK = 1 << 20


def extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
  """(offset, length) of the parts below `size` that are no holes."""
  offset = 0
  while offset < size:
    try:
      start = os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:  # nothing but a hole is left
      return
    offset = min(os.lseek(fd, start, os.SEEK_HOLE), size)
    if offset <= start:  # the file shrinks meanwhile
      return
    yield start, offset - start


def copy(source: int, target: int) -> None:
  """Copies what the open file `source` holds to the open and empty `target`."""
  size = os.fstat(source).st_size
  for offset, length in extents(source, size):
    while length and (part := os.pread(source, min(length, _BLOCK), offset)):
      write(target, part, offset)
      offset, length = offset + len(part), length - len(part)
  os.ftruncate(target, size)


def write(fd: int, content: bytes | memoryview, offset: int) -> None:
  """Writes all of `content` at `offset`; OSError where there is no room."""
  view = memoryview(content)
  while view:
    count = os.pwrite(fd, view, offset)
    view, offset = view[count:], offset + count
