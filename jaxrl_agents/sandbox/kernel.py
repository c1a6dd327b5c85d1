"""The system calls that a sandbox is made of and that Python's `os` lacks, through ctypes.

Each raises `OSError` with the name of the step, so that a failure says what this machine forbids.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import struct

MACHINE = platform.machine()
"""As the kernel names it: x86_64, aarch64."""

# System calls without a wrapper in every C library.
_NUMBERS = {
  "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126},
  "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91},
}

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
EVERY_NAMESPACE = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 22, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2

CAP_DAC_READ_SEARCH = 2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]


def _check(result: int, step: str) -> int:
  if result < 0:
    number = ctypes.get_errno()
    raise OSError(number, f"{step}: {os.strerror(number)}")
  return result


def _number(name: str) -> int:
  if MACHINE not in _NUMBERS:
    raise OSError(f"{name}: the numbers of system calls on {MACHINE} are unknown")
  return _NUMBERS[MACHINE][name]


def clone(flags: int) -> int:
  """fork(2) into new namespaces: 0 in the child, its process id in the parent.

  The caller must have a single thread. Unlike `os.fork` it runs no hooks, and unlike a fork that is
  followed by unshare(2) the child itself is in the new process namespace: one fork, not two.
  """
  arguments = [ctypes.c_long(n) for n in (_number("clone"), flags | signal.SIGCHLD, 0, 0, 0, 0)]
  return _check(_libc.syscall(*arguments), "clone")


def unshare(flags: int) -> None:
  """unshare(2)."""
  _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
  """mount(2); paths may be relative to the working directory."""
  result = _libc.mount(
    os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, os.fsencode(options)
  )
  _check(result, f"mount {kind or 'bind'} on {target}")


def unmount(target: str) -> None:
  """umount2(2), at once; what is open or bound elsewhere stays."""
  _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def enter_root(path: str) -> None:
  """Makes the mount point `path` the root directory, and the old root disappear."""
  os.chdir(path)
  _check(_libc.syscall(ctypes.c_long(_number("pivot_root")), b".", b"."), "pivot_root")
  unmount(".")
  os.chdir("/")


def bound_tcp_buffers(most_bytes: int) -> None:
  """Bounds what sockets of the network namespace may hold, by default up to 32 MB each."""
  for name in ("tcp_rmem", "tcp_wmem"):
    try:
      fd = os.open(f"/proc/sys/net/ipv4/{name}", os.O_WRONLY)  # a file object takes twice as long
      os.write(fd, b"4096 %d %d" % (min(65536, most_bytes), most_bytes))
      os.close(fd)
    except OSError as error:
      raise OSError(error.errno, f"write {name}: {error.strerror}") from error


def map_ids(inside_uid: int, outside_uid: int, inside_gid: int, outside_gid: int) -> None:
  """Names the one user and group that exist in the user namespace just entered."""
  for name, text in (
    ("setgroups", "deny"),
    ("uid_map", f"{inside_uid} {outside_uid} 1"),
    ("gid_map", f"{inside_gid} {outside_gid} 1"),
  ):
    try:
      with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
    except OSError as error:
      raise OSError(error.errno, f"write {name}: {error.strerror}") from error


def bring_up_loopback() -> None:
  """Makes 127.0.0.1 of the network namespace work."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    request = struct.pack("16sh22x", b"lo", _IFF_UP)
    buffer = ctypes.create_string_buffer(request)
    _check(_libc.ioctl(sock.fileno(), ctypes.c_ulong(_SIOCSIFFLAGS), buffer), "bring up lo")


def drop_capabilities(keep: int) -> None:
  """Empties the bounding and ambient sets, and all others but for `keep` in the permitted set."""
  last = 0
  while _libc.prctl(_PR_CAPBSET_DROP, last, 0, 0, 0) == 0:
    last += 1
  if last <= CAP_DAC_READ_SEARCH:
    raise OSError(ctypes.get_errno(), "prctl: the capability bounding set cannot be emptied")
  _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
  set_capabilities(permitted=keep, effective=0)


def set_capabilities(permitted: int, effective: int) -> None:
  """capset(2) of the calling thread; nothing is inheritable."""
  header = struct.pack("Ii", 0x20080522, 0)
  sets = struct.pack(
    "6I", effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, 0, effective >> 32, permitted >> 32, 0
  )
  _check(_libc.syscall(ctypes.c_long(_number("capset")), header, sets), "capset")


def set_dumpable(dumpable: bool) -> None:
  """Whether others of the same user may trace this process and read its /proc entries."""
  _check(_libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "prctl dumpable")


def hide_command_line() -> None:
  """Blanks what /proc shows of how this process was started: paths of the machine."""
  with open("/proc/self/stat", "rb") as file:
    fields = file.read().rpartition(b")")[2].split()
  start, end = int(fields[45]), int(fields[46])
  if 0 < start < end:
    ctypes.memset(start, 0, end - start)


def die_with_parent() -> None:
  """SIGKILL to this process when the thread that made it ends."""
  _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl pdeathsig")


def adopt_orphans() -> None:
  """Descendants whose parent ends become children of this process."""
  _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl subreaper")


def forbid_new_privileges() -> None:
  """execve(2) never gains rights, and a filter may be installed."""
  _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl no_new_privs")


def install_filter(program: bytes) -> None:
  """A seccomp filter (see `seccomp.program`) for this process and all it will ever start."""
  code = ctypes.create_string_buffer(program, len(program))
  header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
  _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "prctl seccomp")
