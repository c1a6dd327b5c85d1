"""Members of archives, read in memory and bounded, whatever an archive says about itself."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import pathlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

MAX_ARCHIVE_BYTES = 64 << 20
"""Bytes of a zip archive on the disk."""
MAX_UNPACKED_BYTES = 256 << 20
"""Bytes of a tar archive once it is unpacked."""
MAX_MEMBERS = 50_000

_OPEN: dict[str, Callable[..., Any]] = {
  ".gz": gzip.open,
  ".tgz": gzip.open,
  ".bz2": bz2.open,
  ".xz": lzma.open,
}
_DAMAGES = (
  OSError, EOFError, RuntimeError, OverflowError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
  lzma.LZMAError, UnicodeDecodeError,
)  # fmt: skip


def members(
  place: pathlib.Path, is_wanted: Callable[[str], bool], max_bytes: int
) -> Iterator[tuple[str, bytes]]:
  """(name, content) of the regular files of a .zip or .tar archive that are wanted by their name.

  Those of more than `max_bytes` are left out; no code runs and no path is followed.

  Raises:
    ValueError: it is no archive, or too large in all; with file, size and limit.
  """
  if not place.is_file():
    raise ValueError(f"{place}: neither a folder nor a file")
  try:
    reader = _of_zip if place.suffix == ".zip" else _of_tar
    yield from reader(place, is_wanted, max_bytes)
  except _DAMAGES as error:
    raise ValueError(
      f"{place}: neither a folder nor an archive that can be read: {error}"
    ) from error


def _of_zip(
  place: pathlib.Path, is_wanted: Callable[[str], bool], max_bytes: int
) -> Iterator[tuple[str, bytes]]:
  with place.open("rb") as file:
    content = file.read(MAX_ARCHIVE_BYTES + 1)
  if len(content) > MAX_ARCHIVE_BYTES:
    raise _too_large(place, f"{MAX_ARCHIVE_BYTES} bytes")
  if content.count(b"PK\x01\x02") > MAX_MEMBERS:  # each entry of its table begins so
    raise _too_large(place, f"{MAX_MEMBERS} members")
  size = 0
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    for info in archive.infolist():
      if info.is_dir() or not is_wanted(info.filename):
        continue
      if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise ValueError(f"{place}: {info.filename!r:.200} is encrypted or packed in a rare way")
      with archive.open(info) as member:
        text = member.read(max_bytes + 1)
      size += len(text)
      if size > MAX_UNPACKED_BYTES:
        raise _too_large(place, f"{MAX_UNPACKED_BYTES} unpacked bytes")
      if len(text) <= max_bytes:
        yield info.filename, text


def _of_tar(
  place: pathlib.Path, is_wanted: Callable[[str], bool], max_bytes: int
) -> Iterator[tuple[str, bytes]]:
  count = 0
  with contextlib.ExitStack() as opened:
    file = opened.enter_context(_OPEN.get(place.suffix, open)(place, "rb"))
    limited = cast(IO[bytes], _Limited(file, place))
    archive = opened.enter_context(tarfile.open(fileobj=limited, mode="r|"))
    while member := archive.next():
      count += 1
      if count > MAX_MEMBERS:
        raise _too_large(place, f"{MAX_MEMBERS} members")
      if member.isreg() and member.size <= max_bytes and is_wanted(member.name):
        content = archive.extractfile(member)
        if content is not None:
          yield member.name, content.read()


class _Limited:
  """A file that refuses to be read beyond MAX_UNPACKED_BYTES."""

  def __init__(self, file: IO[bytes], place: pathlib.Path):
    self._file, self._place, self._size = file, place, 0

  def read(self, count: int) -> bytes:
    if self._size + count > MAX_UNPACKED_BYTES:
      raise _too_large(self._place, f"{MAX_UNPACKED_BYTES} unpacked bytes")
    content = self._file.read(count)
    self._size += len(content)
    return content


def _too_large(place: pathlib.Path, limit: str) -> ValueError:
  size = place.stat().st_size
  return ValueError(f"{place}: {size} bytes on the disk, and more than {limit}; unpack it yourself")
