"""What a backend is worth on this machine: each promise is tried in a real sandbox.

report = asyncio.run(probe("namespaces"))
print(report)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
from collections.abc import Awaitable, Callable

from jaxrl_agents.sandbox.errors import SandboxError
from jaxrl_agents.sandbox.host import machine_properties
from jaxrl_agents.sandbox.host.command_backends import PACKAGE_ROOT
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.sandbox.records import Property, Report, SandboxLimits

_LIMITS = SandboxLimits(memory_bytes=256 << 20, processes=16, disk_bytes=8 << 20, files=500)
_ITS_OWN = ("/", "/tmp", "/work")
"""Folders that a sandbox has of its own, also where a user of the machine is at home in one."""
_OTHER = "use the backend `namespaces`, which keeps this promise"

Check = Callable[[Sandbox, Sandboxes], Awaitable[str]]


async def _runs(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec("python3 -c 'print(6 * 7)'", timeout_s=20)
  return "" if result.output == "42\n" else f"python3 printed {result.output!r}"


async def _network(box: Sandbox, _: Sandboxes) -> str:
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    result = await box.exec(f'python3 -c "{code}"', timeout_s=10)
  if result.code == 0:
    return "a server of this machine was reached"
  result = await box.exec("cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' \\n'")
  return "" if result.output in ("lo", "") else f"there are interfaces {result.output}"


async def _system(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec(
    "touch /usr/x /etc/x /x /usr/bin/x 2>&1 | wc -l; rm -f /usr/bin/cat; cat /dev/null"
  )
  return "" if result.output.startswith("4\n") and result.code == 0 else "the system was written to"


async def _host_files(box: Sandbox, _: Sandboxes) -> str:
  hidden = [str(PACKAGE_ROOT), str(pathlib.Path.home()), "/var", "/etc/shadow", "/boot", "/root"]
  hidden = [path for path in hidden if os.path.exists(path) and not path.startswith("/run/agent")]
  hidden = [path for path in hidden if path not in _ITS_OWN]
  seen = await box.exec(f"for p in {' '.join(hidden)}; do [ -e $p ] && echo $p; done; true")
  return f"visible: {seen.output.split()}" if seen.output else ""


async def _processes_hidden(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec("set -- /proc/[0-9]*; echo $#")
  return "" if int(result.output or 99) <= 5 else f"{result.output.strip()} processes are visible"


async def _nested(box: Sandbox, _: Sandboxes) -> str:
  code = "import ctypes; raise SystemExit(ctypes.CDLL(None).unshare(0x10000000) == 0)"
  result = await box.exec(f'python3 -c "{code}"')
  return "" if result.code == 0 else "a user namespace could be made inside"


async def _time(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec("trap '' INT; while :; do :; done", timeout_s=0.3)
  again = await box.exec("echo back", timeout_s=10)
  return "" if (result.why, again.output) == ("timeout", "back\n") else f"{result.why!r}, {again!r}"


async def _memory(box: Sandbox, _: Sandboxes) -> str:
  code = "x = bytearray(200 << 20); import time; time.sleep(9)"
  result = await box.exec(f'for i in 1 2 3; do python3 -c "{code}" & done; wait', timeout_s=8)
  return "" if result.why == "memory" else "three times 200 MB were had with a limit of 256 MB"


async def _process_limit(box: Sandbox, _: Sandboxes) -> str:
  code = "import os, time\nfor n in range(30):\n  if not os.fork(): time.sleep(9); os._exit(0)\n"
  await box.write("forks.py", code)
  result = await box.exec("python3 forks.py", timeout_s=8)
  await box.reset()
  return "" if result.code else "31 processes were had, 16 are allowed"


async def _disk(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec("for i in 1 2 3; do head -c 6M /dev/zero > f$i; done; cat f? | wc -c", 20)
  size = int(result.output.split()[-1])
  return "" if size <= 9 << 20 else f"{size} bytes were written, {8 << 20} are allowed"


async def _hidden_memory(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec(f"python3 -c '{_HIDERS}'")
  if result.output != "\n":
    return f"memory can be had as {result.output.strip()}"
  code = "import os, socket, time\nfor _ in range(8): os.fork() or exec(hold)\ntime.sleep(2)\n"
  hold = "hold = 's = [socket.socketpair() for _ in range(120)]; time.sleep(9); os._exit(0)'\n"
  await box.write("sockets.py", hold + code)
  result = await box.exec("python3 sockets.py", timeout_s=8)
  await box.reset()
  return "" if result.why == "memory" else "1,920 sockets were had with a limit of 256 MB"


async def _agent(box: Sandbox, _: Sandboxes) -> str:
  code = (
    "import os, resource as r, sys; pid = int(sys.argv[1]); same = r.prlimit(pid, r.RLIMIT_CPU); "
    "r.prlimit(pid, r.RLIMIT_CPU, same)"
  )
  result = await box.exec(f'python3 -c "{code}" $PPID')
  return "" if "PermissionError" in result.output else "limits of the agent can be changed"


async def _shared_counts(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec(f"python3 -c '{_TAKERS}'")
  return f"a sandbox can use up {result.output.strip()}" if result.output != "\n" else ""


async def _told_apart(box: Sandbox, _: Sandboxes) -> str:
  result = await box.exec("cat /proc/cmdline /proc/sys/kernel/random/boot_id 2>/dev/null")
  return "the kernel's command line or the id of its start can be read" if result.output else ""


async def _states(box: Sandbox, boxes: Sandboxes) -> str:
  await box.exec("cd d && rm -r e && mkdir e && echo new > e/f && X=1; ln -s f e/g")
  forks = await box.fork(2)
  seen = [await fork.exec("echo $X; cat e/*; echo e/*; echo mine > e/f") for fork in forks]
  await asyncio.gather(*(fork.close() for fork in forks))
  wanted = "1\nnew\nnew\ne/f e/g\n"
  return "" if all(one.output == wanted for one in seen) else f"a fork saw {seen[0].output!r}"


# What can be held that belongs to no process.
_HIDERS = """
import ctypes, mmap, os
libc = ctypes.CDLL(None)
had = []
for name, get in (
  ("shared mappings", lambda: mmap.mmap(-1, 4096)),
  ("shared mappings of /dev/zero", lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096)),
  ("files without a name", lambda: os.memfd_create("x")),
):
  try:
    get()
    had.append(name)
  except OSError:
    pass
