"""Files that may not grow, as on a full disk."""

import contextlib
import resource


@contextlib.contextmanager
def no_file_beyond(size):
  """No file of this process can grow beyond so many bytes. Any user may set this."""
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
