"""The filter of system calls of a sandbox, as a classic BPF program built by hand.

Calls in `refused_calls` give EPERM, and so do some arguments of others (`_argument_rules`). clone3
gives ENOSYS, upon which C libraries fall back to clone, whose flags a filter can see. A call of
another architecture ends the process.
"""

from __future__ import annotations

import errno
import functools
import struct
from typing import NamedTuple

from jaxrl_agents.sandbox.inside import refused_calls

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_WHOLE = 0xFFFFFFFF
_CLONE3 = 435
_LOAD, _AND, _JEQ, _JGE, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16
_REFUSE, _IGNORE = _ERRNO | errno.EPERM, _ERRNO

_NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEW*, time included
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_CLOSE_RANGE_UNSHARE = 2
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_TCP, _UDP = 6, 17
_SOL_SOCKET, _SO_SNDBUF, _SO_RCVBUF, _SO_ZEROCOPY, _TCP_ULP = 1, 7, 8, 60, 31
_SO_ATTACH = (26, 50, 51, 52)  # filters, also for groups of ports
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_MAP_SHARED_ANONYMOUS, _MAP_HUGETLB = 0x21, 0x40000
_F_SETPIPE_SZ, _PR_SET_SECCOMP, _PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 1031, 22, 0, 1


class Check(NamedTuple):
  """A condition on half an argument: `(word & mask == value) == is_equal`.

  Attributes:
    word: 2 i is the low half of argument i, 2 i + 1 its high half.
  """

  word: int
  value: int
  is_equal: bool = True
  mask: int = _WHOLE


class Rule(NamedTuple):
  """What a system call, by its numbers on (x86_64, aarch64), gives where all checks hold."""

  numbers: tuple[int, int]
  checks: tuple[Check, ...]
  verdict: int = _REFUSE


def _argument_rules(agent_fd: int) -> list[Rule]:
  """What is refused by its arguments.

  Args:
    agent_fd: the agent's link to the host, the only thing that files may be sent to.
  """
  clone, socket, option = (56, 220), (41, 198), (54, 208)
  rules = [
    Rule(clone, (Check(0, 0, False, _NAMESPACE_FLAGS),)),
    # Threads with open files of their own would hide them: only those of the first are looked at.
    Rule(clone, (Check(0, _CLONE_THREAD, True, _CLONE_THREAD | _CLONE_FILES),)),
    Rule((436, 436), (Check(4, 0, False, _CLOSE_RANGE_UNSHARE),)),
    Rule((16, 29), (Check(2, _TIOCSTI),)),
    Rule((16, 29), (Check(2, _TIOCLINUX),)),
    # mmap: memory without a file of a limited disk belongs to one process, which is looked at.
    Rule((9, 222), (Check(6, _MAP_SHARED_ANONYMOUS, True, _MAP_SHARED_ANONYMOUS),)),
    Rule((9, 222), (Check(6, 0, False, _MAP_HUGETLB),)),
    Rule((72, 25), (Check(2, _F_SETPIPE_SZ),)),
    Rule((157, 167), (Check(0, _PR_SET_SECCOMP),)),
    Rule((40, 71), (Check(0, agent_fd, False),)),  # sendfile
    # setpriority, ioprio_set
    Rule((141, 140), (Check(0, _PRIO_PROCESS, False),)),
    Rule((141, 140), (Check(2, 0, False),)),
    Rule((251, 30), (Check(0, _IOPRIO_WHO_PROCESS, False),)),
    Rule((251, 30), (Check(2, 0, False),)),
  ]
  # prlimit64 of others reads; either half of the pointer to a new limit may be zero.
  rules += [Rule((302, 261), (Check(0, 0, False), Check(half, 0, False))) for half in (4, 5)]
  # sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr: of oneself alone.
  for numbers in ((142, 118), (144, 119), (203, 122), (314, 274)):
    rules.append(Rule(numbers, (Check(0, 0, False),)))
  # Local sockets, internet (of a namespace that has loopback alone), routes; above all not vsock,
  # which no namespace confines, and no protocol whose module the kernel would load.
  families = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
  rules.append(Rule(socket, tuple(Check(0, family, False) for family in families)))
  rules.append(Rule(socket, (Check(0, _AF_NETLINK), Check(4, _NETLINK_ROUTE, False))))
  protocols = tuple(Check(4, protocol, False) for protocol in (0, _TCP, _UDP))
  for family in (_AF_INET, _AF_INET6):
    rules.append(Rule(socket, (Check(0, family), *protocols)))
  rules.append(Rule((53, 199), (Check(0, _AF_UNIX, False),)))  # socketpair
  # Sizes are hints to the kernel: ignored, so that buffers have the size that is reckoned with.
  for name in (_SO_SNDBUF, _SO_RCVBUF):
    rules.append(Rule(option, (Check(2, _SOL_SOCKET), Check(4, name)), _IGNORE))
  for name in (*_SO_ATTACH, _SO_ZEROCOPY):
    rules.append(Rule(option, (Check(2, _SOL_SOCKET), Check(4, name))))
  return [*rules, Rule(option, (Check(2, _TCP), Check(4, _TCP_ULP)))]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
  return struct.pack("HBBI", code, if_true, if_false, value)


def _return(value: int) -> bytes:
  return _instruction(_RETURN, value)


def _when(number: int, body: list[bytes]) -> list[bytes]:
  """`body`, which must end in a return, for the system call `number` (which is in the register)."""
  return [_instruction(_JEQ, number, 0, len(body)), *body]


def _when_any(numbers: list[int], verdict: int) -> list[bytes]:
  """Returns `verdict` for each of `numbers`. A short program is compiled soon, at every fork."""
  *others, last = numbers
  jumps = [_instruction(_JEQ, number, len(others) - i) for i, number in enumerate(others)]
  return [*jumps, _instruction(_JEQ, last, 0, 1), _return(verdict)]


def _compiled(rule: Rule) -> list[bytes]:
  """Returns the verdict of `rule` where all its checks hold; else goes on behind it."""
  code = [_return(rule.verdict)]
  for check in reversed(rule.checks):
    jumps = (0, len(code)) if check.is_equal else (len(code), 0)
    masked = [_instruction(_AND, check.mask)] if check.mask != _WHOLE else []
    load = _instruction(_LOAD, _OFFSET_ARGUMENTS + 4 * check.word)  # little-endian
    code = [load, *masked, _instruction(_JEQ, check.value, *jumps), *code]
  return code


@functools.cache
def program(machine: str, agent_fd: int) -> bytes:
  """The filter for one architecture.

  Args:
    agent_fd: a descriptor that only the agent can have, since it is above the limit of the others.

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
  bodies: dict[int, list[bytes]] = {}
  for rule in _argument_rules(agent_fd):
    bodies.setdefault(rule.numbers[column], []).extend(_compiled(rule))
  for number, body in bodies.items():
    code += _when(number, [*body, _return(_ALLOW)])
  for table, verdict in (
    (refused_calls.REFUSED, _REFUSE),
    (refused_calls.WITHOUT_ATTRIBUTES, _ERRNO | errno.EOPNOTSUPP),
    (refused_calls.WITHOUT_EFFECT, _IGNORE),
  ):
    code += _when_any([n for row in table.values() if (n := row[column]) is not None], verdict)
  return b"".join([*code, _return(_ALLOW)])
