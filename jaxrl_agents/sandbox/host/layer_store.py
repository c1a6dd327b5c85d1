"""Where the layers of sandboxes lie on the host: bases by content, snapshots by session.

A layer is a folder with `work` and `tmp`, in the form overlayfs reads: a device 0:0 stands for what
is gone, an attribute for a folder that hides those below. Layers are never changed. Bases stay for
later processes; snapshots go when nothing needs them, at the latest with their session (also when
that was killed: the next session sweeps).
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Mapping

from jaxrl_agents.sandbox import delta, overlay
from jaxrl_agents.sandbox.delta import Entry
from jaxrl_agents.sandbox.errors import NoSandbox

MAX_SNAPSHOT_LAYERS = 16
_MTIME_NS = 1_600_000_000 * 10**9  # of every file of a base, so that listings are the same


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
    if not folder.exists():
      folder.mkdir(parents=True)
      folder.chmod(0o711)  # whatever the umask is
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
      raise NoSandbox(f"{folder} belongs to another user; choose another store")
    if found.st_mode & 0o022:
      raise NoSandbox(f"{folder} may be written by others; chmod go-w it or choose another store")
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
    self._sweep()
    self.ground = self._ground()

  def close(self) -> None:
    """Removes the snapshots of this session."""
    overlay.remove(str(self.folder / "live" / self._session))
    self._lock.close()
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

  def release(self, layers: tuple[str, ...]) -> None:
    """Gives layers back; those of this session that nobody holds are removed."""
    for name in layers:
      self._holders[name] -= 1
      if self._holders[name] <= 0:
        del self._holders[name]
        if name.startswith("live/"):
          overlay.remove(str(self.folder / name))

  def base(self, files: Mapping[str, bytes | str] | pathlib.Path) -> tuple[str, str]:
    """The layer with these files below /work, and its digest; equal content is stored once.

    Args:
      files: {path relative to /work: content}, executable where it begins with "#!"; or a folder,
        of which files, folders and links are taken with their right to execute.

    Raises:
      ValueError: a path that is absolute or leads out, or no folder.
    """
    part = self.scratch()
    work = part / "work"
    work.mkdir(mode=0o755)
    if isinstance(files, Mapping):
      _write_files(files, work)
    else:
      if not files.is_dir():
        raise ValueError(f"{files} is no folder; give one, or a mapping of paths to contents")
      shutil.copytree(files, work, symlinks=True, dirs_exist_ok=True)
    digest = self._seal(part)
    return self._keep(part, digest), digest

  def add(
    self, entries: list[Entry], body: bytes, below: tuple[str, ...]
  ) -> tuple[tuple[str, ...], str]:
    """`below` with the changes that an agent sent (checked here), and the digest of these.

    Where layers of this session have become too many, they are one from now on.

    Raises:
      ValueError: what no honest agent sends.
      OSError: the disk is full, or the file system lacks what a layer needs.
    """
    delta.check(entries, len(body))
    path = self.scratch()
    delta.unpack(entries, body, str(path), self.give)
    self.give(str(path))
    digest = hashlib.sha256(json.dumps(entries).encode() + body).hexdigest()
    layers = (self._name(path), *below)
    ours = tuple(name for name in layers if name.startswith("live/"))
    if len(ours) <= MAX_SNAPSHOT_LAYERS:
      return layers, digest
    squashed = self.squash(ours, layers[len(ours) :])
    overlay.remove(str(path))
    return (squashed, *layers[len(ours) :]), digest

  def squash(self, layers: tuple[str, ...], below: tuple[str, ...]) -> str:
    """One layer for several; contents of files are linked, not copied."""
    path = self.scratch()
    for name in reversed(layers):
      overlay.lay_over(str(self.folder / name), str(path))
    overlay.drop_idle_whiteouts(self.folder, path, below)
    self.give(str(path))
    return self._name(path)

  def has_base(self, name: str) -> bool:
    """Whether the layer `name` of a base is here."""
    folder, _, digest = name.partition("/")
    return folder == "layers" and digest.isalnum() and (self.folder / name).is_dir()

  def copy_out(self, layers: tuple[str, ...], folder: pathlib.Path) -> None:
    """Copies what a sandbox that starts from `layers` sees to `folder`, for its user."""
    folders = []
    for path in itertools.chain.from_iterable(
      (top, *overlay.walk(self.folder, layers, top)) for top in ("work", "tmp")
    ):
      place, found = overlay.find(self.folder, layers, path) or (
        str(self.folder / self.ground / path),
        None,
      )
      target, found = str(folder / path), found or os.lstat(place)
      if stat.S_ISDIR(found.st_mode):
        os.mkdir(target, 0o700)
        folders.append((target, found))
      elif stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(place), target)
      elif stat.S_ISFIFO(found.st_mode):
        os.mkfifo(target)
      else:
        with overlay.opened_up(place):
          shutil.copyfile(place, target)
      if not stat.S_ISDIR(found.st_mode):
        self._dress(target, found)
    for target, found in reversed(folders):
      self._dress(target, found)
    self.give(str(folder))

  def _dress(self, path: str, found: os.stat_result) -> None:
    """Owner, mode and time."""
    self.give(path)
    if not stat.S_ISLNK(found.st_mode):
      os.chmod(path, stat.S_IMODE(found.st_mode))
    os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns), follow_symlinks=False)

  def _name(self, path: pathlib.Path) -> str:
    return str(path.relative_to(self.folder))

  def give(self, path: str) -> None:
    """Makes `path` the sandboxes' user's."""
    if self._owner != (os.geteuid(), os.getegid()):
      os.chown(path, *self._owner, follow_symlinks=False)

  def _seal(self, part: pathlib.Path) -> str:
    """Fixes owners, modes and times of a new base; the digest of its content."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(part, topdown=False):
      for name in (*sorted(names), *sorted(folders)):
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
          content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
          content = pathlib.Path(path).read_bytes()
          os.chmod(path, 0o755 if mode & 0o100 else 0o644)
        elif stat.S_ISDIR(mode):
          content = b""
          os.chmod(path, 0o1777 if path == str(part / "tmp") else 0o755)
        else:
          raise ValueError(f"{path} is neither file, folder nor link; leave it out of a base")
        self.give(path)
        os.utime(path, ns=(_MTIME_NS, _MTIME_NS), follow_symlinks=False)
        line = f"{os.path.relpath(path, part)}\0{stat.S_IFMT(mode)}\0{mode & 0o100}\0{len(content)}"
        digest.update(os.fsencode(line) + content)
    self.give(str(part))
    return digest.hexdigest()

  def _keep(self, part: pathlib.Path, digest: str) -> str:
    kept = self.folder / "layers" / digest[:16]
    if kept.is_dir():
      overlay.remove(str(part))
    else:
      with contextlib.suppress(OSError):  # another process was faster
        part.rename(kept)
    return self._name(kept)

  def _ground(self) -> str:
    part = self.scratch()
    for name in ("work", "tmp"):
      (part / name).mkdir()
    return self._keep(part, self._seal(part))

  def _sweep(self) -> None:
    """Removes what sessions left that were killed."""
    for lock in (self.folder / "live").glob("*.lock"):
      if lock.stem == self._session:
        continue
      with contextlib.suppress(OSError), open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        overlay.remove(str(lock.with_suffix("")))
        lock.unlink(missing_ok=True)


def _write_files(files: Mapping[str, bytes | str], work: pathlib.Path) -> None:
  for name, text in files.items():
    if name.startswith("/") or ".." in name.split("/") or not name:
      raise ValueError(f"path {name!r} of a base must be relative to /work and stay below it")
    content = text.encode() if isinstance(text, str) else text
    path = work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if content.startswith(b"#!") else 0o644)
