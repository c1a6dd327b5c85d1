"""Programs beside the shell speak with the host, within the limits of their sandbox."""

import pathlib
import time

import pytest

from jaxrl_agents.sandbox.errors import Refused, SandboxClosed, SandboxLost
from jaxrl_agents.sandbox.host import program as program_lib
from jaxrl_agents.sandbox.host.runtime import Runtime
from jaxrl_agents.sandbox.records import SandboxLimits

pytestmark = pytest.mark.slow


def python(code):
  return ["python3", "-u", "-c", code]


async def all_of(program, limit_s=10.0):
  """Output and errors of a program until it ends."""
  output, errors, deadline = b"", b"", time.monotonic() + limit_s
  while time.monotonic() < deadline:
    found = await program.exchange(b"", 0.5)
    output, errors = output + found.output, errors + found.errors
    if found.ended:
      return output, errors
  raise AssertionError(f"the program has not ended in {limit_s} s")


def test_a_program_answers_line_by_line_while_the_shell_works_on_the_same_files(in_box):
  async def body(box):
    program = await box.start_program(
      python("for line in open(0): open('log', 'a').write(line); print(line.upper(), end='')"),
      env={},
    )
    first = await program.exchange(b"a\n", 5.0)
    shown = (await box.exec("cat log; echo b >> log")).output
    second = await program.exchange(b"c\n", 5.0)
    return first, shown, second, (await box.exec("cat log")).output

  first, shown, second, log = in_box(body)
  assert first == (b"A\n", b"", False) and second == (b"C\n", b"", False)
  assert (shown, log) == ("a\n", "a\nb\nc\n")


def test_an_exchange_waits_no_longer_than_it_is_told(in_box):
  async def body(box):
    program = await box.start_program(["sleep", "60"], env={})
    start = time.monotonic()
    found = await program.exchange(b"x" * 1_000_000, 0.3)  # more than a pipe holds
    return found, time.monotonic() - start, (await box.exec("echo alive")).output

  found, spent, alive = in_box(body)
  assert found == (b"", b"", False) and 0.3 <= spent < 2.0
  assert alive == "alive\n"


def test_an_input_that_a_program_reads_slowly_arrives_whole(in_box):
  async def body(box):
    code = "import time; time.sleep(0.5); print(len(input()))"
    program = await box.start_program(python(code), env={})
    await program.exchange(b"x" * 1_000_000 + b"\n", 0.1)
    return await all_of(program)

  assert in_box(body) == (b"1000000\n", b"")


def test_the_end_of_a_program_and_its_last_words_are_told_once(in_box):
  async def body(box):
    code = "import sys; print('out'); print('of cheese', file=sys.stderr); sys.exit(3)"
    program = await box.start_program(python(code), env={})
    seen = [await all_of(program)]
    with pytest.raises(Refused, match="has ended"):
      await program.exchange(b"", 0.1)
    seen.append(await all_of(await box.start_program(["no_such_program"], env={})))
    seen.append(await all_of(await box.start_program(["pwd"], env={}, cwd="nowhere")))
    return seen

  spoke, missing, nowhere = in_box(body)
  assert spoke == (b"out\n", b"of cheese\n")
  assert missing[1].endswith(b"no_such_program: not found\n")
  assert nowhere[1].endswith(b"/work/nowhere: No such file or directory\n")


def test_what_is_read_of_a_flood_at_once_is_bounded_and_the_rest_waits(in_box):
  async def body(box):
    program = await box.start_program(["yes", "x" * 1000], env={})
    sizes = [len((await program.exchange(b"", 5.0)).output) for _ in range(3)]
    await program.stop()
    gone = "for i in {1..100}; do pgrep yes || exit 7; sleep 0.1; done"
    return sizes, (await box.exec(f"({gone})")).code

  sizes, code = in_box(body)
  assert all(0 < size <= program_lib.MAX_EXCHANGED_BYTES for size in sizes)
  assert code == 7


