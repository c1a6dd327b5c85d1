"""One layer made of several, and plain copies of what layers show."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.host.merged_layers import Found, Layers


def squash(upper: Layers, below: Layers, target: int, check: Callable[[], None]) -> None:
  """Makes the layer that stands for all of `upper` in the open, empty folder `target`.

  Contents are linked. Whiteouts of what `below` does not show are left out: overlayfs never leaves
  such ones, for a folder that only one layer has is listed as it is, and they would be seen as
  names that lead to nothing.
  """
  links = overlay.Links(target)
  made: list[Found] = []
  listing, _ = upper.listing("", upper.all)
  waiting = [(found, False) for found in listing.values()]
  while waiting:
    check()
    found, is_hidden = waiting.pop()
    if found.kind != "d":
      if found.kind != "w" or (not is_hidden and below.find(found.path)):
        links.add(upper.fd_of(found.layer), found.path, found.path)
      continue
    listing, hides = upper.listing(found.path, found.stack)
    os.mkdir(found.path, 0o700, dir_fd=target)
    made.append(found)
    hides = hides or found.ends  # over a file or a whiteout a folder hides what lies deeper
    if hides:
      _set_opaque(found.path, target)
    waiting += [(inner, is_hidden or hides) for inner in listing.values()]
  for found in reversed(made):
    _dress(upper, found, target, with_owner=True)


def _set_opaque(path: str, target: int) -> None:
  fd = os.open(path, overlay.FOLDER, dir_fd=target)
  try:
    os.setxattr(fd, overlay.OPAQUE, b"y")
  finally:
    os.close(fd)


def copy_out(layers: Layers, target: int, own: Callable[[str], None]) -> None:
  """Copies what `layers` show to the open folder `target`; holes and further names of files stay.

  Args:
    own: called with every path, to give it to the sandboxes' user.
  """
  first_names: dict[tuple[int, int], str] = {}
  made = []
  for top in layers.shown("").values():
    for found in (top, *layers.below(top)) if top.kind == "d" else ():
      layers.check()
      if found.kind == "d":
        os.mkdir(found.path, 0o700, dir_fd=target)
        made.append(found)
        continue
      if found.kind == "l":
        os.symlink(layers.target(found), found.path, dir_fd=target)
      elif found.kind == "p":
        os.mkfifo(found.path, dir_fd=target)
      else:
        status = layers.stat(found)
        first = first_names.setdefault((status.st_dev, status.st_ino), found.path)
        if first != found.path:
          os.link(first, found.path, src_dir_fd=target, dst_dir_fd=target, follow_symlinks=False)
          continue
        _copy(layers, found, target)
      own(found.path)
      _dress(layers, found, target)
  for found in reversed(made):
    own(found.path)
    _dress(layers, found, target)


def _copy(layers: Layers, found: Found, target: int) -> None:
  source = layers.open(found)
  try:
    overlay.copy_open_file(source, target, found.path)
  finally:
    os.close(source)


def _dress(layers: Layers, found: Found, target: int, *, with_owner: bool = False) -> None:
  """Owner, mode and time."""
  status = layers.stat(found)
  if with_owner:
    os.chown(found.path, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
  times = (status.st_mtime_ns, status.st_mtime_ns)
  os.utime(found.path, ns=times, dir_fd=target, follow_symlinks=False)
  if not stat.S_ISLNK(status.st_mode):
    os.chmod(found.path, layers.mode(found), dir_fd=target)
