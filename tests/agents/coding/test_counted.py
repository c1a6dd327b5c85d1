"""Test runs and edits that the environment counts, for policies and scripted players alike."""

import dataclasses

import pytest

from jaxrl_agents.agents.coding import config, view
from jaxrl_agents.agents.coding import env as coding
from jaxrl_agents.agents.coding.agent import AGENT
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.types import Task
from tests.agents.coding.bench import (
  CALL_TASK,
  DONE,
  MEND,
  PROMPT,
  SUITE_TASK,
  play,
  results,
  run,
  services,
  turn,
)
from tests.agents.coding.judge.benches import CALL_FACTS, CALLS, edit

COUNTED = {
  "tools": ("read_file", "edit_file", "undo_edit", "write_file", "grep", "run_tests"),
  "test_runs": 2,
  "max_edits": 2,
}
RUN = ("run_tests", {})
UNDO = ("undo_edit", {"path": "main.py"})
SHOWN = "clamp(1, 2, 5) gives 1 not 2\nclamp(3, 2, 5) gives 2 not 3\n2 of 4 fail"
MAXIMUM = Task(
  "m",
  "coding",
  PROMPT,
  {
    **CALL_FACTS,
    "edits": [edit(CALLS, "main.py", "min", "max")],
    "fail_to_pass": ["clamp(3, 2, 5)"],
    "pass_to_pass": ["clamp(1, 2, 5)", "double('ab')", "double(1.5)"],
    "hidden_fail_to_pass": ["clamp(9, 2, 5)"],
    "hidden_pass_to_pass": ["clamp(0, 1, 1)", "double([1])", "double(None)"],
  },
)


def test_a_run_shows_the_failing_calls_and_what_is_left_and_none_is_made_beyond_the_limit():
  trajectory = play([turn(RUN), turn(MEND, RUN), turn(RUN), DONE], **COUNTED)
  first, edited, second, third = results(trajectory)
  assert first == f"{SHOWN}\n[1 test run left]"
  assert edited == "Edited main.py, line 2. [1 edit left]"
  assert second == "0 of 4 fail\n[0 test runs left]"
  assert third.startswith("Error: no test run is left: all 2 were made.")
  assert (trajectory.rewards["test_runs"], trajectory.rewards["solved"]) == (2.0, 1.0)


def test_edits_beyond_the_limit_change_nothing_and_failed_ones_and_undoing_do_not_count():
  wrong = ("edit_file", {"path": "main.py", "old": "value > low", "new": "value >= low"})
  missing = ("edit_file", {"path": "main.py", "old": "absent", "new": "x"})
  refused = ("write_file", {"path": "/proc/x", "content": "x"})
  told = results(play([turn(missing, refused, wrong, UNDO, wrong, UNDO, MEND), DONE], **COUNTED))
  assert told[2] == "Edited main.py, line 2. [1 edit left]"
  assert told[4] == "Edited main.py, line 2. [0 edits left]"
  assert told[6].startswith("Error: no edit is left: all 2 were made.")
  assert told[1].startswith("Error: ")


def test_an_evaluation_counts_the_edits_that_were_carried_out_and_no_refused_ones():
  missing = ("edit_file", {"path": "main.py", "old": "absent", "new": "x"})
  trajectory = play([turn(missing, missing), turn(MEND), turn(missing), DONE], **COUNTED)
  assert (trajectory.rewards["edits"], trajectory.rewards["solved"]) == (1.0, 1.0)


def test_lines_are_shown_with_their_numbers_and_replaced_inserted_and_removed_by_them():
  change = lambda first, last, new: (
    "replace_lines",
    {"path": "main.py", "first": first, "last": last, "new": new},
  )
  read = lambda first, lines: ("read_file", {"path": "main.py", "first": first, "lines": lines})
  tools = (*COUNTED["tools"], "replace_lines")
  calls = [
    turn(read(2, 2)),
    turn(change(2, 2, "    if value < low:"), RUN, read(1, 2), UNDO),
    turn(
      change(9, 9, "x"), change(3, 1, "x"), change(2, 2, "    if value > low:"), change(2, 1, "")
    ),
    turn(change(9, 8, "x = 1"), read(7, 5), change(1, 1, "y = 1")),
    DONE,
  ]
  told = results(play(calls, **{**COUNTED, "tools": tools}))
  assert told[0] == "[main.py, lines 2-3 of 8]\n2\t    if value > low:\n3\t        return low"
  assert told[1] == "Edited main.py, line 2. [1 edit left]"
  assert told[2].startswith("0 of 4 fail")
  assert told[3].endswith("2\t    if value < low:") and told[4].startswith("Undid")
  assert told[5] == "Error: there are no lines 9 to 9: the file has 8 lines."
  assert told[6] == "Error: there are no lines 3 to 1: the file has 8 lines."
  same = "Error: these lines are as they were; nothing was changed."
  assert told[7] == told[8] == same
  assert told[9] == "Edited main.py, line 9. [0 edits left]"
  assert told[10].endswith("8\t    return text + text\n9\tx = 1")
  assert told[11].startswith("Error: no edit is left: all 2 were made.")


