"""The process that sandboxes are forked from: one thread, an unprivileged user, its own root.

It enters a user and a mount namespace whose root is the read-only runtime, so that a fork copies a
handful of mounts and finds every module imported. Each fork is in namespaces of its own (users,
mounts, processes, network, IPC, host name, cgroups), puts an overlay of the wanted layers over
/work and /tmp, gives up what it may, and becomes the sandbox's process 1.

Requests come as datagrams with the sandbox's socket attached; ends of sandboxes are told by id.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any

from jaxrl_agents.sandbox import delta, kernel, overlay, wire
from jaxrl_agents.sandbox.inside import (
  agent,
  confine,
  files,
  output,
  processes,
  programs,
  seccomp,
  shell,
)

INSIDE_ID = 1000
"""User and group inside a sandbox; no other exists there."""
LAYERS = "/work"
"""Where the store of layers is mounted until the overlay covers it."""
_STATE = "/mnt"
_EMPTY_FILE, _EMPTY_FOLDER = "/run/empty/file", "/run/empty/folder"
_KEPT_FLAGS = 1 | 2 | 4 | 8 | 1024 | 2048  # ro nosuid nodev noexec noatime nodiratime
_ST_RELATIME, _MS_RELATIME = 4096, 1 << 21
MAX_REQUEST_BYTES = 1 << 17
_DEVICES = ("null", "full", "random", "urandom")
_ZEROS = 1 << 62
_TCP_BYTES = 128 << 10
# What of /proc tells one machine from others; each costs a fork 16 microseconds.
_HIDDEN = ("cmdline", "sys/kernel/random/boot_id", "keys", "bus", "driver", "scsi")
_KEPT_IN_MEMORY = (
  delta,
  files,
  output,
  overlay,
  processes,
  programs,
  shell,
)  # nothing can be imported in there


def main() -> None:
  """Reads its settings from the command line, prepares, and serves the control socket."""
  settings = json.loads(sys.argv[1])
  control = socket.socket(fileno=settings["control_fd"])
  try:
    kernel.hide_command_line()
    confine.give_way()
    confine.drop_user(settings["uid"], settings["gid"])
    _prepare(settings["runtime"], settings["store"])
  except OSError as error:
    control.send(json.dumps({"failed": _words(error)}).encode())
    return
  control.send(json.dumps({"started": True}).encode())
  _serve(control)


def _prepare(runtime: str, store: str) -> None:
  uid, gid = os.geteuid(), os.getegid()
  for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (hard, hard))
  for folder in (runtime, store):
    if not os.access(folder, os.X_OK):
      raise OSError(f"open {folder}: user {uid} may not")
  kernel.unshare(kernel.NEWUSER | kernel.NEWNS)
  kernel.map_ids(INSIDE_ID, uid, INSIDE_ID, gid)
  kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
  _bind_read_only(runtime, runtime)
  _bind_read_only(store, runtime + LAYERS)
  for name in _DEVICES:
    kernel.mount(f"/dev/{name}", f"{runtime}/dev/{name}", flags=kernel.MS_BIND)
  _make_zero(runtime)
  kernel.mount("/proc", runtime + "/proc", flags=kernel.MS_BIND | kernel.MS_REC)
  kernel.enter_root(runtime)
  _hidden()


def _make_zero(runtime: str) -> None:
  """Makes /dev/zero a sparse file that is read like the device.

  A shared mapping of the device is memory that no process owns, and no mode of ours keeps anybody
  from writing to it.
  """
  place, flags = runtime + _STATE, kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
  kernel.mount("tmpfs", place, "tmpfs", flags, "size=64k,nr_inodes=4")
  with open(f"{place}/zero", "wb") as file:
    file.truncate(_ZEROS)
  os.chmod(f"{place}/zero", 0o444)
  _bind_read_only(f"{place}/zero", f"{runtime}/dev/zero")
  kernel.unmount(place)


def _bind_read_only(source: str, target: str) -> None:
  """Binds, keeping the flags that a user namespace may not clear."""
  kernel.mount(source, target, flags=kernel.MS_BIND)
  found = os.statvfs(target).f_flag
  flags = found & _KEPT_FLAGS | (_MS_RELATIME if found & _ST_RELATIME else 0)
  flags |= (
    kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
  )
  kernel.mount("", target, flags=flags)


def _serve(control: socket.socket) -> None:
  """Forks on request and reports ended sandboxes, until the host is gone."""
  sandboxes: dict[int, int] = {}  # process id -> id of the host's
  wake_fd, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
  signal.signal(signal.SIGCHLD, lambda *_: None)
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
  poll = select.poll()
  poll.register(control.fileno(), select.POLLIN)
  poll.register(wake_fd, select.POLLIN)
  while True:
    ready = [fd for fd, _ in poll.poll()]
    if wake_fd in ready:
      with contextlib.suppress(BlockingIOError):
        os.read(wake_fd, 4096)
      for pid in processes.reap():
        control.send(json.dumps({"ended": sandboxes.pop(pid, -1)}).encode())
    if control.fileno() in ready:
      try:
        text, fds, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 1)
      except OSError:  # the host was killed
        return
      if not text:
        return
      request = json.loads(text)
      if "kill" in request:
        processes.send({p for p, i in sandboxes.items() if i == request["kill"]}, signal.SIGKILL)
      else:
        _fork(request, fds[0], control, sandboxes)


def _words(error: OSError) -> str:
  return str(error).partition("] ")[2] or str(error)


def _fork(
  request: dict[str, Any], fd: int, control: socket.socket, sandboxes: dict[int, int]
) -> None:
  agent_fd = confine.agent_fd(request["limits"]["open_files"])
  os.dup2(fd, agent_fd, inheritable=False)
  os.close(fd)
  fd = agent_fd
  try:
    seccomp.program(kernel.MACHINE, agent_fd)  # is cached for the child
    pid = kernel.clone(kernel.EVERY_NAMESPACE)
  except OSError as error:
    with contextlib.suppress(OSError):
      wire.Wire(fd, fd).send({"failed": _words(error)})
    control.send(json.dumps({"ended": request["id"]}).encode())
    os.close(fd)
    return
  if pid:
    sandboxes[pid] = request["id"]
    os.close(fd)
    return
  try:
    signal.set_wakeup_fd(-1)
    os.close(control.detach())
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
      os.dup2(nothing, number)
    os.close(nothing)
    _become(request, wire.Wire(fd, fd))
  finally:
    os._exit(1)


def _become(request: dict[str, Any], link: wire.Wire) -> None:
  """The child: confines itself, then serves. Never returns."""
  try:
    kernel.die_with_parent()
    kernel.map_ids(INSIDE_ID, INSIDE_ID, INSIDE_ID, INSIDE_ID)
    kernel.bring_up_loopback()
    root = _mount(request)
    socket.sethostname("sandbox")
    confine.limit(request["limits"], processes=True)
    confine.give_up_rights()
  except OSError as error:
    link.send({"failed": _words(error)})
    os._exit(1)
  agent.run(link, agent.Place(root))


def _mount(request: dict[str, Any]) -> int:
  """Mounts /proc and the overlay; the directory that the overlay writes to."""
  limits = request["limits"]
  kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
  kernel.bound_tcp_buffers(_TCP_BYTES)
  size = f"size={limits['disk_bytes']},nr_inodes={limits['files']},mode=755"
  kernel.mount("tmpfs", _STATE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
  os.chdir(_STATE)
  os.mkdir("u")
  os.mkdir("w")
  root = os.open("u", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
  lower = ":".join(f"{LAYERS}/{name}" for name in request["layers"])
  options = f"lowerdir={lower},upperdir=u,workdir=w,userxattr,xino=off"
  kernel.mount("overlay", _STATE, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options)
  for name in ("work", "tmp"):
    kernel.mount(f"{_STATE}/{name}", f"/{name}", flags=kernel.MS_BIND)
  kernel.mount(_EMPTY_FOLDER, _STATE, flags=kernel.MS_BIND)
  for path, empty in (*_hidden(), *_empty_for(request["mask"])):
    kernel.mount(empty, path, flags=kernel.MS_BIND)
  os.chdir("/work")
  return root


def _empty_for(paths: Iterable[str]) -> list[tuple[str, str]]:
  """(path, what covers it) of those that exist."""
  return [
    (path, _EMPTY_FOLDER if os.path.isdir(path) else _EMPTY_FILE)
    for path in paths
    if os.path.lexists(path)
  ]


@functools.cache
def _hidden() -> list[tuple[str, str]]:
  """(path, what covers it) of those of _HIDDEN that exist; looked up once, in the zygote."""
  return _empty_for(f"/proc/{name}" for name in _HIDDEN)
