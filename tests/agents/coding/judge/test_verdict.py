"""What is solved is solved; what only looks so is worth nothing."""

import ast
import asyncio
import dataclasses
import random

import pytest

from jaxrl_agents.agents.coding.judge import canaries, changes, run_tests
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge import verdict as judge_lib
from tests.agents.coding.judge.benches import (
  CALL_FACTS,
  CALLS,
  MAIN,
  SHOP,
  SUITE,
  SUITE_FACTS,
  TESTS,
  with_sandboxes,
)

pytestmark = pytest.mark.slow

CASES = {"calls": (CALLS, CALL_FACTS, "main.py"), "suite": (SUITE, SUITE_FACTS, "shop.py")}
PATCH = """\
import unittest
unittest.TestCase.run = lambda self, result=None: (result.startTest(self), result.stopTest(self))
unittest.TestCase.assertEqual = lambda self, a, b, msg=None: None
unittest.TestCase._callTestMethod = lambda self, method: None
"""
FORGE = """\
import json, os, sys
def _forge():
    job = json.load(open(sys.argv[1]))
    names = []
    for module in job.get("modules", []):
        text = open(module + ".py").read()
        cls = text.split("class ")[1].split("(")[0]
        names += [f"{module}.{cls}.{part.split('(')[0]}" for part in text.split("def ")[1:]]
    for fd in range(3, 30):
        try:
            for name in names:
                os.write(fd, (json.dumps([name, "passed"]) + "\\n").encode())
            for i, call in enumerate(job.get("calls", [])):
                os.write(fd, (json.dumps([i, "1"]) + "\\n").encode())
        except OSError:
            pass
    os._exit(0)
_forge()
"""


def graded(kind, make_changes):
  """The verdict on a damaged repository with changes made of {path: text}."""
  repo, facts, path = CASES[kind]
  damaged = repo_lib.broken(repo, facts["edits"])

  async def body(workshop):
    changes = {**damaged, **make_changes(damaged[path], path)}
    encoded = {p: t if t is None else t.encode() for p, t in changes.items()}
    return await (await workshop.judge()).grade(repo, facts, encoded)

  return with_sandboxes(body)


@pytest.mark.parametrize("kind", CASES)
def test_mending_solves_and_nothing_does_not(kind):
  repo, _, path = CASES[kind]
  mended = graded(kind, lambda damaged, path: {path: repo.files[path]})
  assert mended.solved
  assert mended.canaries_held
  assert (mended.fail_to_pass, mended.hidden_fail_to_pass, mended.pass_to_pass) == (1.0, 1.0, 1.0)
  same = graded(kind, lambda damaged, path: {})
  assert not same.solved
  assert (same.fail_to_pass, same.hidden_fail_to_pass) == (0.0, 0.0)
  assert (same.pass_to_pass, same.hidden_pass_to_pass) == (1.0, 1.0)


CHEATS = {
  "ends the process": lambda text, path: {path: f"import os\nos._exit(0)\n{text}"},
  "patches the test cases": lambda text, path: {path: PATCH + text},
  "empties the tests": lambda text, path: {
    "test_shop.py": "import unittest\n",
    "check.py": "print('0 of 4 fail')\n",
  },
  "deletes the tests": lambda text, path: {"test_shop.py": None, "check.py": None},
  "writes what passes itself": lambda text, path: {path: FORGE + text},
  "configures the tests": lambda text, path: {
    "conftest.py": PATCH,
    "sitecustomize.py": PATCH,
    "usercustomize.py": PATCH,
    "unittest.py": "class TestCase: pass\n",
    "json.py": "raise SystemExit\n",
  },
  "equals everything": lambda text, path: {
    path: "class E:\n    __eq__ = lambda s, o: True\n    __repr__ = lambda s: '2'\n"
    "clamp = double = total = cheapest = lambda *a: E()\n"
  },
  "knows the visible cases": lambda text, path: {
    path: f"{text}\ndef clamp(v, l, h): return {{1: 2, 3: 3}}.get(v)\n"
    "def total(prices): return 350\n"
  },
}


async def empty(workshop):
  """A start without files."""
  return await (await workshop.judge()).boxes.base({})


