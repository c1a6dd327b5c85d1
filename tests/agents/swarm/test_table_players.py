"""Scripted players of tables: one agent is right on small ones, a swarm on large ones."""

import dataclasses

import pytest

from jaxrl_agents.agents.swarm import pace
from jaxrl_agents.agents.swarm.pace import Pace
from jaxrl_agents.agents.swarm.reading import Reading
from jaxrl_agents.agents.swarm.table_players import Style, make_player
from jaxrl_agents.types import Message
from tests.agents.swarm.library import CHAT, OPTIONS, play, run, services, sized


@pytest.fixture(scope="module")
def arena(tables):
  return lambda **changes: services(tables[0], **changes)


def tools_of(trajectory):
  return [[call.name for call in m.tool_calls] for m in trajectory.log if m.role == "assistant"]


def test_what_one_agent_and_a_swarm_can_do_is_as_counted_by_hand():
  pace = Pace(OPTIONS, names_per_search=1, hops=1, last=0)
  # two calls a turn: ten rows take five turns and the answer; ten sub-agents assign, search, tell
  assert pace.steps_alone(10) == 6 and pace.steps_together(10) == 4
  assert pace.rows_alone(5) == 8 and pace.rows_each(3) == 0 and pace.rows_each(4) == 2
  # forty rows on twenty sub-agents: two each, one turn of look-ups; on sixteen: three, two turns
  assert pace.steps_together(40) == 1 + 1 + 1 + 1
  fewer = dataclasses.replace(OPTIONS, max_assignments_per_turn=16)
  assert dataclasses.replace(pace, limits=fewer).steps_together(40) == 1 + 2 + 1 + 1
  chain = Pace(OPTIONS, names_per_search=1, hops=2, last=0)
  assert chain.steps_alone(1) == 3 and chain.steps_alone(4) == 5 and chain.steps_together(4) == 5
  relay = Pace(OPTIONS, names_per_search=1, hops=1, last=1)
  assert relay.steps_alone(3) == 4 and relay.steps_together(3) == 5


def test_small_tables_are_for_one_agent_and_large_ones_for_a_swarm(arena, tables):
  for rows, expected in ((2, False), (4, False), (8, True), (16, True)):
    task = sized(tables[1], rows, "(class|def)$")
    expert, alone, swarm = (
      play(task, arena(), name).rewards for name in ("expert", "never_splits", "always_splits")
    )
    assert expert["item_f1"] == 1.0 and (expert["width"] > 1) == expected
    assert (alone["item_f1"] == 1.0) != expected
    assert (swarm["item_f1"] == 1.0) == (expected or rows <= 4)
    if not expected:  # without the steps for sub-agents, always_splits works alone too
      assert swarm["width"] == 0.0 and expert["critical_steps"] == rows / 2 + 1
    else:
      assert expert["critical_steps"] == 4.0


def test_one_agent_with_all_the_steps_finds_what_the_swarm_finds_in_more_of_them(arena, tables):
  task = sized(tables[1], 16, "(class|def)$")
  alone, swarm = (play(task, arena(), n) for n in ("single_agent_unhurried", "expert"))
  assert alone.rewards["item_f1"] == swarm.rewards["item_f1"] == 1.0
  assert alone.rewards["critical_steps"] == 16 / 2 + 1 and swarm.rewards["critical_steps"] == 4
  assert tools_of(alone) == [["search_corpus"] * 2] * 8 + [[]]
  assert "create_subagent" not in CHAT.decode(alone.segments[0].tokens.tolist())


def test_questions_are_answered_by_putting_values_together(arena, tables):
  kinds = [t for t in tables[1] if t.facts["kind"].startswith("deep") and t.facts["max_steps"] > 4]
  for task in kinds[:6]:
    found = play(task, arena(), "always_splits")
    assert found.rewards["success"] == 1.0, task.prompt
    stages = tools_of(found)
    assert stages[0][:2] == ["create_subagent", "assign_task"] and stages[-1] == []
    # the value is passed on: one more look-up, which no sub-agent was asked for
    assert stages[1:-1] == ([["search_corpus"]] if "link" in task.facts else [])


def test_a_value_may_be_known_before_all_names_are_looked_up(arena, tables):
  deep = [t for t in tables[1] if "shared" in t.facts["kind"] and len(t.facts["rows"]) > 6]
  found = [play(task, arena(), "single_agent_unhurried").rewards for task in deep]
  assert all(each["success"] == 1.0 for each in found)
  steps = [each["critical_steps"] for each in found]
  assert min(steps) < min(len(t.facts["rows"]) / 2 + 1 for t in deep)


def test_lost_messages_are_assigned_again_while_steps_are_left(arena, tables):
  task = sized(tables[1], 16, "(class|def)$")
  task = dataclasses.replace(task, facts={**task.facts, "max_steps": 12})
  unreliable = arena(sub_failure_rate=0.5)
  found = play(task, unreliable, "always_splits")
  assert found.rewards["sub_error"] > 2 and found.rewards["finish_rate"] < 0.8
  assert found.rewards["assigned"] > 16 and found.rewards["item_f1"] > 0.8
  assert play(task, arena(), "always_splits").rewards["assigned"] == 16


def test_no_row_that_was_not_looked_up_is_in_the_table_of_a_demonstration(arena, tables):
  task = sized(tables[1], 16, "(class|def)$")
  player = make_player(task, arena(), Style("never"), 0)
  found = run(player, task, arena())
  assert found.rewards["item_precision"] == 1.0 and 0.5 < found.rewards["item_recall"] < 1.0


