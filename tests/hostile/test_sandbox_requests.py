"""Hostile requests, and hostile acts inside a sandbox: a request fails, the sandbox lives."""

import time

import pytest

from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.host import unpacking
from jaxrl_agents.sandbox.records import SandboxLimits

pytestmark = pytest.mark.slow


def test_a_path_with_a_lone_surrogate_is_refused_and_the_sandbox_lives(in_box):
  async def body(box):
    for call in (box.read("\ud800.txt"), box.write("\ud800.txt", b"x")):
      with pytest.raises(Refused, match="UnicodeEncodeError"):
        await call
    return (await box.exec("echo on")).output

  assert in_box(body) == "on\n"


@pytest.mark.parametrize(
  "status",
  [r"\0many\0/work\0", r"\0-\0work\0", r"\0\0\0", r"\0999999999999\0/work\0", r"\0\0377\0\0377\0"],
)
def test_a_forged_status_of_nonsense_costs_the_exit_code_alone(in_box, status):
  async def body(box):
    forge = f"for fd in /proc/$$/fd/*; do printf '{status}' >> $fd; done"
    await box.exec(f"({forge}) 2>/dev/null", timeout_s=5)
    await box.exec("true", timeout_s=5)
    await box.reset()
    return (await box.exec("echo on; pwd")).output

  assert in_box(body) == "on\n/work\n"


NEST = "d=x; for i in $(seq {depth}); do mkdir $d && cd $d || exit 7; done; touch end"


@pytest.mark.parametrize(("depth", "name"), [(100, "x"), (300, "x"), (80, "y" * 50)])
def test_folders_nested_too_deep_are_refused_and_the_sandbox_lives(in_box, depth, name):
  async def body(box):
    made = await box.exec(f"({NEST.format(depth=depth)})".replace("d=x", f"d={name}"))
    assert made.code == 0
    for call in (box.snapshot, box.diff):
      with pytest.raises(Refused, match="nested more than 64 deep|File name too long"):
        await call()
    return (await box.exec(f"rm -rf {name}; echo on")).output, bool(await box.snapshot())

  assert in_box(body) == ("on\n", True)


def test_too_many_names_are_refused_and_the_sandbox_lives(in_box):
  async def body(box):
    script = f"import os\nfor i in range(80_000): os.symlink('{'t' * 250}', f'{{i:05}}')"
    assert (await box.exec(f'python3 -c "{script}"', timeout_s=60)).code == 0
    with pytest.raises(Refused, match="names and holes of 16777216 bytes; remove some"):
      await box.snapshot()
    return (await box.exec("echo on")).output

  limits = SandboxLimits(files=200_000, disk_bytes=1 << 30, memory_bytes=1 << 30)
  assert in_box(body, limits=limits) == "on\n"


@pytest.mark.parametrize(
  "entry",
  [
    ["f", 7, 0o644, 0, [[0, 0]]],
    ["d", "/".join("a" * 66), 0o755, 0, 0],
    ["d", "work", 0o755, 1 << 70, 0],
    ["f", "work", 0o644, 0, [[1 << 50, 0]]],
    ["f", "work", 0o4755, 0, [[0, 0]]],
  ],
)
def test_changes_that_no_agent_of_ours_sends_are_refused_by_the_host(entry):
  with pytest.raises(ValueError, match="of a delta"):
    unpacking.check([entry], 0)


def test_a_file_of_holes_is_read_searched_and_overwritten_at_once(in_box):
  async def body(box):
    assert (await box.exec("truncate -s 1T big && echo in-the-end >> big")).code == 0
    start = time.perf_counter()
    content = await box.read("big", limit=1_000_001)
    end = await box.read("big", offset=1 << 40)
    found = await box.find([b"in-the-end"])
    await box.write("big", b"small")
    return content, end, found, await box.read("big"), time.perf_counter() - start

  content, end, found, small, seconds = in_box(body, limits=SandboxLimits(disk_bytes=1 << 41))
  assert (content, end, found, small) == (
    bytes(1_000_001),
    b"in-the-end\n",
    ["/work/big"],
    b"small",
  )
  assert seconds < 10.0


FIND = """
import os
needle = b"there-it-is"
for at in (0, (1 << 20) - 5, (1 << 21) - 11, 3_000_000 - len(needle)):
  text = b"x" * at + needle
  with open(f"at{at}", "wb") as f: f.write(text.ljust(3_000_000, b"x"))
with open("absent", "wb") as f: f.write(b"there-it-i" * 300_000)
with open("farm", "wb") as f: f.write(b"x" * 50_000_000 + needle)
for i in range(3_000): os.link("farm", f"farm{i}")
with open("holes", "wb") as f: f.seek(1 << 30); f.write(needle); f.truncate(1 << 32)
os.mkfifo("pipe"); os.symlink("pipe", "link"); os.symlink("loop", "loop")
for _ in range(1_500): os.mkdir("d" * 9); os.chdir("d" * 9)
with open("deep", "wb") as f: f.write(needle)
"""


