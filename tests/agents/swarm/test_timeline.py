"""A swarm's episode on its axis of steps, by hand."""

import dataclasses
import json

import pytest

from jaxrl_agents.agents.swarm import timeline
from jaxrl_agents.types import Task, Trajectory
from jaxrl_agents.viewer import trajectory
from tests.viewer.swarm_run import ANSWER, CHILDREN, EPISODE, LOG, TASK, changed, child


def test_a_stage_takes_a_step_and_those_of_its_longest_assignment():
  told = timeline.describe(EPISODE, TASK)
  assert [(s["start"], s["steps"]) for s in told["stages"]] == [(0, 6), (6, 3), (9, 1)]
  assert (told["critical_steps"], told["budget"]) == (10, 12)
  assert told["total_steps"] == 3 + (3 + 5 + 2)
  assert told["parallelism"] == pytest.approx((3 + 5 + 2) / (5 + 2))
  assert (told["width"], told["kind"]) == (2, "wide def")


def test_a_lane_starts_after_the_turn_that_asked_for_it_and_the_longest_are_critical():
  lanes = timeline.describe(EPISODE, TASK)["lanes"]
  assert [(x["start"], x["steps"], x["critical"]) for x in lanes] == [
    (1, 3, False),
    (1, 5, True),
    (7, 2, True),
    (7, 0, False),
  ]
  assert [(x["stage"], x["call"], x["prompt"]) for x in lanes] == [
    (0, 1, "one"),
    (0, 3, "two"),
    (1, 0, "three"),
    (1, 1, "again"),
  ]
  assert [x["status"] for x in lanes] == ["finished", "step_limit", "finished", "error"]
  assert [x["fault"] for x in lanes] == [False, False, False, True]


def test_of_equally_long_assignments_the_first_is_critical_and_of_lost_ones_none():
  both = timeline.describe(changed(children=(child(0, 1, 2), child(0, 3, 2))), TASK)
  assert [lane["critical"] for lane in both["lanes"]] == [True, False]
  lost = timeline.describe(changed(children=(child(0, 1, 0, "error", error="gone"),)), TASK)
  assert [lane["critical"] for lane in lost["lanes"]] == [False]
  assert lost["critical_steps"] == 3 and lost["parallelism"] is None


def test_an_orchestrator_alone_and_one_that_failed_have_their_stages_too():
  alone = timeline.describe(changed(children=()), TASK)
  assert [s["steps"] for s in alone["stages"]] == [1, 1, 1] and alone["lanes"] == []
  failed = changed(log=LOG[:6], children=CHILDREN[:2], rewards={}, stop="", error="x: late")
  assert timeline.describe(failed, TASK)["critical_steps"] == 6


def test_a_row_is_right_wrong_shown_or_never_shown():
  told = timeline.rows(EPISODE, TASK)
  assert [(r["found"] is not None, r["right"], r["seen"]) for r in told] == [
    (True, ["name", "near"], True),
    (True, ["name"], True),
    (False, [], True),
    (False, [], False),
  ]
  assert told[1]["found"] == {"name": "two", "near": "lake"}


def test_a_source_is_right_under_the_name_it_had_and_a_table_of_other_columns_has_no_rows():
  sourced = dataclasses.replace(TASK, facts={**TASK.facts, "columns": ["name", "source"]})
  answer = "| name | source |\n| one | 7 |\n| two | 2_0 |"
  log = (*LOG[:-1], dataclasses.replace(LOG[-1], content=answer))
  told = timeline.rows(changed(log=log), sourced)
  assert [r["right"] for r in told[:2]] == [["name", "source"], ["name"]]
  assert all(r["found"] is None for r in timeline.rows(EPISODE, sourced))


def test_a_question_has_rows_to_look_at_and_none_in_its_answer():
  question = dataclasses.replace(TASK, facts={**TASK.facts, "truth": "two"})
  assert {r["found"] for r in map(dict, timeline.rows(EPISODE, question))} == {None}


def test_only_the_episode_of_an_orchestrator_has_stages():
  told = trajectory.describe(EPISODE, TASK)
  assert told["swarm"]["critical_steps"] == 10
  assert [c["swarm"] for c in told["children"]] == [None] * 4
  json.dumps(told, allow_nan=False)
  search = Task("t", "search", "?", {"facts": []})
  played = Trajectory("t", (), LOG, {}, "answer")
  assert trajectory.describe(played, search)["swarm"] is None
  assert ANSWER in told["turns"][-1]["text"]
