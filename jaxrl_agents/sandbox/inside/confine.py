"""What a process gives up before it serves a policy: its user, its rights, system calls, excess."""

from __future__ import annotations

import os
import resource
from typing import Any

from jaxrl_agents.sandbox import kernel
from jaxrl_agents.sandbox.inside import seccomp


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


def limit(limits: dict[str, Any], *, processes: bool) -> None:
  """SandboxLimits on this process and each that it starts; `processes`: on their number, too.

  The kernel counts processes by user and user namespace: without a namespace of the sandbox's own,
  those of the same user would be counted.
  """
  wanted = {
    "AS": limits["memory_bytes"],
    "FSIZE": limits["disk_bytes"],
    "NOFILE": limits["open_files"],
    "CPU": limits["cpu_s"],
    "CORE": 0,
  }
  if processes:
    wanted["NPROC"] = limits["processes"] + 1  # and the agent
  for name, value in wanted.items():
    number = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


def give_up_rights() -> None:
  """No capability but, in reserve, to read whatever the mode (for snapshots); no tracing."""
  kernel.drop_capabilities(keep=1 << kernel.CAP_DAC_READ_SEARCH)
  kernel.set_dumpable(False)


def filter_calls() -> None:
  """The filter of system calls, for good."""
  kernel.forbid_new_privileges()
  kernel.install_filter(seccomp.program(kernel.MACHINE))
