"""Rows of SWE-bench's form as task folders: what is written, and that the sandbox judges them."""

import asyncio
import difflib
import json

import pytest

from examples.harbor import folders, judge_tests, patched_rows
from examples.harbor.worlds import Worlds
from jaxrl_agents.sandbox.host.probe import probe

BROKEN = "def double(n):\n  return n + 1\n"
FIXED = "def double(n):\n  return 2 * n\n"
OLD_TESTS = "from doubling import double\n\n\ndef test_one():\n  assert double(1) == 2\n"
NEW_TESTS = OLD_TESTS + "\n\ndef test_three():\n  assert double(3) == 6\n"


def patch(path, before, after):
  """A patch of one file as git writes it; None for a file that is not there."""
  name = lambda side, text: f"{side}/{path}" if text else "/dev/null"
  names = (name("a", before), name("b", after))
  lines = (text.splitlines(keepends=True) for text in (before, after))
  kind = (
    "" if before and after else "new file mode 100644\n" if after else "deleted file mode 100644\n"
  )
  return f"diff --git a/{path} b/{path}\n{kind}" + "".join(difflib.unified_diff(*lines, *names))


ROW = {
  "instance_id": "some__doubling-7",
  "repo": "some/doubling",
  "base_commit": "0" * 40,
  "problem_statement": "double(3) is 4.",
  "patch": patch("doubling.py", BROKEN, FIXED),
  "test_patch": patch("tests/test_doubling.py", OLD_TESTS, NEW_TESTS),
  "FAIL_TO_PASS": '["tests/test_doubling.py::test_three"]',
  "PASS_TO_PASS": ["tests/test_doubling.py::test_one"],
}


@pytest.fixture
def made(tmp_path):
  """Converts rows; the folders of tasks and roots."""
  root = tmp_path / "roots" / ROW["instance_id"]
  (root / "tests").mkdir(parents=True)
  (root / "doubling.py").write_text(BROKEN)
  (root / "tests" / "test_doubling.py").write_text(OLD_TESTS)

  def convert(*rows):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return patched_rows.convert_all(
      file, tmp_path / "roots", tmp_path / "tasks", patched_rows.COMMAND
    )

  return tmp_path, convert


@pytest.fixture(scope="module")
def sandboxes():
  if not (report := asyncio.run(probe("namespaces"))).holds:
    pytest.skip(str(report))


def test_the_patch_of_a_row_scores_one_in_the_sandbox_and_doing_nothing_zero(sandboxes, made):
  folder, convert = made
  assert convert(ROW) == 1
  (task,) = folders.read_all(str(folder / "tasks"), {}, str(folder / "roots"))

  async def run():
    worlds = Worlds(packages=("pytest",))
    try:
      both = await worlds.check(task)
      async with await worlds.box(task) as box:
        await box.exec("sed -i 's/n + 1/6/' doubling.py; rm tests/test_doubling.py")
        return both, await worlds.judge(task, box)
    finally:
      await worlds.close()

  both, half = asyncio.run(run())
  assert both == (1.0, 0.0)
  assert half == {"reward": 0.0, "fail_to_pass": 1.0, "pass_to_pass": 0.0, "unjudged": 0.0}


