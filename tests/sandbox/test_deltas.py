"""What an agent sends is not believed: entries that lead out of a layer are errors."""

import itertools
import os
import struct

import pytest

from jaxrl_agents.sandbox import delta
from jaxrl_agents.sandbox.host import unpacking
from jaxrl_agents.sandbox.inside import seccomp

FOLDER = ["d", "work", 0o755, 0, 0]


@pytest.mark.parametrize(
  ("entries", "body", "match"),
  [
    ([["f", "../x", 0o644, 0, [[0, 0]]]], 0, "unsafe"),
    ([["f", "/etc/x", 0o644, 0, [[0, 0]]]], 0, "unsafe"),
    ([FOLDER, ["f", "work/..", 0o644, 0, [[0, 0]]]], 0, "unsafe"),
    ([FOLDER, ["f", "work/a\0", 0o644, 0, [[0, 0]]]], 0, "unsafe"),
    ([["f", "work/a", 0o644, 0, [[0, 0]]]], 0, "out of order"),
    (
      [FOLDER, ["l", "work/l", 0o777, 0, "/etc"], ["f", "work/l/x", 0o644, 0, [[0, 0]]]],
      0,
      "order",
    ),
    ([FOLDER, FOLDER], 0, "out of order"),
    ([FOLDER, ["f", "work/a", 0o4755, 0, [[0, 0]]]], 0, "unsafe mode"),
    ([FOLDER, ["h", "work/h", 0o644, 0, "../../etc/shadow"]], 0, "unknown file"),
    ([FOLDER, ["l", "work/l", 0o777, 0, 7]], 0, "no target"),
    ([FOLDER, ["b", "work/b", 0o644, 0, 0]], 0, "unknown kind"),
    ([FOLDER, ["f", "work/a", 0o644, 0, [[0, 9], [9, 0]]]], 5, "tells of 9 bytes and brings 5"),
    ([FOLDER, ["f", "work/a", 0o644, 0, [[5, 2], [3, 2]]]], 4, "unsafe extents"),
    ([FOLDER, ["f", "work/a", 0o644, 0, [[0, -1]]]], 0, "unsafe extents"),
  ],
)
def test_unsafe_entries_are_refused(entries, body, match):
  with pytest.raises(ValueError, match=match):
    unpacking.check(entries, body)


def test_a_delta_is_unpacked_as_it_was_gathered(tmp_path):
  tree = tmp_path / "tree"
  (tree / "work/d").mkdir(parents=True)
  (tree / "work/d/f").write_bytes(b"content")
  (tree / "work/d/f").chmod(0o600)
  (tree / "work/l").symlink_to("/etc/passwd")
  os.link(tree / "work/d/f", tree / "work/z")
  os.mkfifo(tree / "work/p")
  (tree / "tmp").mkdir()
  root = os.open(tree, os.O_RDONLY)
  entries, total = delta.gather(root, 1000, is_whole=False)
  os.close(root)
  assert [(e[0], e[1]) for e in entries] == [
    ("d", "tmp"),
    ("d", "work"),
    ("d", "work/d"),
    ("l", "work/l"),
    ("p", "work/p"),
    ("f", "work/z"),
    ("h", "work/d/f"),
  ]
  assert total == 7
  owned = []
  (tmp_path / "out").mkdir()
  out = os.open(tmp_path / "out", os.O_RDONLY)
  unpacking.unpack(unpacking.check(entries, 7), unpacking.slices(b"content"), out, own=owned.append)
  os.close(out)
  assert len(owned) == 7
  assert (tmp_path / "out/work/d/f").read_bytes() == b"content"
  assert (tmp_path / "out/work/d/f").stat().st_mode & 0o777 == 0o600
  assert (tmp_path / "out/work/d/f").stat().st_ino == (tmp_path / "out/work/z").stat().st_ino
  assert os.readlink(tmp_path / "out/work/l") == "/etc/passwd"
  times = [(tmp_path / name / "work/d").stat().st_mtime_ns for name in ("tree", "out")]
  assert times[0] == times[1]


