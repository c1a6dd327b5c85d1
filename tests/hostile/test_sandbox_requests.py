"""Hostile requests, and hostile acts inside a sandbox: a request fails, the sandbox lives."""

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
