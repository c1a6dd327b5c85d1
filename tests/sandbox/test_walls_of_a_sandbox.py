"""What a policy cannot reach from inside: network, machine, other sandboxes, the kernel's
listeners."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from jaxrl_agents.sandbox.host.sandboxes import Sandboxes

pytestmark = pytest.mark.slow

# Runs in the sandbox: tries system calls by number and prints what came of each.
ATTEMPTS = """
import ctypes, errno, json, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
NUMBERS = {
  "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
  "pivot_root": (155, 41), "chroot": (161, 51), "ptrace": (101, 117), "bpf": (321, 280),
  "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
  "keyctl": (250, 219), "add_key": (248, 217), "process_vm_readv": (310, 270),
  "open_by_handle_at": (304, 265), "move_mount": (429, 429), "fsopen": (430, 430),
  "open_tree": (428, 428), "kexec_load": (246, 104), "init_module": (175, 105),
  "reboot": (169, 142), "syslog": (103, 116), "settimeofday": (164, 170), "clone3": (435, 435),
  "swapon": (167, 224), "sethostname": (170, 161), "pidfd_getfd": (438, 438),
}
seen = {}
for name, numbers in NUMBERS.items():
  ctypes.set_errno(0)
  result = libc.syscall(ctypes.c_long(numbers[column]), 0, 0, 0, 0, 0, 0)
  seen[name] = errno.errorcode.get(ctypes.get_errno(), "0") if result < 0 else "allowed"
for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):
  ctypes.set_errno(0)
  result = libc.syscall(ctypes.c_long((56, 220)[column]), flag | 17, 0, 0, 0, 0)
  if result == 0:
    os._exit(0)
  seen[f"clone {flag:#x}"] = errno.errorcode.get(ctypes.get_errno(), "0")
for family in (socket.AF_PACKET, 40, 38, 15, 16):
  try:
    socket.socket(family, socket.SOCK_RAW if family != 40 else socket.SOCK_STREAM, 15)
    seen[f"socket {int(family)}"] = "allowed"
  except OSError as error:
    seen[f"socket {int(family)}"] = errno.errorcode[error.errno]
print(json.dumps(seen))
"""


def test_system_calls_that_lead_out_are_refused(in_box):
  async def body(box):
    await box.write("attempts.py", ATTEMPTS)
    return json.loads((await box.exec("python3 attempts.py")).output)

  seen = in_box(body)
  assert seen.pop("clone3") == "ENOSYS"
  assert {name: code for name, code in seen.items() if code != "EPERM"} == {}


def test_servers_of_the_machine_and_its_addresses_are_out_of_reach(in_box):
  with contextlib.ExitStack() as stack:
    tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    name = f"sandbox-test-{os.getpid()}"
    abstract.bind("\0" + name)
    abstract.listen()
    code = f"""
