"""The files of a base: written or copied, then given fixed modes and times and a digest."""

from __future__ import annotations

import hashlib
import os
import pathlib
import stat
from collections.abc import Callable, Mapping

from jaxrl_agents.sandbox import overlay

_MTIME_NS = 1_600_000_000 * 10**9  # of every file of a base, so that listings are the same
_BLOCK = 1 << 20


def write(files: Mapping[str, bytes | str], work: int) -> None:
  """Writes {path: content} into the open folder `work`; executable where it begins with "#!".

  Raises:
    ValueError: a path that is absolute, leads out, or is too long.
  """
  made = {""}
  for path, text in files.items():
    if path.startswith("/") or ".." in path.split("/") or not path:
      raise ValueError(f"path {path!r} of a base must be relative to /work and stay below it")
    path = os.path.normpath(path)
    _check_length(path)
    content = text.encode() if isinstance(text, str) else text
    end = path.find("/")
    while end >= 0:
      if path[:end] not in made:
        made.add(path[:end])
        os.mkdir(path[:end], 0o755, dir_fd=work)
      end = path.find("/", end + 1)
    mode = 0o755 if content.startswith(b"#!") else 0o644
    with open(
      os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode, dir_fd=work), "wb"
    ) as file:
      file.write(content)
      os.fchmod(file.fileno(), mode)


def copy(folder: pathlib.Path, work: int) -> None:
  """Copies files, folders and links below `folder` into the open folder `work`.

  Raises:
    ValueError: something else is there, or a path is too long.
  """
  source = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
  try:
    for path, fd, entries in overlay.folders(source):
      for entry in entries:
        inner = overlay.joined(path, entry.name)
        _check_length(inner)
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
          os.mkdir(inner, 0o700, dir_fd=work)
        elif stat.S_ISLNK(mode):
          os.symlink(os.readlink(entry.name, dir_fd=fd), inner, dir_fd=work)
        elif stat.S_ISREG(mode):
          overlay.copy_file(fd, entry.name, work, inner)
          os.chmod(inner, 0o755 if mode & 0o100 else 0o644, dir_fd=work)
        else:
          raise ValueError(
            f"{folder / inner} is neither file, folder nor link; leave it out of a base"
          )
  finally:
    os.close(source)


def _check_length(path: str) -> None:
  if len(os.fsencode(path)) > overlay.MAX_PATH_BYTES - len("work/"):
    raise ValueError(f"path {path[:200]!r}... of a base is too long; shorten names of its folders")


def seal(part: int, own: Callable[[str], None]) -> str:
  """Fixes owners, modes and times of a new base in the open folder `part`; its content's digest.

  Args:
    own: called with every path, to give it to the sandboxes' user.
  """
  digest = hashlib.sha256()
  for path, fd, entries in overlay.folders(part):
    for entry in entries:
      inner = overlay.joined(path, entry.name)
      found = entry.stat(follow_symlinks=False)
      mode, content, size = found.st_mode, b"", 0
      if stat.S_ISLNK(mode):
        content = os.fsencode(os.readlink(entry.name, dir_fd=fd))
        size = len(content)
      elif stat.S_ISREG(mode):
        size = found.st_size
        os.chmod(entry.name, 0o755 if mode & 0o100 else 0o644, dir_fd=fd)
      else:
        os.chmod(entry.name, 0o1777 if inner == "tmp" else 0o755, dir_fd=fd)
      digest.update(os.fsencode(f"{inner}\0{stat.S_IFMT(mode)}\0{mode & 0o100}\0{size}"))
      digest.update(content)
      if stat.S_ISREG(mode):
        with open(os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd), "rb") as file:
          while block := file.read(_BLOCK):
            digest.update(block)
      own(inner)
      os.utime(entry.name, ns=(_MTIME_NS, _MTIME_NS), dir_fd=fd, follow_symlinks=False)
  return digest.hexdigest()
