"""What a process gives up before it serves a policy: its user, its rights, system calls, excess."""

from __future__ import annotations

import os
import resource
from typing import Any

from jaxrl_agents.sandbox import kernel
from jaxrl_agents.sandbox.inside import seccomp

_LOCKED_BYTES = 64 << 10
_PENDING_SIGNALS = 256
_OOM_SCORE = 900


def drop_user(uid: int, gid: int) -> None:
  """Stops being root; without effect on anybody else.

  Raises:
    OSError: root was asked to stay root.
  """
  if os.geteuid() != 0:
    return
  if uid == 0 or gid == 0:
    raise OSError("a sandbox is never started as root: name an unprivileged uid and gid")
  os.setgroups([])
  os.setresgid(gid, gid, gid)
  os.setresuid(uid, uid, uid)
  kernel.set_dumpable(True)  # else /proc/self belongs to root


def give_way() -> None:
  """Lets a run go first: where memory runs out, sandboxes are ended; they get no priority.

  A process with CAP_SYS_RESOURCE sets the first for good; what others set, a policy can take back.
  """
  path = "/proc/self/oom_score_adj"
  with open(path, "rb") as file:
    is_first = int(file.read()) >= _OOM_SCORE
  if not is_first:  # else a container has set more, which may not be lowered
    with open(path, "w") as file:
      file.write(str(_OOM_SCORE))
  for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
    resource.setrlimit(kind, (0, 0))


def agent_fd(open_files: int) -> int:
  """The descriptor of an agent's link: the first that nobody under the limit `open_files` can have.

  By that number the filter tells the agent from all others.
  """
  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  return min(open_files, hard - 1)


def limit(limits: dict[str, Any], *, processes: bool) -> None:
  """SandboxLimits on this process and each that it starts; `processes`: on their number, too.

  The kernel counts processes by user and user namespace: without a namespace of the sandbox's own,
  those of the same user would be counted. Pending signals, which timers need too, are counted the
  same way, and again for the user outside of all namespaces.
  """
  wanted = {
    "AS": limits["memory_bytes"],
    "FSIZE": limits["disk_bytes"],
    "NOFILE": agent_fd(limits["open_files"]),
    "CPU": limits["cpu_s"],
    "MEMLOCK": _LOCKED_BYTES,
  }
  if processes:
    wanted["NPROC"] = limits["processes"] + 1  # and the agent
    wanted["SIGPENDING"] = _PENDING_SIGNALS
  for name, value in wanted.items():
    number = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


def give_up_rights() -> None:
  """No capability but, in reserve, to read whatever the mode (for snapshots); no tracing."""
  kernel.drop_capabilities(keep=1 << kernel.CAP_DAC_READ_SEARCH)
  kernel.set_dumpable(False)


def filter_calls(agent_fd: int) -> None:
  """The filter of system calls, for good; `agent_fd` is what `move_out_of_reach` gave."""
  kernel.forbid_new_privileges()
  kernel.install_filter(seccomp.program(kernel.MACHINE, agent_fd))
