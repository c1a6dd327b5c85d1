"""Behaviours of coding episodes: what counts, what it costs."""

import functools
import math

import pytest

from jaxrl_agents.agents.coding import reward
from jaxrl_agents.agents.coding.config import CodingReward
from jaxrl_agents.types import Message, ToolCall

VERDICT = {
  "solved": True,
  "fail_to_pass": 1.0,
  "pass_to_pass": 1.0,
  "hidden_fail_to_pass": 1.0,
  "hidden_pass_to_pass": 1.0,
  "tampered": (),
  "suspicious": (),
}


def episode(*pairs):
  """(name, arguments, result) of calls, one a turn, as a log that ends with an answer."""
  log = [Message("user", "Mend it.")]
  for i, (name, arguments, result) in enumerate(pairs):
    log.append(Message("assistant", "", (ToolCall(f"{i}.0", name, arguments),)))
    log.append(Message("tool", result, tool_call_id=f"{i}.0"))
  return [*log, Message("assistant", "Done.")]


def parts_of(log, stop="answer", verdict=VERDICT, added=(), offered=("shell", "edit_file")):
  return reward.coding_parts(
    log, stop, verdict, added=added, offered=offered, broken=0, summaries=0,
    count=lambda t: len(t.split()),
  )  # fmt: skip


def test_broken_calls_are_those_refused_before_they_ran():
  log = episode(
    ("shell", {}, "Error: shell: arguments lack 'command'; add it (string)."),
    ("shel", {}, "Error: there is no tool 'shel'; did you mean shell?"),
    ("grep", {"command": "x"}, "Error: grep: Unmatched ("),  # ran, and failed
    ("shell", {"command": "ls"}, "Error: Nothing"),  # what a program printed
  )
  problem = lambda call: call.error or "" if "command" in call.arguments else "no command"
  broken = functools.partial(reward.broken_calls, problem=problem, most=2)
  assert broken(log) == 2
  unread = Message("assistant", "", (ToolCall("9.0", "", {}, error="no JSON"),))
  assert broken([*log, unread]) == 3
  assert broken([*log, unread], cut_by_room=lambda message: message is unread) == 2
  three = Message("assistant", "", (ToolCall("8.0", "shell", {"command": "ls"}),) * 3)
  assert broken([three]) == 1


def test_only_the_last_list_that_was_taken_counts_for_open_todos():
  items = lambda *states: {"items": [{"text": "x", "status": s} for s in states]}
  log = episode(
    ("todo", items("open", "open"), "2 to-dos, 2 open."),
    ("todo", items("done", "doing", "open"), "3 to-dos, 2 open."),
    ("todo", items("done"), "Error: todo: 'status' must be one of ..."),
  )
  assert reward.open_todos(log) == (2, 3)
  assert parts_of(log)["open_todos"] == pytest.approx(2 / 3)
  assert reward.open_todos(episode()) == (0, 0)


def test_thought_in_comments_is_seen_by_its_share_and_by_its_length():
  thought = ["# " + "so I think that this may well be the reason " * 3] * 3
  assert reward.is_comment_thinking([*thought, "x = 1"])
  assert not reward.is_comment_thinking(["# a short remark", "x = 1", *["y = 2"] * 10])
  assert reward.longest_comment(["# a"] * 16 + ["x"] * 100) == 16
  assert reward.is_comment_thinking(["# a"] * 16 + ["x = some_function(argument)"] * 100)


def test_eight_calls_of_the_shell_alone_that_touch_files_are_a_collapse():
  cats = [ToolCall("", "shell", {"command": "cat main.py"})] * 8
  runs = [ToolCall("", "shell", {"command": "python3 check.py"})] * 8
  assert reward.is_shell_only(cats, ["shell", "edit_file"])
  assert not reward.is_shell_only(cats[:7], ["shell", "edit_file"])
  assert not reward.is_shell_only(runs, ["shell", "edit_file"])
  assert not reward.is_shell_only(cats, ["shell"])
  mixed = [*cats, ToolCall("", "edit_file", {})]
  assert not reward.is_shell_only(mixed, ["shell", "edit_file"])