def test_a_program_is_bound_by_the_limits_of_its_sandbox(in_box):
  limits = SandboxLimits(memory_bytes=256 << 20, disk_bytes=8 << 20)

  async def body(box):
    hoard = "blocks = []\nfor _ in range(8): blocks.append(bytearray(b'x' * (60 << 20)))\nprint(1)"
    alone = await all_of(await box.start_program(python(hoard), env={}))
    each = "import sys, time; b = bytearray(b'x' * (60 << 20)); print(1); time.sleep(60)"
    several = [await box.start_program(python(each), env={}) for _ in range(6)]
    killed = [await all_of(program, 30.0) for program in several]
    fill = "open('big', 'wb').write(bytes(64 << 20))"
    full = await all_of(await box.start_program(python(fill), env={}))
    out = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    network = await all_of(await box.start_program(python(out), env={}))
    return alone, killed, full, network, (await box.exec("rm big; echo alive")).output

  alone, killed, full, network, alive = in_box(body, limits=limits)
  assert b"MemoryError" in alone[1] and b"1\n" not in alone[0]
  assert len(killed) == 6
  assert b"File too large" in full[1] or b"No space left" in full[1]
  assert b"Network is unreachable" in network[1]
  assert alive == "alive\n"


def test_a_command_that_has_to_be_killed_with_everything_takes_programs_along(in_box):
  async def body(box):
    program = await box.start_program(["cat"], env={})
    await box.exec("echo fine; sleep 9", timeout_s=0.2)
    spared = await program.exchange(b"still here\n", 5.0)
    await box.exec("kill -STOP $$", timeout_s=0.2)
    return spared, await program.exchange(b"x\n", 5.0)

  spared, gone = in_box(body)
  assert spared == (b"still here\n", b"", False)
  assert gone.ended


def test_a_snapshot_has_the_files_of_a_program_and_not_the_program(in_box):
  async def body(box):
    code = "n = 0\nfor line in open(0): n += 1; open('n', 'w').write(str(n)); print(n)"
    program = await box.start_program(python(code), env={})
    await program.exchange(b"\n", 5.0)
    (fork,) = await box.fork()
    second = await program.exchange(b"\n", 5.0)
    shown = [(await each.exec("cat n; pgrep -c python3")).output for each in (box, fork)]
    await fork.close()
    return second.output, shown

  assert in_box(body) == (b"2\n", ["21\n", "10\n"])


def test_a_program_ends_with_its_sandbox(in_box):
  async def body(box):
    program = await box.start_program(["sleep", "987654"], env={})
    await program.exchange(b"", 0.1)
    was_gone = program.is_gone
    await box.close()
    with pytest.raises(SandboxClosed):
      await program.exchange(b"", 0.1)
    return was_gone, program.is_gone

  assert in_box(body) == (False, True)
  words = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
  assert not [each for each in words if b"987654" in each]


def test_a_lost_sandbox_is_told_from_a_closed_one(play):
  async def body(boxes, base):
    box = await boxes.create(base)
    program = await box.start_program(["cat"], env={})
    await boxes.kill(box.number)
    with pytest.raises(SandboxLost):
      await program.exchange(b"x\n", 5.0)
    return box.is_gone, box.is_lost

  assert play(body) == (True, True)


def test_wrong_commands_are_refused_before_they_reach_the_sandbox(in_box):
  async def body(box):
    for command, env in (([], {}), (["a\0b"], {}), (["a"], {"K": "\0"}), (["a" * 100_001], {})):
      with pytest.raises(ValueError, match="a command"):
        await box.start_program(command, env=env)

  in_box(body)


def test_packages_are_seen_by_programs_alone_and_can_neither_be_changed_nor_shadowed(in_box):
  pytest.importorskip("attr")
  where = "import attrs; print(attrs.__file__)"

  async def body(box):
    await box.write("attrs.py", "raise SystemExit('shadowed')")
    found = await all_of(await box.start_program(python(where), env={}))
    shell = await box.exec("cd /tmp && python3 -c 'import attrs' 2>&1 | tail -1")
    write = await box.exec("echo > /usr/lib/packages/attrs/new.py")
    return found, shell.output, write.output

  found, shell, write = in_box(body, runtime=Runtime(packages=("Attrs",)))
  assert found == (b"/usr/lib/packages/attrs/__init__.py\n", b"")
  assert shell == "ModuleNotFoundError: No module named 'attrs'\n"
  assert write.endswith("Read-only file system\n")