def test_what_is_hidden_deep_in_a_farm_or_beside_holes_is_found(in_box):
  async def body(box):
    await box.write("/tmp/make.py", FIND)
    made = await box.exec("python3 /tmp/make.py", timeout_s=60)
    assert made.code == 0, made
    start = time.perf_counter()
    found = await box.find([b"there-it-is"], limit=10_000)
    return found, time.perf_counter() - start

  found, seconds = in_box(body, limits=SandboxLimits(disk_bytes=1 << 33))
  names = {path.rpartition("/")[2] for path in found if not path.startswith("/tmp")}
  assert {name for name in names if not name.startswith("farm")} == {
    *(f"at{at}" for at in (0, (1 << 20) - 5, (1 << 21) - 11, 3_000_000 - 11)), "holes", "deep"
  }  # fmt: skip
  assert len([name for name in names if name.startswith("farm")]) == 3_001
  assert seconds < 20.0


def test_a_read_of_more_than_a_sandbox_can_hold_is_refused_before_it_is_sent(in_box):
  async def body(box):
    with pytest.raises(ValueError, match="read the file in parts"):
      await box.read("main.py", limit=1 << 40)
    return (await box.exec("echo on")).output

  assert in_box(body) == "on\n"


HOSTILE_ACTS = {
  "a name of 255 bytes": "touch $(printf 'n%.0s' {1..255})",
  "a newline in a name": "touch $'a\nb' $'\n'; mkdir $'\n\n'",
  "a name that is no text": "touch $'\\xff\\xfe'; mkdir $'\\x80'; ln -s $'\\xff' l",
  "a farm of links": "echo 1 > f; for i in {1..2000}; do echo ln f h$i; done | bash",
  "links of links": "ln -s a b; ln -s b a; ln -s . here; ln -s / root",
  "no rights": "mkdir -p d/e; echo 1 > d/e/f; chmod 0 d/e/f d/e d; chmod 0 main.py pkg",
  "a whiteout": "mknod gone c 0 0 || true; mkdir d; mknod d/gone c 0 0 || true",
  "an opaque folder": "python3 -c 'import os; os.setxattr(\"pkg\", \"user.overlay.opaque\", "
                      "b\"y\")' || true; touch pkg/new",
  "many attributes": "python3 -c 'import os\nfor i in range(99): os.setxattr(\"main.py\", "
                     "f\"user.{i}\", b\"x\" * 900)' || true; echo 1 >> main.py",
  "a storm of renames": "for i in {1..300}; do mv main.py x; mv x main.py; done; mv main.py pkg/",
  "a folder in place of a file": "rm main.py; mkdir main.py; touch main.py/main.py",
  "a file in place of a folder": "rm -r pkg; echo 1 > pkg",
  "a folder that is replaced": "rm -r pkg; mkdir pkg; mv main.py pkg/a.txt",
  "a folder moved over": "mkdir n; mv pkg n/; mkdir pkg; mv n/pkg pkg/",
  "pipes and sockets": "mkfifo p; python3 -c 'import socket; socket.socket(1).bind(\"s\")'",
  "set-user-id": "cp /usr/bin/id .; chmod 6777 id; chmod 1777 pkg",
  "files that vanish": "(while :; do touch v{1..50}; rm -f v*; done) > /dev/null 2>&1 &",
  "old times": "touch -d 1901-01-01 main.py; touch -d 2400-01-01 pkg",
  "all is gone": "rm -rf /work/* /tmp/* 2> /dev/null; true",
  "a folder that is closed and gone": "mkdir -p q/r; chmod 0 q/r; chmod 500 q; chmod 0 /work; true",
}  # fmt: skip


@pytest.mark.parametrize("act", HOSTILE_ACTS.values(), ids=HOSTILE_ACTS)
def test_a_sandbox_survives_an_act_and_a_fork_sees_what_it_left(play, act):
  """The second act meets what the first one left; a third fork sees no further changes."""

  async def body(boxes, base):
    async with await boxes.create(base) as box:
      done = await box.exec(act, timeout_s=20)
      assert done.code in (0, 1), done
      await box.diff()
      (fork,) = await box.fork()
      await fork.exec(act, timeout_s=20)
      await fork.diff()
      (last,) = await fork.fork()
      await box.reset()
      await fork.close()
      seen = await last.diff()
      await last.close()
      listed = await box.exec("chmod 755 /work; find /work 2> /dev/null | wc -l")
      return seen, int(listed.output)

  seen, count = play(body)
  assert seen == {} and count >= 1