def test_entropy_of_tools_is_in_bits():
  calls = [ToolCall("", name, {}) for name in ("a", "a", "b", "c")]
  assert reward.entropy(calls) == pytest.approx(1.5)
  assert reward.entropy(calls[:2]) == 0.0
  assert reward.entropy([]) == 0.0


def test_the_total_is_what_was_earned_less_behaviour_and_length():
  log = episode(("shell", {}, "Error: shell: arguments lack 'command'"))
  parts = parts_of(log) | {"broken_calls": 1.0}
  weights = CodingReward(length=0.1, length_k=1.0, length_q=1.0)
  expected = 1.0 - 0.02 - 0.1 * math.log1p(parts["effort"])
  assert reward.coding_total(parts, weights=weights) == pytest.approx(expected)


def test_a_failed_episode_pays_for_its_length_unless_only_solved_ones_do():
  parts = parts_of(episode(), verdict=VERDICT | {"solved": False, "fail_to_pass": 0.5})
  long = CodingReward(length=0.1)
  assert reward.coding_total(parts, weights=long) < 0
  only = CodingReward(length=0.1, length_of_solved_only=True)
  assert reward.coding_total(parts, weights=only) == 0.0
  some = CodingReward(length=0.0, progress=0.2)
  assert reward.coding_total(parts, weights=some) == pytest.approx(0.1)


def test_progress_does_not_count_where_something_broke_or_only_shown_tests_were_mended():
  weights = CodingReward(length=0.0, progress=0.2)
  failed = VERDICT | {"solved": False, "fail_to_pass": 0.5}
  broke = parts_of(episode(), verdict=failed | {"pass_to_pass": 0.9})
  shown = parts_of(episode(), verdict=failed | {"hidden_fail_to_pass": 0.0})
  assert reward.coding_total(broke, weights=weights) == 0.0
  assert reward.coding_total(shown, weights=weights) == 0.0


def test_all_behaviour_together_costs_at_most_a_fifth_of_solving():
  worst = {"broken_calls": 99.0, "open_todos": 1.0, "comment_thinking": 1.0, "shell_only": 1.0}
  assert reward.behaviour_penalty(worst, CodingReward()) == pytest.approx(0.2)


def test_sources_that_newly_mention_the_machinery_of_tests_earn_nothing():
  honest = parts_of(episode(("shell", {"command": "ls"}, "a")))
  cheat = honest | {"suspicious": 1.0}
  weights = CodingReward(length=0.0, progress=0.5)
  assert reward.coding_total(honest, weights=weights) == 1.5
  assert reward.coding_total(cheat, weights=weights) == 0.0


def test_style_warnings_are_counted_per_hundred_lines_and_clean_lines_have_none():
  bad = ["x = 1 ", "except:", "if a == None:", "from m import *", "import a, b", "y = 2;", "\tz"]
  assert reward.style_warnings([*bad, "a" * 101]) == 8.0
  clean = ["", "x = 1", "except ValueError:", "if a is None:", "import a", "from m import a, b"]
  assert reward.style_warnings(clean) == 0.0
  assert reward.style_warnings(bad[:1] * 200) == 100.0


def test_a_last_message_is_poor_if_empty_or_long_or_silent_about_the_change():
  assert reward.is_poor_message("", [], 0) and reward.is_poor_message("long", [], 401)
  assert reward.is_poor_message("All done.", ["pkg/dates.py"], 3)
  assert not reward.is_poor_message("Fixed dates.py.", ["pkg/dates.py"], 5)
  parts = {"broken_calls": 0.0, "open_todos": 0.0, "comment_thinking": 0.0, "shell_only": 0.0}
  parts |= {"style_warnings": 9.0, "poor_message": 1.0}
  weights = CodingReward(style=0.01, last_message=0.05)
  assert reward.behaviour_penalty(parts, weights) == pytest.approx(5 * 0.01 + 0.05)
  assert reward.behaviour_penalty(parts, CodingReward()) == 0.0
