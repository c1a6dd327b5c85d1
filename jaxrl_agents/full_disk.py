"""Errors of a disk that takes no more data, with the folder and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

_CODES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_IN_TEXT = re.compile(r"(?:os_error_code='|\[Errno )(\d+)")
"""How tensorstore, whose errors are ValueErrors, and shutil.copytree write the code."""

_SHORT = re.compile(r"\d+ requested and \d+ written")
"""How numpy says that a file took less than an array."""


class FullDiskError(OSError):
  """There is no room for what was to be written; the message names the folder."""


@contextlib.contextmanager
def named(folder: object) -> Iterator[None]:
  """Turns the errors of a full disk into a `FullDiskError` that names `folder`.

  To be used around writers that leave what was complete before as it was.
  """
  try:
    yield
  except FullDiskError:
    raise
  except (OSError, ValueError) as error:
    code = _code(error)
    if code not in _CODES:
      raise
    raise FullDiskError(
      f"{folder} could not be written: {os.strerror(code)}. Free some space there, or choose "
      "another folder; what was complete before is unchanged, and the same command goes on from it"
    ) from error


def _code(error: OSError | ValueError) -> int:
  if isinstance(error, OSError) and error.errno:
    return error.errno
  found = _IN_TEXT.search(str(error))
  return int(found[1]) if found else errno.ENOSPC if _SHORT.search(str(error)) else 0
