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
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping

from jaxrl_agents.sandbox import delta
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
    for name in ("", "layers", "live", "runtimes"):
      (folder / name).mkdir(parents=True, exist_ok=True, mode=0o711)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
      raise NoSandbox(f"{folder} belongs to another user; choose another store")
    if found.st_mode & 0o022:
      raise NoSandbox(f"{folder} may be written by others; chmod go-w it or choose another store")
    self._session = secrets.token_hex(4)
    self._lock = open(folder / "live" / f"{self._session}.lock", "w")  # noqa: SIM115 held open
    fcntl.flock(self._lock, fcntl.LOCK_EX)
    self._numbers = itertools.count(1)
    self._holders: collections.Counter[str] = collections.Counter()
    (folder / "live" / self._session).mkdir(mode=0o711)
    self._sweep()
    self.ground = self._ground()

  def close(self) -> None:
    """Removes the snapshots of this session."""
    delta.remove(str(self.folder / "live" / self._session))
    self._lock.close()
    (self.folder / "live" / f"{self._session}.lock").unlink(missing_ok=True)

  def scratch(self) -> pathlib.Path:
    """A new folder that goes with the session."""
    path = self.folder / "live" / self._session / f"s{next(self._numbers)}"
    path.mkdir(mode=0o711)
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
          delta.remove(str(self.folder / name))

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

  def add(self, entries: list[Entry], body: bytes, head: str) -> tuple[str, str]:
    """The layer with the changes that an agent sent (checked here), and its digest.

    Raises:
      ValueError: what no honest agent sends.
      OSError: the disk is full, or the file system lacks what a layer needs.
    """
    delta.check(entries, len(body))
    path = self.scratch()
    delta.unpack(entries, body, str(path), self.give)
    self.give(str(path))
    return self._name(path), hashlib.sha256(head.encode() + body).hexdigest()

  def squashed(self, layers: tuple[str, ...]) -> tuple[str, ...]:
    """The same state in fewer layers, where there are too many of this session.

    File contents are linked, not copied.
    """
    ours = tuple(name for name in layers if name.startswith("live/"))
    if len(ours) <= MAX_SNAPSHOT_LAYERS:
      return layers
    path = self.scratch()
    for name in reversed(ours):
      delta.lay_over(str(self.folder / name), str(path))
    self._drop_idle_whiteouts(path, layers[len(ours) :])
    self.give(str(path))
    return (self._name(path), *layers[len(ours) :])

  def _drop_idle_whiteouts(self, path: pathlib.Path, below: tuple[str, ...]) -> None:
    """Removes whiteouts of what no layer below has.

    overlayfs never leaves such ones: a folder that only one layer has is listed as it is, and a
    whiteout in it would be shown as a name that leads to nothing.
    """
    hiding: set[str] = set()
    for folder, _, names in os.walk(path):
      inner = os.path.relpath(folder, path)
      if os.path.dirname(inner) in hiding or delta.hides_below(folder):
        hiding.add(inner)
      with delta.opened_up(folder):
        mtime = os.stat(folder).st_mtime_ns
        for name in names:
          at = os.path.join(folder, name)
          is_whiteout = stat.S_ISCHR(os.lstat(at).st_mode)
          if is_whiteout and (inner in hiding or not self.find(below, f"{inner}/{name}")):
            os.unlink(at)
        os.utime(folder, ns=(mtime, mtime))

  def copy_out(self, layers: tuple[str, ...], folder: pathlib.Path) -> None:
    """Copies what a sandbox that starts from `layers` sees to `folder`, for its user."""
    folders = []
    for path in itertools.chain.from_iterable(
      (top, *self.walk(layers, top)) for top in ("work", "tmp")
    ):
      place, found = self.find(layers, path) or (str(self.folder / self.ground / path), None)
      target, found = str(folder / path), found or os.lstat(place)
      if stat.S_ISDIR(found.st_mode):
        os.mkdir(target, 0o700)
        folders.append((target, found))
      elif stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(place), target)
      elif stat.S_ISFIFO(found.st_mode):
        os.mkfifo(target)
      else:
        with delta.opened_up(place):
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

  def find(self, layers: tuple[str, ...], path: str) -> tuple[str, os.stat_result] | None:
    """Where `path` really lies in the newest of `layers` that has it; None if none does.

    Links are not followed.
    """
    for layer in layers:
      found = self._find_in(layer, path)
      if found:
        return None if stat.S_ISCHR(found[1].st_mode) else found
      if self._ends_at(layer, path):
        return None
    return None

  def walk(self, layers: tuple[str, ...], folder: str) -> Iterator[str]:
    """Every path below `folder`, as a sandbox that starts from `layers` sees it."""
    names: set[str] = set()
    for layer in layers:
      found = self._find_in(layer, folder)
      if found and stat.S_ISDIR(found[1].st_mode):
        with delta.opened_up(found[0]):
          names.update(os.listdir(found[0]))
      if self._ends_at(layer, folder):
        break
    for name in sorted(names):
      path = f"{folder}/{name}"
      at = self.find(layers, path)
      if at:
        yield path
        if stat.S_ISDIR(at[1].st_mode):
          yield from self.walk(layers, path)

  def _find_in(self, layer: str, path: str) -> tuple[str, os.stat_result] | None:
    with contextlib.ExitStack() as opened:
      at = str(self.folder / layer)
      for part in path.split("/"):
        if os.path.islink(at) or not os.path.isdir(at):
          return None
        opened.enter_context(delta.opened_up(at))
        at = f"{at}/{part}"
        if not os.path.lexists(at):
          return None
      return at, os.lstat(at)

  def _ends_at(self, layer: str, path: str) -> bool:
    """Whether `layer` hides `path` of the layers below it."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
      found = self._find_in(layer, "/".join(parts[:end]))
      if not found:
        return False
      if not stat.S_ISDIR(found[1].st_mode) or delta.hides_below(found[0]):
        return True
    return False

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
      delta.remove(str(part))
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
        delta.remove(str(lock.with_suffix("")))
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
