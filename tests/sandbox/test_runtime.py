"""The runtime is small, complete enough to work in, and hides what a task needs hidden."""

import pathlib

import pytest

from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host.runtime import Runtime, copy_tree

pytestmark = pytest.mark.slow

HIDDEN = "/usr/lib/python3.*/textwrap.py"


def test_common_programs_and_the_standard_library_work(in_box):
  async def body(box):
    return await box.exec(
      "printf 'b\\na\\n' | sort | sed s/a/c/ | awk '{print $1}' | xargs; "
      "echo x > f; cp f g; diff f g; tar cf t.tar f; tar tf t.tar; grep -rn hello . ; "
      "python3 -c 'import json, sqlite3, ssl, ctypes, hashlib, unittest, zlib; print(1)'"
    )

  result = in_box(body)
  assert (result.code, result.output) == (0, "c b\nf\n./main.py:1:print('hello')\n1\n")


def test_an_answer_that_lies_in_the_library_is_found_by_the_audit_and_masked(play):
  async def body(boxes, _):
    seen = []
    async with await boxes.create(await boxes.base({"a": "Wrap a single paragraph"})) as box:
      name = (await box.exec("echo /usr/lib/python3*/textwrap.py")).output.strip()
      seen.append(await box.find([b"Wrap a single paragraph"]))
    cache = (name.replace("textwrap.py", "__pycache__"),)
    base = await boxes.base({"b": "1"}, mask=(name, *cache))
    async with await boxes.create(base) as box:
      seen.append(await box.find([b"Wrap a single paragraph"]))
      seen.append((await box.exec(f"wc -c < {name}; ls {cache[0]}")).output)
      (fork,) = await box.fork()
      seen.append(await fork.find([b"Wrap a single paragraph"]))
      await fork.close()
    return name, seen

  name, (found, masked, shown, forked) = play(body)
  assert name in found and "/work/a" in found
  assert masked == [] and forked == [] and shown == "0\n"


def test_nothing_but_the_copied_runtime_is_in_the_root(in_box):
  async def body(box):
    shown = await box.exec(
      "echo /* /usr/* /run/*; ls /usr/lib/python3*/site-packages 2>&1 | tail -1"
    )
    return shown.output

  shown = in_box(body)
  assert shown.split("\n")[0] == (
    "/bin /dev /etc /lib /lib64 /mnt /proc /run /sbin /tmp /usr /work "
    "/usr/bin /usr/lib /usr/lib64 /usr/sbin /usr/share /run/agent /run/empty"
  )
  assert "No such file" in shown


def test_bases_with_paths_that_lead_out_are_refused(play):
  async def body(boxes, _):
    for name in ("/etc/x", "../x", "a/../../x", ""):
      with pytest.raises(ValueError, match="relative to /work"):
        await boxes.base({name: "x"})
    with pytest.raises(ValueError, match="is no folder"):
      await boxes.base(pathlib.Path("/nowhere"))
    with pytest.raises(ValueError, match="below /usr/"):
      await boxes.base({}, mask=("/etc/passwd",))

  play(body)


def test_equal_bases_are_stored_once_and_folders_are_bases_too(play, tmp_path):
  (tmp_path / "d").mkdir()
  (tmp_path / "d/f").write_text("1")
  (tmp_path / "link").symlink_to("d/f")

  async def body(boxes, _):
    one = await boxes.base({"d/f": "1"})
    two = await boxes.base({"d/f": b"1"})
    three = await boxes.base(tmp_path)
    async with await boxes.create(three) as box:
      shown = (await box.exec("cat link; stat -c %y d/f")).output
    return one == two, one.digest != three.digest, shown

  assert play(body) == (True, True, "12020-09-13 12:26:40.000000000 +0000\n")


def test_what_is_excluded_is_left_out_with_what_was_compiled_from_it(tmp_path):
  library = tmp_path / "library"
  for name in (
    "kept.py",
    "secret.py",
    "__pycache__/kept.cpython-311.pyc",
    "__pycache__/secret.cpython-311.pyc",
    "test/test_kept.py",
    "test/support/helper.py",
    "test/__pycache__/test_kept.cpython-311.opt-1.pyc",
    "site-packages/other.py",
  ):
    (library / name).parent.mkdir(parents=True, exist_ok=True)
    (library / name).touch()
  copy_tree(str(library), tmp_path / "copy", (*Runtime().exclude, "secret.py"))
  copied = {str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*.py*")}
  copied = {name for name in copied if not name.endswith("__pycache__")}
  assert copied == {"kept.py", "__pycache__/kept.cpython-311.pyc", "test/support/helper.py"}


def test_a_python_that_is_no_interpreter_is_refused(play):
  with pytest.raises(NoSandbox, match="no usable Python"):
    play(None, runtime=Runtime(python="/bin/false"))