import socket
for family, kind, address in (
  (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {tcp.getsockname()[1]})),
  (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
  (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
  (socket.AF_UNIX, socket.SOCK_STREAM, "\\0{name}"),
):
  s = socket.socket(family, kind)
  s.settimeout(2)
  try:
    s.connect(address)
    print("reached", address)
  except OSError as error:
    print(type(error).__name__, error.errno)
"""

    async def body(box):
      await box.write("reach.py", code)
      return await box.exec(
        "python3 reach.py; cut -d: -f1 /proc/net/dev | tail -n +3; cat /proc/net/route | tail -n +2"
      )

    result = in_box(body)
  refused, unreachable = "ConnectionRefusedError 111", "OSError 101"
  assert result.output.split("\n") == [refused, unreachable, unreachable, refused, "    lo", ""]


def test_its_own_loopback_works(in_box):
  code = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.send(b"x")
print(server.accept()[0].recv(1))
"""

  async def body(box):
    await box.write("own.py", code)
    return (await box.exec("python3 own.py")).output

  assert in_box(body) == "b'x'\n"


@pytest.mark.parametrize(
  "path",
  ["/usr/x", "/usr/bin/x", "/usr/lib/x", "/etc/x", "/x", "/dev/x", "/mnt/x", "/run/x", "/proc/x"],
)
def test_the_system_is_read_only(in_box, path):
  async def body(box):
    return await box.exec(f"echo 1 > {path}")

  result = in_box(body)
  assert result.code == 1
  assert "Read-only file system" in result.output or path.startswith("/proc")


def test_settings_of_the_kernel_cannot_be_written(in_box):
  async def body(box):
    return await box.exec(
      "for f in vm/swappiness kernel/core_pattern user/max_user_namespaces kernel/hostname; do "
      "(echo 1 > /proc/sys/$f) 2>&1 | grep -c denied; done; "
      "for f in $(find /proc/sys -type f -writable); do (cat $f > $f) 2>/dev/null && echo $f; done"
    )

  swappiness = pathlib.Path("/proc/sys/vm/swappiness").read_text()
  result = in_box(body)
  assert result.output == "1\n" * 4
  assert pathlib.Path("/proc/sys/vm/swappiness").read_text() == swappiness


def test_the_machines_files_environment_and_processes_are_not_there(in_box, monkeypatch):
  monkeypatch.setenv("SANDBOX_TEST_SECRET", "do-not-tell")

  async def body(box):
    shown = await box.exec(
      "ls -d /root /home /var /boot /sys /opt /etc/shadow /work/layers /mnt/* 2>/dev/null; "
      "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/1/cmdline | tr '\\0' ' '"
    )
    pids = await box.exec("set -- /proc/[0-9]*; echo $#")
    await box.exec("true")
    found = await box.find([b"do-not-tell"])
    return shown.output, int(pids.output), found

  shown, pids, found = in_box(body)
  assert "do-not-tell" not in shown and str(pathlib.Path(__file__).parents[2]) not in shown
  assert not [
    line for line in shown.split("\n") if line.startswith(("/root", "/home", "/var", "/boot"))
  ]
  assert "/work/layers" not in shown and "/mnt/" not in shown and "/etc/shadow" not in shown
  assert pids <= 3 and found == []


def test_another_sandbox_is_neither_seen_nor_signalled(play):
  async def body(boxes, base):
    async with await boxes.create(base) as one, await boxes.create(base) as other:
      await other.exec(
        "echo theirs-alone > /work/secret; echo theirs-alone > /tmp/secret; sleep 30 &"
      )
      await one.exec("kill -9 -1", timeout_s=5)
      seen = await one.find([b"theirs-alone"])
      alive = await other.exec("jobs -r | wc -l")
      mine = await one.exec("echo alive")
      return seen, alive.output, mine.output

  assert play(body) == ([], "1\n", "alive\n")


def test_the_agent_can_neither_be_read_nor_killed(in_box):
  async def body(box):
    killed = await box.exec("kill -9 1; kill -STOP 1; kill -TERM 1; echo still")
    read = await box.exec(
      "for f in mem environ maps auxv stack syscall; do cat /proc/1/$f >/dev/null 2>&1 && echo $f; "
      "done; ls /proc/1/fd /proc/1/root /proc/1/cwd 2>&1 | grep -v -e denied -e '^$'"
    )
    return killed.output, read.output

  assert in_box(body) == ("still\n", "")


def test_nothing_is_inherited_from_the_host(in_box):
  code = "import os; print([n for n in range(1000) if os.path.exists(f'/proc/self/fd/{n}')])"

  async def body(box):
    return (await box.exec(f'python3 -c "{code}"')).output

  assert in_box(body) == "[0, 1, 2]\n"


def test_there_are_no_rights_to_gain(in_box):
  async def body(box):
    return (
      await box.exec("grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; id -u; id -g")
    ).output

  lines = in_box(body).split("\n")
  zero = "0000000000000000"
  assert [line.split()[1] for line in lines[:5]] == [zero] * 5
  assert [line.split()[1] for line in lines[5:7]] == ["1", "2"]
  assert lines[7:9] == ["1000", "1000"]


def test_a_device_is_there_only_if_harmless(in_box):
  async def body(box):
    made = []
    for path, kind, device in (
      ("/work/d", "S_IFCHR", "1, 3"),
      ("/work/b", "S_IFBLK", "254, 0"),
      ("/tmp/w", "S_IFCHR", "0, 0"),
    ):
      code = f"import os, stat; os.mknod('{path}', stat.{kind} | 0o666, os.makedev({device}))"
      made.append((await box.exec(f'python3 -c "{code}" 2>&1 | tail -1')).output)
    return "".join(made), (
      await box.exec("cd /dev; echo *; echo x > null; head -c3 zero | wc -c")
    ).output

  made, devices = in_box(body)
  assert made.count("Operation not permitted") == 3
  assert devices == "fd full null random shm stderr stdin stdout urandom zero\n3\n"


def test_sandboxes_are_never_roots(play):
  with pytest.raises(ValueError, match="never root's"):
    if os.geteuid() != 0:
      raise ValueError("never root's: this test runs as an ordinary user")
    Sandboxes(user=(0, 0))

  async def body(boxes, base):
    async with await boxes.create(base) as box:
      await box.exec("sleep 7654.321 & sleep 0.2")
      uids = set()
      for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
          if b"7654.321" in (folder / "cmdline").read_bytes():
            uids.add(folder.stat().st_uid)
      return uids

  uids = play(body)
  assert uids and 0 not in uids


def test_an_ordinary_user_gets_the_same_promises():
  if os.geteuid() != 0 or not os.access("/usr/bin/python3", os.X_OK):
    pytest.skip("needs root, to become somebody else, and a Python that everybody may run")
  version = subprocess.run(
    ["/usr/bin/python3", "-c", "import sys; print(sys.version_info >= (3, 11))"],
    capture_output=True,
  )
  root = pathlib.Path(__file__).parents[2]
  if version.stdout != b"True\n" or subprocess.run(["ls", root], user=65534).returncode:
    pytest.skip("needs a Python of 3.11 or later that everybody may run, and readable sources")
  code = (
    f"import asyncio, sys; sys.path.insert(0, {str(root)!r})\n"
    "from jaxrl_agents.sandbox.host.probe import probe\n"
    "print(asyncio.run(probe('namespaces')))"
  )
  shown = subprocess.run(
    ["/usr/bin/python3", "-c", code],
    user=65534,
    group=65534,
    extra_groups=[],
    cwd="/",
    env={"PATH": os.defpath},
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert "keeps its promises" in shown.stdout, (shown.stdout, shown.stderr, sys.executable)
