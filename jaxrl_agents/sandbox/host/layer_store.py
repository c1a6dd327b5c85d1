"""Where the layers of sandboxes lie on the host: bases by content, snapshots by session.

A layer is a folder with `work` and `tmp`, in the form overlayfs reads: a device 0:0 stands for what
is gone, an attribute for a folder that hides those below. Layers are never changed. Bases stay for
later processes; snapshots go when nothing needs them, at the latest with their session (also when
that was killed: the next session sweeps).
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import pathlib
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping

from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.delta import Entry
from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host import base_files, merges, removal, unpacking
from jaxrl_agents.sandbox.host.merged_layers import Layers
from jaxrl_agents.sandbox.host.unpacking import Body

MAX_SNAPSHOT_LAYERS = 16
Check = Callable[[], None]


class Store:
  """Invariant: `_holders` counts, for each layer, the snapshots and sandboxes that stand on it.

  Args:
    folder: made if absent; must be reachable for the sandboxes' user, and on a file system that
      may execute and has user attributes.
    owner: uid and gid that the layers belong to.

  Raises:
    NoSandbox: the folder is somebody else's.
  """

  def __init__(self, folder: pathlib.Path, owner: tuple[int, int]):
    self.folder, self._owner = folder, owner
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o711, exist_ok=True)  # several processes may open it at once
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
      raise NoSandbox(f"{folder} belongs to another user; choose another store")
    if found.st_mode & 0o022:
      raise NoSandbox(f"{folder} may be written by others; chmod go-w it or choose another store")
    folder.chmod(stat.S_IMODE(found.st_mode) | 0o111)  # whatever the umask is
    for name in ("layers", "live", "runtimes"):
      (folder / name).mkdir(exist_ok=True)
      (folder / name).chmod(0o711)
    self._session = secrets.token_hex(4)
    unlocked = folder / "live" / f"{self._session}.new"
    self._lock = open(unlocked, "w")  # noqa: SIM115 held open
    fcntl.flock(self._lock, fcntl.LOCK_EX)
    unlocked.rename(unlocked.with_suffix(".lock"))  # never there unlocked: others sweep such ones
    self._numbers = itertools.count(1)
    self._holders: collections.Counter[str] = collections.Counter()
    (folder / "live" / self._session).mkdir()
    (folder / "live" / self._session).chmod(0o711)
    self._remover = removal.Remover()
    live, session = folder / "live", self._session
    self._remover.put(lambda check: removal.sweep(live, session, check))
    try:
      self.ground = self._ground()
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    """Removes the snapshots of this session; what resists is left to the next one, and logged."""
    self._remover.close()
    is_left = removal.report([removal.removed(self.folder / "live" / self._session)])
    self._lock.close()
    if not is_left:
      (self.folder / "live" / f"{self._session}.lock").unlink(missing_ok=True)

  def scratch(self) -> pathlib.Path:
    """A new folder that goes with the session."""
    path = self.folder / "live" / self._session / f"s{next(self._numbers)}"
    path.mkdir()
    path.chmod(0o755)
    return path

  def hold(self, layers: tuple[str, ...]) -> None:
    """Keeps layers from being removed until they are released as often."""
    self._holders.update(layers)

  def release(self, layers: tuple[str, ...], *, held: bool = True) -> None:
    """Gives layers back; those of this session that nobody holds are removed, in a thread.

    Args:
      held: the caller held them.
    """
    for name in layers:
      self._holders[name] -= held
      if self._holders[name] <= 0:
        del self._holders[name]
        if name.startswith("live/"):
          self.discard(self.folder / name)

  def discard(self, path: pathlib.Path) -> None:
    """Takes a folder of this session out of sight and removes it in a thread."""
    gone = path.with_name(f"{path.name}.gone")
    with contextlib.suppress(OSError):  # it went with the session
      path.rename(gone)
      self._remover.remove(gone)

  def base(self, files: Mapping[str, bytes | str] | pathlib.Path) -> tuple[str, str]:
    """The layer with these files below /work, and its digest; equal content is stored once.

    Args:
      files: {path relative to /work: content}, executable where it begins with "#!"; or a folder,
        of which files, folders and links are taken with their right to execute.

    Raises:
      ValueError: a path that is absolute, too long or leads out, or no folder.
      OSError: the disk is full, say.
    """
    if not isinstance(files, Mapping) and not files.is_dir():
      raise ValueError(f"{files} is no folder; give one, or a mapping of paths to contents")
    with self._new_layer("a base") as (path, fd):
      os.mkdir("work", 0o755, dir_fd=fd)
      work = os.open("work", overlay.FOLDER, dir_fd=fd)
      try:
        if isinstance(files, Mapping):
          base_files.write(files, work)
        else:
          base_files.copy(files, work)
      finally:
        os.close(work)
      digest = base_files.seal(fd, lambda inner: self._give(inner, fd))
      return self._keep(path, digest), digest

  def add(
    self,
    entries: list[Entry],
    body: Body,
    body_bytes: int,
    *,
    below: tuple[str, ...],
    check: Check = lambda: None,
  ) -> tuple[tuple[str, ...], str]:
    """`below` with the changes that an agent sent (checked here), and the digest of these.

    Where layers of this session have become too many, they are one from now on.

    Args:
      body: gives the bytes of the files, `body_bytes` in all.
      check: called now and then; what it raises ends the work, and nothing of it is left.

    Raises:
      ValueError: what no honest agent sends.
      OSError: the disk is full, or the file system lacks what a layer needs.
    """
    unpacking.check(entries, body_bytes)
    digest = hashlib.sha256(json.dumps(entries).encode())

    def hashed(count: int) -> bytes | memoryview:
      part = body(count)
      digest.update(part)
      return part

    with self._new_layer(f"a snapshot of {body_bytes} bytes") as (path, fd):
      unpacking.unpack(entries, hashed, fd, own=lambda inner: self._give(inner, fd), check=check)
    layers = (self._name(path), *below)
    ours = tuple(name for name in layers if name.startswith("live/"))
    if len(ours) <= MAX_SNAPSHOT_LAYERS:
      return layers, digest.hexdigest()
    try:
      squashed = self.squash(ours, layers[len(ours) :], check=check)
    finally:
      self.discard(path)
    return (squashed, *layers[len(ours) :]), digest.hexdigest()

  def squash(
    self, layers: tuple[str, ...], below: tuple[str, ...], *, check: Check = lambda: None
  ) -> str:
    """One layer for several; contents of files are linked, not copied."""
    with (
      self._new_layer("a merged snapshot") as (path, fd),
      Layers(self.folder, layers, check) as upper,
      Layers(self.folder, below, check) as lower,
    ):
      merges.squash(upper, lower, fd, check)
    return self._name(path)

  @contextlib.contextmanager
  def _new_layer(self, what: str) -> Iterator[tuple[pathlib.Path, int]]:
    """A new folder and its descriptor; it is removed where the block fails."""
    path = self.scratch()
    fd = os.open(path, overlay.FOLDER)
    try:
      yield path, fd
      self._give(".", fd)
    except BaseException as error:
      self.discard(path)
      if isinstance(error, OSError) and error.errno in _DISK:
        raise OSError(
          error.errno,
          f"{error.strerror}: {self.folder} has no room for {what}; make room on its disk, or "
          "choose another store: Sandboxes(store=...)",
        ) from error
      raise
    finally:
      os.close(fd)

  def has_base(self, name: str) -> bool:
    """Whether the layer `name` of a base is here."""
    folder, _, digest = name.partition("/")
    return folder == "layers" and digest.isalnum() and (self.folder / name).is_dir()

  def copy_out(self, layers: tuple[str, ...], folder: pathlib.Path) -> None:
    """Copies what a sandbox that starts from `layers` sees to `folder`, for its user."""
    fd = os.open(folder, overlay.FOLDER)
    try:
      with Layers(self.folder, (*layers, self.ground)) as shown:
        merges.copy_out(shown, fd, lambda path: self._give(path, fd))
    finally:
      os.close(fd)
    self.give(str(folder))

  def _name(self, path: pathlib.Path) -> str:
    return str(path.relative_to(self.folder))

  def give(self, path: str) -> None:
    """Makes `path` the sandboxes' user's."""
    if self._owner != (os.geteuid(), os.getegid()):
      os.chown(path, *self._owner, follow_symlinks=False)

  def _give(self, path: str, folder: int) -> None:
    if self._owner != (os.geteuid(), os.getegid()):
      os.chown(path, *self._owner, dir_fd=folder, follow_symlinks=False)

  def _keep(self, part: pathlib.Path, digest: str) -> str:
    kept = self.folder / "layers" / digest[:16]
    self.give(str(part))
    try:
      part.rename(kept)
    except OSError:
      if not kept.is_dir():
        raise
      self.discard(part)  # it was there, or another process was faster
    return self._name(kept)

  def _ground(self) -> str:
    with self._new_layer("its first folders") as (path, fd):
      for name in ("work", "tmp"):
        os.mkdir(name, dir_fd=fd)
      return self._keep(path, base_files.seal(fd, lambda inner: self._give(inner, fd)))


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What ails a disk rather than a call."""
