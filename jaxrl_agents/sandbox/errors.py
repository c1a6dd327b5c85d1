"""What can go wrong in the sandbox room."""

from __future__ import annotations


class SandboxError(Exception):
  """Something is wrong with a sandbox."""


class NoSandbox(SandboxError):
  """This machine cannot run the requested backend; the message gives the reason and the remedy."""


class SandboxLost(SandboxError):
  """A sandbox died, missed a deadline or said what no honest agent says; it is gone for good."""


class SandboxClosed(SandboxError):
  """A sandbox was used after its end."""


class Refused(SandboxError):
  """One request was refused and the sandbox lives; the message is fit to be read by a policy."""


_REMEDIES = (
  (
    ("unshare", "clone", "uid_map", "setgroups", "mount bind"),
    "this machine forbids user namespaces to ordinary users. "
    "Ubuntu: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or an AppArmor profile that "
    "allows them; Debian: `sysctl kernel.unprivileged_userns_clone=1`; any: raise "
    "`user.max_user_namespaces`. In a container: run it with a seccomp profile that allows "
    "unshare, clone and mount (docker: --security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined)",
  ),
  (
    ("mount proc",),
    "a container hides parts of /proc, so that no new one may be mounted; start it with "
    "--security-opt systempaths=unconfined (docker) or procMount: Unmasked (Kubernetes)",
  ),
  (("mount overlay",), "overlayfs in a user namespace needs Linux 5.11, on tmpfs Linux 6.6"),
  (("seccomp",), "this architecture has no table of system calls in sandbox/seccomp.py"),
  (("write tcp_",), "settings of the network in a namespace of its own need Linux 4.15"),
  (("open ",), "choose a store whose folders others may enter: Sandboxes(store=...)"),
)


def explain(failed: str) -> str:
  """The name of the failed step, with the remedy."""
  for steps, remedy in _REMEDIES:
    if any(step in failed for step in steps):
      return f"{failed}: {remedy}"
  return failed
