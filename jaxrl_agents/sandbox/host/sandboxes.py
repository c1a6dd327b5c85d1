"""The sandboxes of one process: makes them, keeps their store, ends them all.

async with Sandboxes() as boxes:
  base = await boxes.base({"main.py": "print(1)"})
  async with await boxes.create(base) as box:
    print((await box.exec("python3 main.py")).output)
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pathlib
import socket
from collections.abc import Mapping

from jaxrl_agents.sandbox.errors import NoSandbox, SandboxClosed
from jaxrl_agents.sandbox.host import backends, runtime, snapshot_files
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.host.runtime import Runtime
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.records import SandboxLimits, Snapshot

ENV = {
  "PATH": "/usr/bin",
  "HOME": "/tmp",
  "USER": "user",
  "LANG": "C.UTF-8",
  "TERM": "dumb",
  "TZ": "UTC",
  "PYTHONHASHSEED": "0",
}
"""What every first shell has, beside the snapshot's own."""
USER = (61_999, 61_999)
"""Whom sandboxes belong to when root starts them; no account has this uid."""
_START_S = 30.0


def default_store() -> pathlib.Path:
  """Where runtimes and layers lie unless a folder is named; on the disk, reachable by all users."""
  return pathlib.Path(f"/var/tmp/jaxrl_agents-sandboxes-{os.geteuid()}")


class Sandboxes:
  """Makes sandboxes; use as an async context manager, in one event loop.

  Nothing falls back in silence: a backend that this machine cannot run is a NoSandbox error that
  says why and what mends it (see also `probe.probe`).

  Args:
    backend: "namespaces"; "bubblewrap" or "gvisor" where installed; "unsafe-local": no walls at
      all, for machines that have none and policies that are trusted.
    limits: of each sandbox.
    runtime: what is visible besides a sandbox's own files.
    store: folder for runtimes and layers.
    user: uid and gid to become where this process is root's; without effect elsewhere.
  """

  def __init__(
    self,
    backend: str = "namespaces",
    *,
    limits: SandboxLimits = SandboxLimits(),
    runtime: Runtime = Runtime(),
    store: pathlib.Path | None = None,
    user: tuple[int, int] = USER,
  ):
    if backend not in backends.BACKENDS:
      known = ", ".join(backends.BACKENDS)
      raise ValueError(f"there is no backend {backend!r}; known are {known}")
    if os.geteuid() == 0 and (0 in user):
      raise ValueError(f"user={user}: sandboxes are never root's; name an unprivileged uid and gid")
    self.limits = limits
    self._backend_name, self._runtime = backend, runtime
    self._folder = (store or default_store()).absolute()
    self._owner = user if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    self._numbers = itertools.count(1)
    self._boxes: dict[int, Sandbox] = {}
    self._layers: dict[int, tuple[str, ...]] = {}
    self._backend: backends.Backend | None = None
    self._ends: dict[int, asyncio.Event] = {}

  async def __aenter__(self) -> Sandboxes:
    self.store = await asyncio.to_thread(Store, self._folder, self._owner)
    try:
      built = await asyncio.to_thread(runtime.prepare, self._runtime, self._folder / "runtimes")
      make = backends.BACKENDS[self._backend_name]
      backend = make(built, self.store, self._owner)
      await backend.start(self._note_end)
    except BaseException:
      self.store.close()
      raise
    self._backend = backend
    return self

  @property
  def is_open(self) -> bool:
    """Whether sandboxes can be made."""
    return self._backend is not None and self._backend.is_alive

  async def __aexit__(self, *_: object) -> None:
    await self.close()

  async def close(self) -> None:
    """Ends every sandbox, and removes the snapshots."""
    if self._backend:
      await asyncio.gather(*(box.close() for box in self._boxes.values()), return_exceptions=True)
      await self._backend.stop()
      self._backend = None
      await asyncio.to_thread(self.store.close)

  async def base(
    self,
    files: Mapping[str, bytes | str] | pathlib.Path,
    *,
    mask: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
  ) -> Snapshot:
    """The state with these files below /work.

    Args:
      files: {path relative to /work: content}, or a folder of this machine.
      mask: paths of the runtime that look empty in these sandboxes.
      env: more variables of the shell.

    Raises:
      ValueError: a path that leads out of /work or out of the runtime.
    """
    if any(not path.startswith("/usr/") or "/../" in path for path in mask):
      raise ValueError(f"mask={mask} must name paths below /usr/")
    layer, digest = await asyncio.to_thread(self.store.base, files)
    layers = (layer, self.store.ground)
    return Snapshot(layers, mask=tuple(mask), env=dict(env or {}), digest=digest)

  async def create(self, start: Snapshot) -> Sandbox:
    """A sandbox in the state `start`.

    Raises:
      NoSandbox: it could not be made, or was not ready within 30 s.
    """
    if not self._backend:
      raise SandboxClosed("use `async with Sandboxes(...)`; this one is not open")
    number = next(self._numbers)
    here, there = socket.socketpair()
    self.store.hold(start.layers)
    self._layers[number] = start.layers
    ended = self._ends[number] = asyncio.Event()
    writer = None
    try:
      async with asyncio.timeout(_START_S):
        await self._backend.launch(number, start, self.limits, there)
        reader, writer = await asyncio.open_unix_connection(sock=here)
        box = Sandbox(self, number, start, (reader, writer))
        box.ended = ended
        await box.begin({**ENV, **start.env})
      if ended.is_set():  # it may have answered before it was ended
        raise NoSandbox("a sandbox ended before it was ready: its process is gone")
    except BaseException as error:
      (writer or here).close()
      if isinstance(error, TimeoutError):
        raise NoSandbox(f"a sandbox was not ready within {_START_S:g} s") from None
      raise
    self._boxes[number] = box
    return box

  def drop(self, snapshot: Snapshot) -> None:
    """Gives a snapshot back; its files go when no sandbox stands on them."""
    self.store.release(snapshot.layers)

  async def save(self, snapshot: Snapshot, path: pathlib.Path) -> None:
    """Writes a snapshot to a file, for another process or a later one (`snapshot_files.save`)."""
    await asyncio.to_thread(snapshot_files.save, self.store, snapshot, path)

  async def load(self, path: pathlib.Path) -> Snapshot:
    """The snapshot that `save` wrote; `drop` gives it back.

    Raises:
      ValueError: there is none, or it stands on a base that this store does not have.
    """
    snapshot = await asyncio.to_thread(snapshot_files.load, self.store, path)
    self.store.hold(snapshot.layers)
    return snapshot

  async def kill(self, number: int) -> None:
    """Ends a sandbox that does not end by itself; no call of it succeeds from now on."""
    if number in self._boxes:
      self._boxes[number].mark_killed()
    if self._backend:
      await self._backend.kill(number)

  def _note_end(self, number: int) -> None:
    box = self._boxes.pop(number, None)
    if box:
      box.mark_ended()
    self._ends.pop(number, asyncio.Event()).set()
    self.store.release(self._layers.pop(number, ()))
