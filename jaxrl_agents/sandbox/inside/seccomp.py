"""The system calls that a sandbox refuses, as a classic BPF program built by hand.

Refused calls give EPERM; clone3 gives ENOSYS, upon which C libraries fall back to clone, whose
flags a filter can see. A call of another architecture ends the process. Sockets are local,
internet (of a network namespace that has loopback alone) or route netlink; above all not vsock,
which no namespace confines.
"""

from __future__ import annotations

import errno
import functools
import struct

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Name -> number on (x86_64, aarch64); None where it does not exist.
_DENIED: dict[str, tuple[int | None, int | None]] = {
  # other namespaces and file trees
  "unshare": (272, 97),
  "setns": (308, 268),
  "mount": (165, 40),
  "umount2": (166, 39),
  "pivot_root": (155, 41),
  "chroot": (161, 51),
  "open_tree": (428, 428),
  "move_mount": (429, 429),
  "fsopen": (430, 430),
  "fsconfig": (431, 431),
  "fsmount": (432, 432),
  "fspick": (433, 433),
  "mount_setattr": (442, 442),
  "open_tree_attr": (467, 467),
  "name_to_handle_at": (303, 264),
  "open_by_handle_at": (304, 265),
  "swapon": (167, 224),
  "swapoff": (168, 225),
  "quotactl": (179, 60),
  "quotactl_fd": (443, 443),
  # other processes
  "ptrace": (101, 117),
  "process_vm_readv": (310, 270),
  "process_vm_writev": (311, 271),
  "process_madvise": (440, 440),
  "pidfd_getfd": (438, 438),
  "kcmp": (312, 272),
  # large or rarely audited parts of the kernel
  "bpf": (321, 280),
  "perf_event_open": (298, 241),
  "userfaultfd": (323, 282),
  "io_uring_setup": (425, 425),
  "io_uring_enter": (426, 426),
  "io_uring_register": (427, 427),
  "add_key": (248, 217),
  "request_key": (249, 218),
  "keyctl": (250, 219),
  "fanotify_init": (300, 262),
  "lookup_dcookie": (212, 18),
  "syslog": (103, 116),
  "modify_ldt": (154, None),
  "uselib": (134, None),
  "vhangup": (153, 58),
  "acct": (163, 89),
  # the machine
  "kexec_load": (246, 104),
  "kexec_file_load": (320, 294),
  "init_module": (175, 105),
  "finit_module": (313, 273),
  "delete_module": (176, 106),
  "reboot": (169, 142),
  "iopl": (172, None),
  "ioperm": (173, None),
  "settimeofday": (164, 170),
  "clock_settime": (227, 112),
  "clock_adjtime": (305, 266),
  "adjtimex": (159, 171),
  "sethostname": (170, 161),
  "setdomainname": (171, 162),
}
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_SOCKET, _SOCKETPAIR = {"x86_64": 41, "aarch64": 198}, {"x86_64": 53, "aarch64": 199}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEW*, time included
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16
_DENY = _ERRNO | errno.EPERM


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
  return struct.pack("HBBI", code, if_true, if_false, value)


def _return(value: int) -> bytes:
  return _instruction(_RETURN, value)


def _load_argument(index: int) -> bytes:
  return _instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * index)  # its low half, little-endian


def _when(number: int, body: list[bytes]) -> list[bytes]:
  """`body`, which must end in a return, for the system call `number` (which is in the register)."""
  return [_instruction(_JEQ, number, 0, len(body)), *body]


def _socket_rule() -> list[bytes]:
  families = (_AF_UNIX, _AF_INET, _AF_INET6)
  rule = [_load_argument(0)]
  for i, family in enumerate(families):
    rule.append(_instruction(_JEQ, family, len(families) - i + 3, 0))
  return [
    *rule,
    _instruction(_JEQ, _AF_NETLINK, 0, 2),
    _load_argument(2),
    _instruction(_JEQ, _NETLINK_ROUTE, 1, 0),
    _return(_DENY),
    _return(_ALLOW),
  ]


@functools.cache
def program(machine: str) -> bytes:
  """The filter for one architecture.

  Raises:
    OSError: an architecture whose numbers are not in the table.
  """
  if machine not in _AUDIT_ARCH:
    known = ", ".join(_AUDIT_ARCH)
    raise OSError(f"seccomp: no table of system calls for {machine}; known are {known}")
  column = list(_AUDIT_ARCH).index(machine)
  code = [
    _instruction(_LOAD, _OFFSET_ARCH),
    _instruction(_JEQ, _AUDIT_ARCH[machine], 1, 0),
    _return(_KILL),
    _instruction(_LOAD, _OFFSET_NUMBER),
  ]
  if machine == "x86_64":
    code += [_instruction(_JGE, _X32_BIT, 0, 1), _return(_KILL)]
  code += _when(_CLONE3, [_return(_ERRNO | errno.ENOSYS)])
  flags = [
    _load_argument(0),
    _instruction(_JSET, _NAMESPACE_FLAGS, 0, 1),
    _return(_DENY),
    _return(_ALLOW),
  ]
  code += _when(_CLONE[machine], flags)
  code += _when(_SOCKET[machine], _socket_rule())
  code += _when(_SOCKETPAIR[machine], _socket_rule())
  terminal = [
    _load_argument(1),
    _instruction(_JEQ, _TIOCSTI, 1, 0),
    _instruction(_JEQ, _TIOCLINUX, 0, 1),
    _return(_DENY),
    _return(_ALLOW),
  ]
  code += _when(_IOCTL[machine], terminal)
  numbers = sorted(n for row in _DENIED.values() if (n := row[column]) is not None)
  for number in numbers:
    code += _when(number, [_return(_DENY)])
  return b"".join([*code, _return(_ALLOW)])
