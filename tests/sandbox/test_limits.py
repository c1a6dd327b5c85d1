"""Time, memory, processes, disk and output end where they should, and the sandbox lives on."""

import time

import pytest

from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.records import SandboxLimits

pytestmark = pytest.mark.slow

SMALL = SandboxLimits(
  memory_bytes=256 << 20, processes=20, disk_bytes=8 << 20, files=200, drained_bytes=4 << 20
)


@pytest.mark.parametrize(
  "command",
  [
    "sleep 60",
    "trap '' INT TERM; sleep 60",
    "while :; do :; done",
    "trap '' INT; while :; do :; done",
    "sleep 60 & kill -STOP $!; wait",
    "kill -STOP $$",
    "exec sleep 60",
    'python3 -c "import signal, time; signal.signal(2, 1); time.sleep(60)"',
    "sh -c 'trap \"\" INT; sleep 60 & sleep 60'",
  ],
)
def test_a_command_ends_in_time_and_the_next_one_runs(in_box, command):
  async def body(box):
    await box.exec("cd /work/pkg")
    start = time.monotonic()
    result = await box.exec(command, timeout_s=0.3)
    spent = time.monotonic() - start
    left = await box.exec("pwd; set -- /proc/[0-9]*; echo $#", timeout_s=10)
    return result.why, spent, left.output

  why, spent, left = in_box(body)
  assert why == "timeout"
  assert spent < 0.3 + 2 * 0.4 + 2.0
  directory, processes = left.split()
  assert directory == "/work/pkg"
  assert int(processes) <= 2  # the agent and the shell


def test_a_fork_bomb_that_ignores_signals_leaves_nothing(in_box):
  bomb = """
import os, signal
for number in range(1, 65):
  try: signal.signal(number, signal.SIG_IGN)
  except (OSError, ValueError): pass
while True:
  try: os.fork()
  except OSError: pass
"""

  async def body(box):
    await box.write("bomb.py", bomb)
    result = await box.exec("python3 bomb.py", timeout_s=0.5)
    left = await box.exec("set -- /proc/[0-9]*; echo $#", timeout_s=10)
    return result.why, left.output

  assert in_box(body, limits=SMALL) == ("timeout", "2\n")


def test_processes_are_limited_for_each_sandbox_on_its_own(play):
  code = """
import os, time
n = 0
try:
  while n < 50:
    if not os.fork():
      time.sleep(9)
      os._exit(0)
    n += 1
except OSError:
  pass
print(n)
"""

  async def body(boxes, base):
    seen = []
    one, two = await boxes.create(base), await boxes.create(base)
    for box in (one, two):
      await box.write("many.py", code)
      await box.exec("python3 many.py > n")
      seen.append(await box.read("n"))
    await one.close()
    await two.close()
    return seen

  assert play(body, limits=SMALL) == [b"18\n", b"18\n"]  # the shell and the first take two of 20


def test_one_process_cannot_take_too_much_memory(in_box):
  async def body(box):
    result = await box.exec("python3 -c 'x = bytearray(400 << 20)'")
    return result.code, result.output, (await box.exec("echo on")).output

  code, output, after = in_box(body, limits=SMALL)
  assert (code, after) == (1, "on\n") and "MemoryError" in output


def test_many_processes_cannot_take_too_much_memory_together(in_box):
  hold = "python3 -c 'import time; x = bytearray(150 << 20); time.sleep(30)' &"

  async def body(box):
    await box.exec("x=kept")
    result = await box.exec(f"{hold} {hold} {hold} wait", timeout_s=20)
    return result.why, (await box.exec("echo $x")).output

  assert in_box(body, limits=SMALL) == ("memory", "kept\n")


@pytest.mark.parametrize("command", ["sleep 50 & sleep 60", "(trap '' INT; sleep 50) & wait"])
def test_what_is_said_of_killed_jobs_is_output_of_the_command_that_was_cut_short(in_box, command):
  async def body(box):
    await box.exec("x=kept")
    cut = await box.exec(command, timeout_s=0.3)
    return cut.why, cut.output, (await box.exec("echo on $x")).output

  why, output, after = in_box(body)
  assert why == "timeout"
  if after == "on kept\n":
    assert "Killed" in output and "sleep 50" in output
  else:  # a busy machine: the shell did not end within the grace, is gone, and says nothing
    assert (output, after) == ("", "on\n")


def test_memory_is_watched_between_commands(in_box):
  hold = "python3 -c 'import time; time.sleep(0.3); x = bytearray(150 << 20); time.sleep(30)' &"

  async def body(box):
    await box.exec(f"{hold} {hold} {hold}")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
      jobs = (await box.exec("sleep 0.1; jobs -r | wc -l", timeout_s=9)).output
      if jobs.strip() == "0":
        return True
    return False

  assert in_box(body, limits=SMALL)


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_a_full_disk_is_an_error_of_the_command(in_box, folder):
  async def body(box):
    result = await box.exec(f"head -c 7M /dev/zero > {folder}/a; head -c 7M /dev/zero > {folder}/b")
    return result, (
      await box.exec(f"rm {folder}/a {folder}/b && echo yes > {folder}/c && cat {folder}/c")
    ).output

  result, after = in_box(body, limits=SMALL)
  assert result.code != 0 and "No space left on device" in result.output
  assert after == "yes\n"


def test_a_file_that_does_not_fit_the_disk_stays_as_it_was(in_box):
  async def body(box):
    await box.write("f", "before", mode=0o755)
    await box.exec("head -c 7M /dev/zero > a")
    with pytest.raises(Refused, match="No space left on device"):
      await box.write("f", b"x" * (6 << 20))
    kept = await box.read("f")
    await box.exec("rm a")
    await box.write("f", "after")
    return kept, (await box.exec("cat f; stat -c :%a f")).output

  assert in_box(body, limits=SMALL) == (b"before", "after:755\n")


def test_files_are_limited_in_number(in_box):
  async def body(box):
    return await box.exec("for i in $(seq 300); do echo > f$i || exit 7; done 2>&1 | tail -1")

  assert "No space left on device" in in_box(body, limits=SMALL).output


def test_a_flood_of_output_is_cut_and_counted(in_box):
  async def body(box):
    flood = await box.exec("yes", timeout_s=30)
    cut = await box.exec("seq 100000", output_bytes=1000)
    return flood, cut, (await box.exec("echo on")).output

  flood, cut, after = in_box(body, limits=SMALL)
  assert flood.why == "output" and len(flood.output) < 21_000 and after == "on\n"
  # `yes` was stopped after drained_bytes, of which output_bytes are kept.
  assert flood.missing_bytes > SMALL.drained_bytes - SMALL.output_bytes
  # seq 100000 writes 588,895 bytes; 1000 of them are kept.
  assert (cut.code, cut.why, cut.missing_bytes) == (0, "", 587_895)
  head, note, tail = (
    cut.output.split("\n[... ")[0],
    "587895 bytes of output are missing here",
    cut.output[-7:],
  )
  assert head.startswith("1\n2\n3\n") and note in cut.output and tail == "100000\n"


def test_output_that_fits_is_whole(in_box):
  async def body(box):
    return await box.exec("printf '%1000s' x", output_bytes=1000)

  result = in_box(body)
  assert result.missing_bytes == 0 and result.output == " " * 999 + "x"


@pytest.mark.parametrize(
  ("name", "value"), [("processes", 0), ("memory_bytes", 1000), ("cpu_s", 0), ("files", 1.5)]
)
def test_impossible_limits_are_refused(name, value):
  with pytest.raises(ValueError, match=f"SandboxLimits.{name}={value}"):
    SandboxLimits(**{name: value})