segment = libc.shmget(0, 4096, 0o1600)
if segment >= 0:
  libc.shmctl(segment, 0, None)
  had.append("segments of System V")
print(", ".join(had))
"""
# What the kernel counts for a user, or for the whole machine.
_TAKERS = """
import ctypes
libc = ctypes.CDLL(None)
timer, had = ctypes.c_void_p(), []
if libc.inotify_init1(0) >= 0:
  had.append("instances of inotify")
if all(libc.timer_create(1, None, ctypes.byref(timer)) == 0 for _ in range(1000)):
  had.append("timers")
print(", ".join(had))
"""

_CHECKS: dict[str, tuple[Check, str]] = {
  "commands run": (_runs, "choose a store on a file system that may execute: Sandboxes(store=...)"),
  "no network": (_network, _OTHER),
  "the system is read-only": (_system, _OTHER),
  "files of the machine are invisible": (_host_files, _OTHER),
  "processes of the machine are invisible": (_processes_hidden, _OTHER),
  "no namespaces inside": (_nested, _OTHER),
  "commands end in time": (_time, "report it: no backend should miss this"),
  "memory is limited": (_memory, _OTHER),
  "memory that no process owns is limited": (_hidden_memory, _OTHER),
  "processes are limited": (_process_limit, _OTHER),
  "disk is limited": (_disk, _OTHER),
  "the agent's limits cannot be changed": (_agent, _OTHER),
  "what sandboxes share cannot be used up": (_shared_counts, _OTHER),
  "the machine is not told apart from others": (_told_apart, _OTHER),
  "states are restored and forked": (
    _states,
    "the store must have user attributes (ext4, xfs, btrfs), and tmpfs too (Linux 6.6)",
  ),
}


async def probe(backend: str = "namespaces", store: pathlib.Path | None = None) -> Report:
  """Tries every promise of `backend` here. Raises ValueError for an unknown backend."""
  properties: list[Property] = []
  try:
    async with Sandboxes(backend, limits=_LIMITS, store=store) as boxes:
      base = await boxes.base({"d/e/f": "old", "d/e/h": "old"})
      for name, (check, remedy) in _CHECKS.items():
        why = ""
        try:
          async with contextlib.AsyncExitStack() as stack:
            box = await stack.enter_async_context(await boxes.create(base))
            why = await check(box, boxes)
        except (SandboxError, ValueError, IndexError) as error:
          why = f"{type(error).__name__}: {error}"
          if not properties:
            raise
        properties.append(Property(name, not why, why, remedy if why else ""))
      properties += machine_properties.all_of_them()
  except SandboxError as error:
    why, _, remedy = str(error).rpartition(": ")
    properties = [Property("sandboxes start", False, why or remedy, remedy)]
  return Report(backend, tuple(properties))