def test_the_request_tells_the_limits_and_stays_as_it_was_without_them():
  trajectory = play([DONE], **COUNTED)
  assert trajectory.log[0].content == f"{PROMPT} You can run the tests twice and make 2 edits."
  assert view.counted(CodingConfig()) == ""
  assert view.counted(CodingConfig(max_edits=1)) == " You can make 1 edit."


def test_options_that_would_let_a_policy_go_around_the_limits_are_refused():
  limits = CodingConfig(**COUNTED)
  config.check(limits)
  for change, message in (
    ({"tools": (*limits.tools, "shell")}, "would not hold with the tool shell"),
    ({"test_runs": 0}, "offer the tool and set a number, or neither"),
    ({"tools": ("read_file",)}, "offer the tool and set a number, or neither"),
  ):
    with pytest.raises(ValueError, match=message):
      config.check(dataclasses.replace(limits, **change))


def test_a_sandbox_that_is_lost_gives_no_run_and_no_edit_back():
  async def body(workshop):
    env = coding.make(CALL_TASK, services(workshop, **COUNTED))
    await env.start()
    await env.step(turn(RUN, MEND, UNDO))
    await workshop.boxes.kill(env._workspace.box.number)
    shown = [m.content for m in (await env.step(turn(RUN, RUN, MEND, MEND))).messages]
    await env.close()
    return shown[-4:]

  run_again, beyond, edited, _ = run(body)
  assert run_again.endswith("[0 test runs left]") and beyond.startswith("Error: no test run")
  assert edited.endswith("[0 edits left]")


def test_a_suite_runs_its_own_tests_as_they_were():
  empty = ("write_file", {"path": "test_shop.py", "content": "import unittest\n"})
  told = results(play([turn(empty, RUN), DONE], SUITE_TASK, **COUNTED))
  assert "FAIL: test_total" in told[1] and "Ran 3 tests" in told[1]
  assert told[1].endswith("[1 test run left]")


def played(name, task, seed=0, **changes):
  async def body(workshop):
    shared = services(workshop, damage="mixed", **{**COUNTED, **changes})
    player = AGENT.player(name, task, shared, seed, shared.chat)
    sampling = Sampling(max_new_tokens=shared.limits.max_new_tokens)
    return await run_episode(player, shared.chat, player, task=task, sampling=sampling)

  return run(body)


def test_the_reader_mends_what_one_edit_mends_in_one_try_and_the_expert_looks_before_it_edits():
  for name in ("reader", "expert"):
    rewards = played(name, MAXIMUM).rewards
    found = (rewards["solved"], rewards["edits"], rewards["test_runs"])
    assert found == (1.0, 1.0, 2.0), name


def test_enumeration_is_cut_off_by_the_limits_and_tries_nothing_beyond_them():
  """ "<" for ">" in `clamp` is no flip: no edit of the family mends it, and every try is made."""
  told = played("enumeration", CALL_TASK, test_runs=1, max_edits=3)
  assert (told.rewards["edits"], told.rewards["test_runs"]) == (2.0, 1.0)
  told = played("enumeration", CALL_TASK, test_runs=5, max_edits=3)
  assert (told.rewards["edits"], told.rewards["test_runs"]) == (3.0, 3.0)
  assert not [text for text in results(told) if text.startswith("Error")]


def test_the_demonstrator_keeps_a_run_and_edits_for_the_right_repair():
  for seed in range(6):
    told = played("demonstrator", MAXIMUM, seed, hasty=0.0)
    assert told.rewards["test_runs"] <= 2.0 and told.rewards["edits"] <= 2.0
    assert not [text for text in results(told) if "is left" in text]
