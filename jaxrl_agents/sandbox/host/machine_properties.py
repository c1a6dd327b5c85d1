"""What a machine adds to the promises of a sandbox, and no backend can give."""

from __future__ import annotations

import pathlib

from jaxrl_agents.sandbox.records import Property

_GROUPS = pathlib.Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60


def all_of_them() -> list[Property]:
  """Each with a remedy where the machine lacks it."""
  pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
  group = has_memory_limit(pathlib.Path("/proc/self/cgroup").read_text(), _GROUPS)
  return [crashes(pattern), kernel_memory(group)]


def crashes(core_pattern: str) -> Property:
  """Whether a crash inside starts nothing outside. A limit of 0 does not keep a pipe from it."""
  name = "crashes inside start no program of the machine"
  if core_pattern[:1] not in ("|", "@"):
    return Property(name, True, is_promise=False)
  why = f"the kernel hands crashes to {core_pattern[1:].split()[0][:200]}"
  remedy = "sysctl kernel.core_pattern=core, if nobody needs that program"
  return Property(name, False, why, remedy, is_promise=False)


def kernel_memory(is_limited: bool) -> Property:
  """Whether small structures of the kernel (locks, mappings, watches of epoll) are counted."""
  name = "memory of the kernel is limited for all sandboxes together"
  if is_limited:
    return Property(name, True, is_promise=False)
  why = "this process is in no control group with a limit on memory"
  remedy = (
    "start runs in one: systemd-run --user --scope -p MemoryMax=32G COMMAND, or a container with "
    "a limit"
  )
  return Property(name, False, why, remedy, is_promise=False)


def has_memory_limit(groups: str, root: pathlib.Path) -> bool:
  """Whether one of the groups in /proc/self/cgroup, or one above it, has a limit on memory."""
  for line in groups.splitlines():
    _, controllers, path = line.split(":", 2)
    if not controllers:
      tree, name = root, "memory.max"
    elif "memory" in controllers.split(","):
      tree, name = root / "memory", "memory.limit_in_bytes"
    else:
      continue
    group = tree / path.lstrip("/")
    for folder in (group, *group.parents):
      if folder != tree and tree not in folder.parents:
        break
      file = folder / name
      text = file.read_text().strip() if file.is_file() else ""
      if text.isdigit() and int(text) < _NO_LIMIT:
        return True
  return False
