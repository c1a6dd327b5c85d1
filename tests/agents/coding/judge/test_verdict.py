"""What is solved is solved; what only looks so is worth nothing."""

import asyncio
import dataclasses

import pytest

from jaxrl_agents.agents.coding.judge import changes, run_tests
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
  assert (mended.fail_to_pass, mended.hidden_fail_to_pass, mended.pass_to_pass) == (1.0, 1.0, 1.0)
  same = graded(kind, lambda damaged, path: {})
  assert not same.solved
  assert (same.fail_to_pass, same.hidden_fail_to_pass) == (0.0, 0.0)
  assert (same.pass_to_pass, same.hidden_pass_to_pass) == (1.0, 1.0)


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
    base = await judge.base(repo)
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


def test_changed_tests_are_named_and_do_not_count():
  def both(text, path):
    tests = TESTS.replace("350", "35")
    return {path: SHOP, "test_shop.py": tests, "conftest.py": "import unittest"}

  verdict = graded("suite", both)
  assert verdict.solved
  assert verdict.tampered == ("conftest.py", "test_shop.py")


def test_code_that_does_not_parse_or_never_ends_fails_in_time():
  assert graded("calls", lambda text, path: {path: "def clamp(:\n"}).fail_to_pass == 0.0
  endless = MAIN.replace("    if value", "    while True: pass\n    if value")
  verdict = graded("calls", lambda text, path: {path: endless})
  assert (verdict.fail_to_pass, verdict.pass_to_pass) == (0.0, 1.0)


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
