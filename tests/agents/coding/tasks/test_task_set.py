"""Sets of coding tasks: made in sandboxes from a folder, frozen, refused when changed."""

import asyncio
import dataclasses
import io
import json
import tarfile

import pytest

from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge.verdict import TESTS
from jaxrl_agents.agents.coding.tasks import damager, make_tasks, suite_repos, task_set
from jaxrl_agents.corpus.splits import split_of
from tests.agents.coding.judge.benches import (
  CALLS,
  HELD_BACK,
  MAIN,
  SHOP,
  SUITE,
  edit,
  with_sandboxes,
)
from tests.agents.coding.judge.benches import TESTS as SHOP_TESTS

CLOCK = """\
import random
import time


def label(minutes, unit="min"):
    if minutes >= 60:
        return f"{minutes // 60} h"
    return f"{minutes} {unit}"


def wrapped(hour, by):
    total = hour + by
    if total < 0:
        total += 24
    return total % 24


def lucky(low):
    found = low + random.Random(time.time()).random()
    return found
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp("package")
  (folder / "clock.py").write_text(CLOCK)
  (folder / "shop.py").write_text(SHOP)
  tests = SHOP_TESTS + HELD_BACK.partition("TestCase):\n")[2]
  (folder / "test_shop.py").write_text(tests)

  async def body(workshop):
    await workshop.judge()
    return await task_set.make(workshop.boxes, [str(folder)], per_repo=6)

  with pytest.MonkeyPatch.context() as patch:
    for name in ("MAX_SUITE_S", "MAX_DAMAGED_S"):  # on a loaded machine, too
      patch.setattr(make_tasks, name, 60.0)
    return with_sandboxes(body)


def test_rows_about_repositories_are_refused_as_a_source_with_the_reason(tmp_path):
  row = {"instance_id": "a__b-1", "repo": "a/b", "base_commit": "c0ffee", "patch": "diff"}
  (tmp_path / "swe.jsonl").write_text(json.dumps(row) + "\n")
  with pytest.raises(ValueError, match="'a__b-1'.*'a/b'.*The row holds no image"):
    asyncio.run(task_set.make(None, [str(tmp_path / "swe.jsonl")]))
  (tmp_path / "rows.json").write_text("[]")
  with pytest.raises(ValueError, match="rows, and no source code"):
    asyncio.run(task_set.make(None, [str(tmp_path / "rows.json")]))


def every(coding_set):
  return [task for tasks in coding_set.tasks.values() for task in tasks]


def test_each_task_has_failing_and_passing_and_hidden_tests(made):
  tasks = every(made)
  assert {task.facts["repo_kind"] for task in tasks} == {"calls", "suite"}
  for task in tasks:
    repo = made.repos[task.facts["repo"]]
    assert task.facts["fail_to_pass"]
    assert task.facts["hidden_fail_to_pass"]
    assert sorted(t for name in TESTS for t in task.facts[name]) == sorted(repo.expected())
    assert repo_lib.broken(repo, task.facts["edits"]) != dict(repo.files)
    assert len(task.prompt) <= 390
    assert task.env == "coding"


def test_the_tests_that_fail_are_those_that_the_damage_breaks_when_run_here(made):
  for task in every(made):
    repo = made.repos[task.facts["repo"]]
    if repo.kind != "calls":
      continue
    names = {}
    exec(repo_lib.broken(repo, task.facts["edits"])["main.py"], names)
    for call in task.facts["fail_to_pass"] + task.facts["pass_to_pass"]:
      try:
        given = repr(eval(call, dict(names)))
      except Exception as error:
        given = f"!{type(error).__name__}"
      assert (given == repo.values[call]) == (call in task.facts["pass_to_pass"])


def test_what_depends_on_the_moment_or_on_chance_is_not_recorded(made):
  text = "".join(json.dumps(dict(repo.values)) for repo in made.repos.values())
  assert "label(" in text
  assert "lucky(" not in text


def test_splits_go_by_module_and_levels_by_changed_lines(made):
  for task in every(made):
    assert task.split == split_of(made.repos[task.facts["repo"]].group)
    assert task.facts["level"] == make_tasks.level_of(task.facts["changed_lines"])
  assert [make_tasks.level_of(n) for n in (1, 2, 10, 11, 60, 61, 300)] == [0, 1, 1, 2, 2, 3, 3]


def test_a_set_is_read_back_as_written_and_refused_when_changed(made, tmp_path):
  folder = tmp_path / "set"
  task_set.save(made, folder)
  task_set.save(made, folder)  # the same again is no error
  read = task_set.load(folder)
  assert read.repos == dict(made.repos)
  assert read.tasks == dict(made.tasks)
  tasks = folder / "tasks.jsonl"
  tasks.write_text(tasks.read_text().replace("Mend", "Amend").replace("mend", "amend"))
  with pytest.raises(ValueError, match="a set is frozen"):
    task_set.load(folder)
  with pytest.raises(ValueError, match="has no manifest"):
    task_set.load(tmp_path)


def test_a_slice_is_chosen_by_kind_level_and_length(made):
  split = max(made.tasks, key=lambda s: len(made.tasks[s]))
  choose = lambda **options: task_set.chosen(made, split, CodingConfig(**options))
  assert choose() == sorted(made.tasks[split], key=lambda task: task.id)
  assert all(t.facts["level"] == 0 for t in choose(max_level=0))
  assert len(choose(max_level=0)) + len(choose(min_level=1)) == len(choose())
  assert all(t.facts["repo_kind"] == "calls" for t in choose(repo_kind="calls"))
  assert {t.facts["kind"].split()[0] for t in choose(damage="token")} == {"flip", "token"}
  assert {t.facts["kind"].split()[0] for t in choose(damage="flip")} == {"flip"}
  assert choose(max_file_characters=10) == []
  twice = {
    key: dataclasses.replace(repo, sources=2 * repo.sources) if repo.kind == "calls" else repo
    for key, repo in made.repos.items()
  }
  spread = dataclasses.replace(made, repos=twice)
  of_two = lambda most: task_set.chosen(spread, split, CodingConfig(max_files=most))
  assert of_two(2) == choose() and all(t.facts["repo_kind"] != "calls" for t in of_two(1))


def test_an_sdist_is_unpacked_in_memory_without_its_first_folder(tmp_path):
  archive = tmp_path / "shop-1.0.tar.gz"
  with tarfile.open(archive, "w:gz") as file:
    for name, text in {
      "shop-1.0/src/shop.py": SHOP,
      "shop-1.0/tests/test_shop.py": SHOP_TESTS,
      "shop-1.0/../../evil.py": "x = 1",
      "shop-1.0/setup.py": "raise SystemExit",
    }.items():
      member = tarfile.TarInfo(name)
      member.size = len(text)
      file.addfile(member, io.BytesIO(text.encode()))
  repo = suite_repos.folder(archive)
  assert repo.sources == ("shop.py",)
  assert set(repo.files) == {"shop.py", "tests/test_shop.py", "setup.py", "check.py"}
  with pytest.raises(ValueError, match="0 Python files"):
    suite_repos.folder(tmp_path)


def test_every_test_is_seen_or_held_back_and_none_is_both(tmp_path):
  names = [f"test_case_{i}" for i in range(12)]
  body = "".join(f"    def {name}(self):\n        assert True\n\n" for name in names)
  text = f"import unittest\n\n\nclass A(unittest.TestCase):\n{body}"
  (tmp_path / "a.py").write_text("x = 1\n")
  (tmp_path / "test_a.py").write_text(text)
  repo = suite_repos.folder(tmp_path)
  seen, hidden = repo.files["test_a.py"], repo.held_back["test_a_held_back.py"]
  in_seen = [name for name in names if f"def {name}(" in seen]
  in_hidden = [name for name in names if f"def {name}(" in hidden]
  assert sorted(in_seen + in_hidden) == sorted(names)
  assert in_seen
  assert in_hidden


def test_the_visible_check_says_which_calls_differ():
  assert SUITE.check_command == "python3 -m unittest test_shop"
  assert CALLS.check_command == "python3 check.py"
  assert CALLS.files["main.py"] == MAIN
  assert "double('ab')" in CALLS.files["check.py"]
  assert "double([1])" not in CALLS.files["check.py"]


@pytest.mark.slow
def test_the_check_of_a_package_runs_cases_and_plain_tests_and_names_what_fails(tmp_path):
  (tmp_path / "shop.py").write_text(SHOP.replace("100", "10"))
  (tmp_path / "test_shop.py").write_text(SHOP_TESTS)
  (tmp_path / "test_plain.py").write_text(
    "import shop\n\ndef test_min():\n  assert shop.cheapest([1]) == 1\n\n"
    "def test_with(fixture):\n  assert 0\n\n"
    "class TestMore:\n  def test_sum(self):\n    assert shop.total([1]) == 100, 'cents'\n"
  )
  repo = suite_repos.folder(tmp_path)
  assert repo.check_command == "python3 check.py"
  whole = {**repo.files, "test_shop.py": SHOP_TESTS}
  whole["test_plain.py"] = (tmp_path / "test_plain.py").read_text()

  async def body(workshop):
    await workshop.judge()
    box = await workshop.boxes.create(await workshop.boxes.base(whole))
    shown = (
      (await box.exec("python3 check.py")).output,
      (await box.exec("python3 check.py no")).output,
    )
    await box.close()
    return shown

  every_test, absent = with_sandboxes(body)
  assert every_test == (
    "FAIL test_plain.TestMore.test_sum | AssertionError: cents\n"
    "FAIL test_shop.ShopTests.test_total | AssertionError: 35 != 350\n2 of 5 fail\n"
  )
  assert absent == "FAIL no | ModuleNotFoundError: No module named 'no'\n1 of 0 fail\n"


def test_a_function_that_stands_in_two_modules_is_cut_out_of_the_first_alone(tmp_path):
  one, two = tmp_path / "one", tmp_path / "two"
  for folder in (one, two):
    folder.mkdir()
    (folder / "a.py").write_text(CLOCK)
  by = "K = {}\n\n\ndef kept(a):\n{}    if a < 2:\n        return a\n    return g(a)\n\n\n{}"
  helper = "def g(a):\n    b = a + {}\n    return b\n"
  (one / "b.py").write_text(by.format(1, "", helper.format("1")))
  (two / "b.py").write_text(by.format(2, "    # again\n", helper.format("1")))
  (two / "c.py").write_text(by.format(2, "", helper.format("3")))
  found = task_set.cuts_by_module([str(one), str(two)])
  names = [[[cut.name for cut in cuts] for cuts in groups] for groups in found]
  assert names == [[["label", "wrapped"], ["kept", "g"]], [["g"]]]


def test_no_function_of_one_split_stands_in_a_repository_with_tests_of_another(tmp_path):
  folder = tmp_path / "wares"
  folder.mkdir()
  named = {split_of(f"clock{i}"): f"clock{i}" for i in range(40)}
  for name in named.values():
    (folder / f"{name}.py").write_text(CLOCK.replace("24", name.removeprefix("clock") or "24"))
  (folder / "shop.py").write_text(SHOP)
  (folder / "test_shop.py").write_text(SHOP_TESTS)
  told: list[str] = []
  asked: list[str] = []

  async def of_calls(boxes, judge, cuts, *_):
    asked.extend(cut.module for cut in cuts)
    return
    yield

  async def of_suite(*_):
    return
    yield

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(task_set, "_of_calls", of_calls)
    patch.setattr(task_set, "_of_suite", of_suite)
    for kinds in (("calls", "suite"), ("calls",)):
      with pytest.raises(ValueError, match="no task could be made"):
        asyncio.run(task_set.make(None, [str(folder)], kinds=kinds, report=told.append))
      found = {split_of(module) for module in asked}
      assert found == ({split_of("wares")} if "suite" in kinds else set(named)), asked
      asked.clear()
  assert any("functions are left out" in line for line in told)


@pytest.mark.slow
def test_tests_that_do_not_end_make_no_task(monkeypatch):
  monkeypatch.setattr(make_tasks, "MAX_SUITE_S", 1.0)
  monkeypatch.setattr(make_tasks, "MAX_DAMAGED_S", 1.0)
  wait = "import time; time.sleep(99)\n"
  waits = dataclasses.replace(SUITE, files={**SUITE.files, "test_shop.py": wait + SHOP_TESTS})
  spins = damager.Damage("statement", (edit(SUITE, "shop.py", "return None", wait),), (), 1)

  async def body(workshop):
    judge = await workshop.judge()
    left_out = await make_tasks.stable(judge, waits)
    return left_out, await make_tasks.validated(judge, SUITE, spins, seed=0)

  assert with_sandboxes(body) == (None, (None, "the tests do not end"))