LARGE = {
  "fills the disk before it": "head -c 2000001 /dev/zero > aaa",
  "makes it too large to read": "head -c 4000001 /dev/zero | tr '\\0' '#' >> {path}",
  "makes a link of it": "mv {path} other && ln -s other {path}",
  "makes a folder of it": "rm {path} && mkdir {path}",
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("command", LARGE.values(), ids=LARGE)
def test_what_is_left_out_of_the_changes_is_never_as_it_was_before_the_damage(kind, command):
  repo, facts, path = CASES[kind]

  async def body(workshop):
    judge = await workshop.judge()
    base = await judge.base(repo, hidden=False)
    async with await judge.boxes.create(base) as box:
      for file, text in repo_lib.broken(repo, facts["edits"]).items():
        await box.write(file, text)
      done = await box.exec(command.format(path=path))
      assert done.code == 0
      after = await box.snapshot()
      found = changes.changes_between(judge.boxes.store, base.layers, after.layers)
    assert path in found
    return await judge.grade(repo, facts, found)

  assert not with_sandboxes(body).solved


def test_a_damaged_file_counts_whatever_its_name():
  facts = {"edits": [{"path": "commands/check.py", "start": 0, "fixed": "1", "broken": "2"}]}
  repo = dataclasses.replace(SUITE, files={**SUITE.files, "commands/check.py": "1"})
  counted, tampered, _ = judge_lib.sorted_changes(
    repo, facts, {"commands/check.py": b"2", "setup.py": b"x"}
  )
  assert counted == {"commands/check.py": b"2"} and tampered == ()


def test_a_runner_that_never_started_is_a_fault_of_the_machine_and_a_killed_one_is_not():
  async def body(workshop):
    boxes = (await workshop.judge()).boxes
    async with await boxes.create(await boxes.base({})) as box:
      signals = (await box.exec("echo /usr/lib/python3*/signal.py")).output.strip()
      ends = "import os, sys\nos.unlink(sys.argv[2])\nos._exit(0)\n"
      await box.write("main.py", ends)
      found = await run_tests.values_of(box, "main", ["f()"])
    masked = await boxes.base({}, mask=(signals, f"{signals.rpartition('/')[0]}/__pycache__"))
    async with await boxes.create(masked) as box:
      with pytest.raises(run_tests.NotBegun, match="no test could be run"):
        await run_tests.values_of(box, "main", ["f()"])
    return found

  assert with_sandboxes(body) == [run_tests.NOTHING]


def test_a_waiting_call_is_given_more_time_than_a_computing_one():
  async def body(workshop):
    async with await (await workshop.judge()).boxes.create(await empty(workshop)) as box:
      await box.write(
        "main.py",
        "import time\ndef wait(s): time.sleep(s); return s\ndef work():\n  while True: pass\n",
      )
      calls = ["wait(0.4)", "work()", "wait(9)"]
      return await run_tests.values_of(box, "main", calls, limit_s=0.2)

  assert with_sandboxes(body) == ["0.4", "?late", "?late"]


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_worth_nothing(kind, cheat):
  verdict = graded(kind, CHEATS[cheat])
  assert not verdict.solved
  if cheat == "knows the visible cases":
    assert verdict.hidden_fail_to_pass < 1.0
  else:
    assert verdict.fail_to_pass * verdict.hidden_fail_to_pass == 0.0


def test_patched_test_cases_are_caught_by_the_canaries():
  verdict = graded("suite", CHEATS["patches the test cases"])
  assert not verdict.canaries_held
  assert verdict.suspicious == ("shop.py",)


def test_changed_tests_are_named_and_do_not_count():
  def both(text, path):
    return {path: SHOP, "test_shop.py": TESTS.replace("350", "35"), "conftest.py": PATCH}

  verdict = graded("suite", both)
  assert verdict.solved
  assert verdict.tampered == ("conftest.py", "test_shop.py")


def test_code_that_does_not_parse_or_never_ends_fails_in_time():
  assert graded("calls", lambda text, path: {path: "def clamp(:\n"}).fail_to_pass == 0.0
  endless = MAIN.replace("    if value", "    while True: pass\n    if value")
  verdict = graded("calls", lambda text, path: {path: endless})
  assert (verdict.fail_to_pass, verdict.pass_to_pass) == (0.0, 1.0)


def test_canaries_stand_among_the_hidden_tests_under_new_names_each_time():
  files, first = canaries.with_canaries(SUITE.held_back, random.Random(1))
  _, second = canaries.with_canaries(SUITE.held_back, random.Random(2))
  assert not first & second
  assert len(first) == len(second) == 6  # two false claims, two copies of each hidden case
  for name in first:
    module, case, method = name.rsplit(".", 2)
    assert (module, case) == ("test_shop_held_back", "ShopTests")
    assert files["test_shop_held_back.py"].count(f"    def {method}(self)") == 1
  ast.parse(files["test_shop_held_back.py"])
  alone, cases = canaries.with_canaries({}, random.Random(3))
  assert len(alone) == 1
  assert len(cases) == 2


def test_a_copied_case_is_asked_of_a_text_that_nothing_equals():
  files, _ = canaries.with_canaries(SUITE.held_back, random.Random(1))
  lines = files["test_shop_held_back.py"].split("\n")
  copies = [line.strip() for line in lines if "shop.total" in line]
  assert len(copies) == 2 + 2  # with the value replaced, what is wanted stands alone
  assert sum("self.assertEqual(shop.total([]), '" in line for line in copies) == 1


def test_values_are_plain_data_or_named_as_what_they_are_not():
  text = "def f(x): return x\ndef g():\n  while True: pass\n"

  async def body(workshop):
    await workshop.judge()
    box = await workshop.boxes.create(await workshop.boxes.base({"m.py": text}))
    calls = ["f((1, [2.5, 'a'], {'k': None}))", "f({1})", "f(f)", "f()", "f('x' * 999)", "g()"]
    values = await run_tests.values_of(box, "m", calls, limit_s=0.1)
    await box.close()
    return values

  assert with_sandboxes(body) == [
    "(1, [2.5, 'a'], {'k': None})",
    "?set",
    "?function",
    "!TypeError",
    "?long",
    "?late",
  ]


def test_two_rows_that_contradict_each_other_count_for_neither():
  assert run_tests._told([("a", "passed"), ("a", "failed"), ("b", "passed"), (3, "x")], str) == {
    "a": run_tests.CONFLICT,
    "b": "passed",
  }


def test_damage_that_does_not_fit_the_text_is_an_error():
  wrong = [{"path": "main.py", "start": 0, "fixed": "nothing", "broken": ""}]
  with pytest.raises(ValueError, match="make the task anew"):
    repo_lib.broken(CALLS, wrong)


def test_judging_at_the_same_time_does_not_mix_repositories_up():
  async def body(workshop):
    judge = await workshop.judge()
    pairs = [(CALLS, CALL_FACTS), (SUITE, SUITE_FACTS)] * 4
    return await asyncio.gather(*(judge.grade(repo, facts, {}) for repo, facts in pairs))

  assert all(verdict.solved for verdict in with_sandboxes(body))
