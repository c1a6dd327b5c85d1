"""Backends that start the agent by a command: bubblewrap, gVisor, and none at all.

They have no overlay: a sandbox's files are a copy, and a snapshot holds all of them. What of the
promises they keep is told by `probe`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host import runtime
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.records import SandboxLimits, Snapshot

PACKAGE_ROOT = pathlib.Path(__file__).parents[3]
_ROOM = pathlib.Path(__file__).parents[1]
_BOOT = (
  "import sys; sys.path.insert(0, sys.argv.pop()); import jaxrl_agents.sandbox.{0} as m; m.main()"
)


def boot(module: str, root: str | pathlib.Path, *arguments: str) -> list[str]:
  """Arguments of a bare Python that runs `main` of a module of this room, found below `root`."""
  return ["-I", "-S", "-c", _BOOT.format(module), *arguments, str(root)]


@dataclasses.dataclass(frozen=True)
class Launch:
  """What a command is made of: the runtime, the sandbox's files, name and user, and its start."""

  runtime: pathlib.Path
  folder: pathlib.Path
  name: str
  owner: tuple[int, int]
  start: Snapshot
  limits: SandboxLimits


class Commands:
  """One process per sandbox. Invariant: `_running` has those that were started and not yet reaped.

  Args:
    command: the arguments that start an agent.
    program: what must be installed for it; "" for nothing.
  """

  def __init__(
    self,
    built: pathlib.Path,
    store: Store,
    owner: tuple[int, int],
    command: Callable[[Launch], list[str]],
    program: str,
  ):
    self._runtime, self._store, self._owner = built, store, owner
    self._command, self._program = command, program
    self._running: dict[int, subprocess.Popen[bytes]] = {}

  async def start(self, ended: Callable[[int], None]) -> None:
    """Raises NoSandbox where the program is not installed."""
    self._ended = ended
    if self._program and not shutil.which(self._program):
      raise NoSandbox(f"{self._program} is not installed; install it or use another backend")

  @property
  def is_alive(self) -> bool:
    """A process is started for each sandbox."""
    return True

  async def launch(
    self, number: int, start: Snapshot, limits: SandboxLimits, end: socket.socket
  ) -> None:
    """Copies the files of `start` and starts an agent on them."""
    folder = self._store.scratch()
    try:
      await asyncio.to_thread(self._store.copy_out, start.layers, folder)
      name = f"box-{os.getpid()}-{number}"
      launch = Launch(self._runtime, folder, name, self._owner, start, limits)
      command = self._command(launch)
      for path in (folder / "bundle", *folder.glob("bundle/*")):
        if path.exists():
          self._store.give(str(path))
      uid, gid, groups = self._user()
      process = subprocess.Popen(
        command,
        stdin=end.fileno(),
        stdout=subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        cwd="/",
        start_new_session=True,
        user=uid,
        group=gid,
        extra_groups=groups,
      )
    except BaseException:
      self._store.discard(folder)
      self._ended(number)
      raise
    finally:
      end.close()
    self._running[number] = process
    fd = os.pidfd_open(process.pid)
    asyncio.get_running_loop().add_reader(fd, self._reap, number, fd, folder)

  async def kill(self, number: int) -> None:
    """SIGKILL; what the process leaves behind ends when its socket does."""
    if number in self._running:
      self._running[number].kill()

  async def stop(self) -> None:
    """Kills those that still run."""
    for number in tuple(self._running):
      await self.kill(number)
    for _ in range(500):
      if not self._running:
        return
      await asyncio.sleep(0.01)

  def _user(self) -> tuple[int | None, int | None, list[str | int] | None]:
    """Whom a program is started as; an agent without one drops root itself."""
    if os.geteuid() != 0 or not self._program:
      return None, None, None
    return *self._owner, []

  def _reap(self, number: int, fd: int, folder: pathlib.Path) -> None:
    asyncio.get_running_loop().remove_reader(fd)
    os.close(fd)
    self._running.pop(number).wait(10.0)  # its pipe is closed: it ends
    self._store.discard(folder)
    self._ended(number)


def _settings(launch: Launch, folder: str, *, is_walled: bool) -> str:
  limits = dataclasses.asdict(launch.limits)
  settings = {"limits": limits, "folder": folder, "is_walled": is_walled, "user": launch.owner}
  return json.dumps(settings)


def _inner_command(launch: Launch) -> list[str]:
  arguments = boot("inside.start_by_command", "/run/agent", _settings(launch, "", is_walled=True))
  return ["/usr/bin/python3", *arguments]


def bubblewrap(launch: Launch) -> list[str]:
  """A command for bwrap: all namespaces, no rights, the runtime for a root."""
  command = ["bwrap", "--unshare-all", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
  command += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--clearenv"]
  command += ["--ro-bind", str(launch.runtime), "/", "--proc", "/proc", "--dev", "/dev"]
  command += ["--ro-bind", str(_ROOM), f"/{runtime.AGENT_FOLDER}"]
  for name in ("work", "tmp"):
    command += ["--bind", str(launch.folder / name), f"/{name}"]
  for path in launch.start.mask:
    hidden = launch.runtime / path.lstrip("/")
    if hidden.exists():
      empty = "folder" if hidden.is_dir() else "file"
      command += ["--ro-bind", str(launch.runtime / "run/empty" / empty), path]
  return [*command, "--chdir", "/work", "--", *_inner_command(launch)]


def gvisor(launch: Launch) -> list[str]:
  """A command for runsc, which runs the sandbox on a kernel of its own; writes its bundle."""
  mounts: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
  for name in ("work", "tmp"):
    bind = {"destination": f"/{name}", "type": "bind", "source": str(launch.folder / name)}
    mounts.append(bind | {"options": ["rw", "rbind"]})
  room = {"destination": f"/{runtime.AGENT_FOLDER}", "type": "bind", "source": str(_ROOM)}
  mounts.append(room | {"options": ["ro", "rbind"]})
  for path in launch.start.mask:
    hidden = launch.runtime / path.lstrip("/")
    if hidden.exists():
      empty = launch.runtime / "run/empty" / ("folder" if hidden.is_dir() else "file")
      mask = {"destination": path, "type": "bind", "source": str(empty)}
      mounts.append(mask | {"options": ["ro", "rbind"]})
  bundle = launch.folder / "bundle"
  config = {
    "ociVersion": "1.0.0",
    "process": {
      "user": {
        "uid": 0,
        "gid": 0,
      },  # the one user that exists in there: ours outside, without rights
      "args": _inner_command(launch),
      "env": ["PATH=/usr/bin"],
      "cwd": "/work",
      "noNewPrivileges": True,
    },
    "root": {"path": str(launch.runtime), "readonly": True},
    "hostname": "sandbox",
    "mounts": mounts,
    "linux": {"namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")]},
  }
  bundle.mkdir()
  (bundle / "config.json").write_text(json.dumps(config))
  flags = ["--rootless", "--network=none", "--ignore-cgroups"]
  return ["runsc", *flags, f"--root={bundle}/state", "run", f"--bundle={bundle}", launch.name]


def unsafe_local(launch: Launch) -> list[str]:
  """A command without walls: everything of this user's is within reach of the policy."""
  arguments = boot(
    "inside.start_by_command", PACKAGE_ROOT, _settings(launch, str(launch.folder), is_walled=False)
  )
  return [getattr(sys, "_base_executable", "") or sys.executable, *arguments]