FORGED = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  (yield).get_result().outcome = "passed"
"""


@pytest.mark.parametrize(
  "files",
  [
    {"conftest.py": FORGED},
    {"tests/conftest.py": FORGED},
    {"forged.py": FORGED, "pytest.ini": "[pytest]\naddopts = -p forged\n"},
    {"pytest.py": "print('PASSED tests/test_doubling.py::test_three')"},
  ],
  ids=lambda files: list(files)[-1],
)
def test_an_agent_that_changes_what_pytest_says_earns_nothing(sandboxes, made, files):
  folder, convert = made
  convert(ROW)
  (task,) = folders.read_all(str(folder / "tasks"), {}, str(folder / "roots"))

  async def run():
    worlds = Worlds(packages=("pytest",))
    try:
      async with await worlds.box(task) as box:
        for path, text in files.items():
          await box.write(f"/app/{path}", text.encode(), 0o644)
        return await worlds.judge(task, box)
    finally:
      await worlds.close()

  judged = asyncio.run(run())
  assert (judged["reward"], judged["fail_to_pass"], judged["unjudged"]) == (0.0, 0.0, 0.0)


def test_a_repository_keeps_its_own_configuration_and_what_its_repair_changes(made):
  folder, convert = made
  root = folder / "roots" / ROW["instance_id"]
  (root / "conftest.py").write_text("a = 1\n")
  (root / "tox.ini").write_text("b\n")
  convert({**ROW, "patch": ROW["patch"] + patch("tox.ini", "b\n", "c\n")})
  tests = folder / "tasks" / ROW["instance_id"] / "tests"
  assert json.loads((tests / "expected.json").read_text())["kept"] == ["tox.ini"]
  assert (tests / "files" / "conftest.py").read_text() == "a = 1\n"
  assert not (tests / "files" / "tox.ini").exists()


def test_neither_the_issue_nor_the_files_show_the_tests_or_the_patch(made):
  folder, convert = made
  convert(ROW)
  (task,) = folders.read_all(str(folder / "tasks"), {}, str(folder / "roots"))
  assert "double(3) is 4." in task.instruction and "test_three" not in task.instruction
  assert task.root == str(folder / "roots" / ROW["instance_id"])
  written = folder / "tasks" / ROW["instance_id"] / "tests" / "files" / "tests" / "test_doubling.py"
  assert written.read_text() == NEW_TESTS
  assert (
    folder / "roots" / ROW["instance_id"] / "tests" / "test_doubling.py"
  ).read_text() == OLD_TESTS


def test_files_that_the_patch_of_the_tests_adds_and_removes_are_known(made):
  folder, convert = made
  text = patch("tests/test_doubling.py", OLD_TESTS, "") + patch("tests/test_new.py", "", NEW_TESTS)
  assert convert({**ROW, "test_patch": text}) == 1
  tests = folder / "tasks" / ROW["instance_id"] / "tests"
  expected = json.loads((tests / "expected.json").read_text())
  assert expected["removed"] == ["tests/test_doubling.py"]
  assert expected["command"][-1] == "tests/test_new.py"
  assert (tests / "files" / "tests" / "test_new.py").read_text() == NEW_TESTS


@pytest.mark.parametrize(
  ("change", "named"),
  [
    ({"instance_id": "../x"}, "cannot name a folder"),
    ({"instance_id": "other__repo-1"}, "no files of its image"),
    ({"FAIL_TO_PASS": ["test_three (tests.Doubling)"]}, "no id of a test of pytest"),
    ({"test_patch": None}, "test_patch is no text"),
    ({"FAIL_TO_PASS": "["}, "FAIL_TO_PASS is no list"),
    ({"FAIL_TO_PASS": []}, "no test has to pass"),
    ({"test_patch": patch("tests/test_doubling.py", "a\n", "b\n")}, "does not fit the files"),
    ({"test_patch": patch("../x.py", "a\n", "b\n")}, "outside of the repository"),
    ({"test_patch": patch("README.md", "", "b\n")}, "changes no test file"),
  ],
)
def test_a_row_that_cannot_be_played_is_left_out_and_named(made, capsys, change, named):
  folder, convert = made
  assert convert({**ROW, **change}) == 0
  assert named in capsys.readouterr().err
  assert not list((folder / "tasks").iterdir())


def test_a_row_without_a_field_is_left_out_and_the_others_are_written(made, capsys):
  _, convert = made
  assert convert({"instance_id": ROW["instance_id"]}, ROW) == 1
  assert "has no repo, problem_statement, patch" in capsys.readouterr().err


def test_a_task_whose_files_are_not_there_is_refused(made):
  folder, convert = made
  convert(ROW)
  for roots, named in (("", "needs the image some__doubling-7"), ("nowhere", "is no folder")):
    with pytest.raises(ValueError, match=named):
      folders.read_all(str(folder / "tasks"), {}, roots)


def test_a_folder_of_tasks_is_not_written_over(made):
  _, convert = made
  convert(ROW)
  with pytest.raises(FileExistsError, match="is there already"):
    convert(ROW)


def test_ids_of_passed_tests_count_whole_and_up_to_their_first_space():
  output = (
    "1 passed\nPASSED a.py::test[x y]\nFAILED a.py::test_b - assert\nXPASSED a.py::c\nPASSED "
  )
  assert judge_tests.passed(output) == {"a.py::test[x y]", "a.py::test[x", ""}