def verdict(program, arch, number, arguments=()):
  """Runs a classic BPF program on a call, as seccomp(2) describes it."""
  record = struct.pack("IIQ6Q", number, arch, 0, *itertools.islice((*arguments, *[0] * 6), 6))
  code = [struct.unpack_from("HBBI", program, 8 * i) for i in range(len(program) // 8)]
  at = register = 0
  while True:
    operation, if_true, if_false, value = code[at]
    at += 1
    if operation == 0x20:
      register = struct.unpack_from("I", record, value)[0]
    elif operation == 0x54:
      register &= value
    elif operation == 0x06:
      return value
    else:
      holds = {0x15: register == value, 0x35: register >= value}
      at += if_true if holds[operation] else if_false


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
ENOTSUP, NOTHING = 0x0005005F, 0x00050000
AGENT_FD = 256


@pytest.mark.parametrize(
  ("machine", "number", "arguments", "expected"),
  [
    ("x86_64", 0, (), ALLOW),  # read
    ("x86_64", 59, (), ALLOW),  # execve
    ("x86_64", 272, (), EPERM),  # unshare
    ("x86_64", 165, (), EPERM),  # mount
    ("x86_64", 435, (), ENOSYS),  # clone3
    ("x86_64", 56, (17,), ALLOW),  # clone as fork
    ("x86_64", 56, (0x10000011,), EPERM),  # clone, new user namespace
    ("x86_64", 56, (0x40000011,), EPERM),  # clone, new network namespace
    ("x86_64", 41, (1, 1, 0), ALLOW),  # socket, local
    ("x86_64", 41, (2, 1, 0), ALLOW),
    ("x86_64", 41, (10, 2, 0), ALLOW),
    ("x86_64", 41, (16, 3, 0), ALLOW),  # netlink, routes
    ("x86_64", 41, (16, 3, 9), EPERM),  # netlink, audit
    ("x86_64", 41, (40, 1, 0), EPERM),  # vsock
    ("x86_64", 41, (17, 3, 0), EPERM),  # packet
    ("x86_64", 53, (40, 1, 0), EPERM),
    ("x86_64", 16, (0, 0x5412), EPERM),  # ioctl TIOCSTI
    ("x86_64", 16, (0, 0x5401), ALLOW),
    ("x86_64", 0x40000000, (), KILL),  # x32
    ("x86_64", 41, (2, 1, 132), EPERM),  # socket, SCTP
    ("x86_64", 41, (10, 1, 6), ALLOW),
    ("x86_64", 41, (1, 1, 132), ALLOW),  # local: the kernel decides
    ("x86_64", 56, (0x3D0F00,), ALLOW),  # clone as pthread_create
    ("x86_64", 56, (0x10000 | 0x900,), EPERM),  # clone, a thread with files of its own
    ("x86_64", 436, (3, 9, 2), EPERM),  # close_range, unshare
    ("x86_64", 436, (3, 9, 4), ALLOW),
    ("x86_64", 9, (0, 4096, 3, 0x22), ALLOW),  # mmap, private and anonymous
    ("x86_64", 9, (0, 4096, 3, 0x01), ALLOW),  # mmap, shared, of a file
    ("x86_64", 9, (0, 4096, 3, 0x21), EPERM),  # mmap, shared and anonymous
    ("x86_64", 9, (0, 4096, 3, 0x23), EPERM),  # the same, validated
    ("x86_64", 9, (0, 4096, 3, 0x40022), EPERM),  # mmap, huge pages
    ("x86_64", 72, (0, 1031, 1 << 20), EPERM),  # fcntl, size of a pipe
    ("x86_64", 72, (0, 1032), ALLOW),
    ("x86_64", 302, (1, 7, 0, 1 << 40), ALLOW),  # prlimit64 of another process, reading
    ("x86_64", 302, (1, 7, 1 << 12), EPERM),  # and setting, with either half of a pointer
    ("x86_64", 302, (1, 7, 1 << 32), EPERM),
    ("x86_64", 302, (0, 7, 1 << 12), ALLOW),
    ("x86_64", 40, (AGENT_FD, 3), ALLOW),  # sendfile by the agent
    ("x86_64", 40, (3, AGENT_FD), EPERM),
    ("x86_64", 54, (3, 1, 8), NOTHING),  # setsockopt, size of the buffer
    ("x86_64", 54, (3, 1, 2), ALLOW),
    ("x86_64", 54, (3, 1, 26), EPERM),  # setsockopt, a filter
    ("x86_64", 54, (3, 6, 31), EPERM),  # setsockopt, TLS in the kernel
    ("x86_64", 54, (3, 6, 26), ALLOW),
    ("x86_64", 157, (22, 2), EPERM),  # prctl, a filter
    ("x86_64", 157, (15,), ALLOW),
    ("x86_64", 141, (0, 0, 5), ALLOW),  # setpriority of oneself
    ("x86_64", 141, (0, 1, 5), EPERM),
    ("x86_64", 141, (2, 0, 5), EPERM),
    ("x86_64", 203, (1, 8), EPERM),  # sched_setaffinity of process 1
    ("x86_64", 188, (), ENOTSUP),  # setxattr
    ("x86_64", 162, (), NOTHING),  # sync
    ("x86_64", 319, (), EPERM),  # memfd_create
    ("aarch64", 0, (), EPERM),  # io_setup
    ("aarch64", 71, (AGENT_FD,), ALLOW),  # sendfile
    ("aarch64", 71, (1,), EPERM),
    ("aarch64", 222, (0, 4096, 3, 0x21), EPERM),  # mmap
    ("aarch64", 63, (), ALLOW),  # read
    ("aarch64", 97, (), EPERM),  # unshare
    ("aarch64", 40, (), EPERM),  # mount
    ("aarch64", 220, (17,), ALLOW),
    ("aarch64", 220, (0x00020011,), EPERM),
    ("aarch64", 198, (40, 1, 0), EPERM),
    ("aarch64", 435, (), ENOSYS),
  ],
)
def test_the_filter_decides_as_the_table_says(machine, number, arguments, expected):
  arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
  assert verdict(seccomp.program(machine, AGENT_FD), arch, number, arguments) == expected


def test_calls_of_another_architecture_end_the_process():
  assert verdict(seccomp.program("x86_64", AGENT_FD), 0x40000003, 4) == KILL
  with pytest.raises(OSError, match="no table of system calls for riscv64"):
    seccomp.program("riscv64", AGENT_FD)
