"""Fused answers, with values by hand."""

import dataclasses

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents.search import other_answers, short_ids, view
from jaxrl_agents.agents.search.agent import AGENT
from jaxrl_agents.agents.search.config import SearchReward
from jaxrl_agents.runs import agent_setting
from jaxrl_agents.types import Group, Message, ToolCall, Trajectory
from tests.agents.search import arena

WEIGHTS = SearchReward(betas=(4.0, 1.0))


def rollout(shown, listed, *, completed=True, error="", penalty=0.0):
  """A trajectory that saw the hits (name, text) and listed names."""
  search = Message("assistant", "", (ToolCall("c", "search_corpus", {"query": "q"}),))
  hits = "\n".join(view.hit(name, text, 3) for name, text in shown)
  result = Message("tool", hits + view.usage_line(9, 99), tool_call_id="c")
  penalties = {"prune_penalty": 0.0, "repeat_penalty": penalty, "turn_penalty": 0.0}
  rewards = {"completed": float(completed), "turns": 2.0} | penalties
  stop = "answer" if completed else "step_limit"
  log = (search, result, arena.answer(*listed))
  return Trajectory("t", (), log, {} if error else rewards, stop, {"reward": 0.1}, error=error)


def fused(task, *rollouts, max_documents=12):
  group = Group(task, rollouts)
  (found,) = other_answers.fused([group], max_documents=max_documents, weights=WEIGHTS)
  return found.trajectories[0]


def test_an_answer_that_lists_all_that_was_shown_is_scored_as_such():
  hits = [(i, "x") for i in ("100_0", "101_1", "102_0", "103_0")]
  task = arena.make_task(gold=("100_0", "101_1"))
  none = rollout(hits, ["100_0"], completed=False)
  failed = rollout(hits, [], error="ValueError: x")
  group = Group(task, (rollout(hits, ["102_0"]), none, failed))
  (found,) = other_answers.all_shown([group], max_documents=3, weights=WEIGHTS)
  first, *others = found.trajectories
  assert others == [none, failed]
  assert (first.rewards["output_recall"], first.rewards["num_output"]) == (1.0, 3)
  assert first.rewards["precision"] == pytest.approx(2 / 3)
  assert first.metrics["reward"] == pytest.approx(0.7 * 0.8 + 0.3 + 1.0)  # F1 of 2/3 and 1


def test_the_fused_list_has_the_best_ranks_and_the_length_of_the_lists():
  hits = [(i, "x") for i in ("100_0", "101_1", "102_0", "103_0")]
  one = fused(
    arena.make_task(gold=("100_0", "101_1")),
    rollout(hits, ["100_0", "102_0"]),
    rollout(hits, ["101_1", "100_0"], penalty=0.3),
    rollout(hits, ["101_1", "103_0"]),
  )
  # 1/61 + 1/62 for 100_0, 2/61 for 101_1, 1/62 for the others; two are kept, and none is repeated
  assert one.rewards["output_recall"] == one.rewards["precision"] == 1.0
  assert one.rewards["num_output"] == 2
  assert one.metrics["reward"] == pytest.approx(0.7 + 0.3 + 1.0)


def test_the_same_number_is_not_the_same_chunk_in_every_rollout():
  task = short_ids.shortened(arena.make_task(gold=("100_0",)))
  gold = task.facts["short_ids"]["100_0"]
  free = [name for name in ("1", "2") if name != gold][0]
  other, wrong = (free, "one chunk"), (free, "another chunk")
  one = fused(
    task,
    rollout([(gold, "g"), other], [other[0]]),
    rollout([(gold, "g"), wrong], [wrong[0], gold]),
    rollout([(gold, "g")], [gold]),
  )
  # gold: 1/62 + 1/61; each other chunk 1/61, though both were called alike; ceil(4 / 3) are kept
  assert one.rewards["output_recall"] == 1.0
  assert one.rewards["precision"] == 0.5


def test_ids_that_no_tool_showed_are_left_out():
  one = fused(arena.make_task(gold=("100_0",)), rollout([("101_1", "x")], ["100_0", "101_1"]))
  assert one.rewards["output_recall"] == 0.0
  assert one.rewards["num_output"] == 1


def test_trajectory_recall_is_that_of_all_finished_rollouts():
  one = fused(
    arena.make_task(gold=("100_0", "101_1")),
    rollout([("100_0", "x")], ["100_0"]),
    rollout([("101_1", "x")], [], completed=False),
  )
  assert one.rewards["trajectory_recall"] == 1.0
  assert one.rewards["output_recall"] == 0.5


def test_a_group_without_an_answer_earns_what_its_rollouts_earn():
  lost = rollout([("100_0", "x")], [], completed=False)
  assert fused(arena.make_task(), lost, lost) == lost


def test_failed_rollouts_are_left_out_and_failed_groups_stay_failed():
  failed = dataclasses.replace(rollout([], [], error="killed"), segments=())
  task = arena.make_task(gold=("100_0",))
  assert fused(task, failed, rollout([("100_0", "x")], ["100_0"])).rewards["output_recall"] == 1.0
  assert fused(task, failed, failed) == failed


def test_a_judges_grade_counts_for_other_answers_as_for_those_of_the_policy():
  """The rollout lists all it was shown, so that nothing is gained by listing it again."""
  overrides = ["eval.bootstrap_resamples=10", "judge.url=http://127.0.0.1:1/v1", "judge.weight=0.5"]
  setting = agent_setting.setting(config_lib.load("configs/search_cpu.py", overrides))
  facts = {**arena.make_task(gold=("100_0",)).facts, "short_ids": {"100_0": "7"}}
  task = dataclasses.replace(arena.make_task(), facts=facts)
  played = rollout([("7", "x")], ["7"])
  played = dataclasses.replace(
    played,
    rewards={
      **played.rewards,
      "precision": 1.0,
      "output_recall": 1.0,
      "f1": 1.0,
      "answer_found": 1.0,
      "trajectory_recall": 1.0,
      "tool_calls": 1.0,
      "num_output": 1.0,
      "judged": 0.8,
    },
  )
  groups = agent_lib.rewarded(
    AGENT, setting.options, [Group(task, (played, played))], judge_weight=setting.judge_weight
  )
  found = AGENT.scores(setting, None, groups)
  assert found["policy"]["reward"] == pytest.approx(2.0 + 0.5 * 0.8)
  for name in ("all_shown", "fused"):
    assert found[name]["reward"] == pytest.approx(found["policy"]["reward"]), name
  evaluations = {"warm_start": groups, "trained": groups}
  bootstrap = AGENT.compare(setting, None, evaluations)["paired_bootstrap"]
  assert bootstrap["trained_minus_warm_start_all_shown"] == pytest.approx(0.0)