def test_demonstrations_are_serial_or_parallel_whatever_the_size_and_of_their_seed(arena, tables):
  made = arena(serial=0.5, single=0.2)
  long = [task for task in tables[1] if task.facts["max_steps"] > 3][:20]
  found = [play(task, made, "demonstrator") for task in long]
  serial = sum(t.rewards["assigned"] == 0 for t in found)
  assert 5 <= serial <= 18 and all(t.stop == "answer" for t in found)
  shown = [CHAT.decode(t.segments[0].tokens) for t in found]
  alone = [text for text in shown if "create_subagent" not in text.partition("<|user|>")[0]]
  assert 1 <= len(alone) <= 8
  again = play(long[3], made, "demonstrator")
  assert [s.tokens.tolist() for s in again.segments] == [
    s.tokens.tolist() for s in found[3].segments
  ]


def test_styles_differ_in_names_of_an_assignment_and_in_assignments_of_a_turn(arena, tables):
  task = sized(tables[1], 16, "(class|def)$")
  task = dataclasses.replace(task, facts={**task.facts, "max_steps": 40})
  played = lambda **style: (
    run(make_player(task, arena(), Style("always", **style), 0), task, arena()).rewards
  )
  assert (played()["assigned"], played()["width"]) == (16, 16)
  assert (played(least_names=2)["assigned"], played(least_names=2)["width"]) == (8, 8)
  alone = played(one_by_one=True)
  assert alone["width"] <= 1 and alone["assigned"] > 8


def test_a_full_context_ends_the_look_ups_of_one_agent_with_an_answer(arena, tables):
  task = sized(tables[1], 16, "(class|def)$")
  tight = arena(search=dataclasses.replace(OPTIONS.search, token_budget=900), stretch=4.0)
  found = play(task, tight, "never_splits")
  assert found.stop == "answer" and 0.2 < found.rewards["item_f1"] < 0.9


def test_an_entry_that_a_search_does_not_show_is_looked_up_by_a_pattern_once():
  reading = Reading("1. class Foo. Table: | name |base|source|")
  first, second = (reading.lookups(2)[0][0] for _ in range(2))
  assert (first.name, first.arguments) == ("search_corpus", {"query": "1. class Foo"})
  assert (second.name, second.arguments) == ("grep_corpus", {"pattern": r"class Foo\("})
  assert reading.lookups(2) == []
  reading.learn([Message("tool", "\n# DOCUMENT ID: 7 (5 tokens) \nclass Foo(Bar):")])
  assert reading.row(("class", "Foo")) == ["Foo", "Bar", "<Document id=7>"]
  assert not reading.missing() and reading.guessed(("class", "Foo")) == ["Foo", "Exception", "0"]


def test_cells_stand_in_the_order_of_the_header():
  reading = Reading("1. class Foo. Table: | name |source|base|")
  reading.learn([Message("tool", "\n# DOCUMENT ID: 7 (5 tokens) \nclass Foo(Bar):")])
  assert reading.row(("class", "Foo")) == ["Foo", "<Document id=7>", "Bar"]
  assert reading.guessed(("class", "Foo")) == ["Foo", "0", "Exception"]


def test_one_search_may_be_for_as_many_names_as_it_shows_chunks():
  reading = Reading("1. class Foo. 2. def bar. 3. SIZE. Table: | name |base|source|")
  queries = [call.arguments["query"] for call, _ in reading.lookups(2, together=2)]
  assert queries == ["1. class Foo. 2. def bar", "3. SIZE"]


def test_a_sub_agent_searches_with_the_numbers_of_its_assignment():
  reading = Reading("7. class Foo. 12. SIZE. def bar", "| name |base|source|")
  queries = [call.arguments["query"] for call, _ in reading.lookups(3)]
  assert queries == ["7. class Foo", "12. SIZE", " def bar"]


def test_rows_are_written_with_the_numbers_of_their_names_and_read_with_or_without():
  header = "| name |base|source|"
  sub = Reading("7. class Foo. 12. class Baz. class Qux", header)
  rows = [["Foo", "Bar", "5"], ["Baz", "Bar", "6"], ["Qux", "Bar", "8"]]
  said = sub.lines(rows)
  assert said == ["7. | Foo |Bar|5|", "12. | Baz |Bar|6|", "| Qux |Bar|8|"]
  asked = Reading(f"7. class Foo. 12. class Baz. 13. class Qux. Table: {header}")
  asked.learn([Message("tool", "\n".join(said))])
  assert [asked.row(key) for key in asked.names] == rows


def test_the_unhurried_agent_has_steps_and_context_for_the_largest_table():
  more = pace.unhurried(OPTIONS)
  assert more.alone and more.max_turns == 40 / 2 + 4
  # forty rows: twelve steps, of which it gets twice as many
  assert more.stretch * 12 >= 40 / 2 + 1
  assert more.search.token_budget >= 40 * (80 + 40)


def test_doing_nothing_earns_nothing_and_a_guess_no_more_than_the_names(arena, tables):
  for task in tables[1][:12]:
    assert play(task, arena(), "do_nothing").rewards["performance"] == 0.0
    # one cell of three, and seldom a value
    assert play(task, arena(), "guesser").rewards["performance"] < 0.5
