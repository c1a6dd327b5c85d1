"""Scripted players to compare with: they play in the harness, and see what a policy sees."""

import asyncio

import pytest

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents.search import baselines, reward, view
from jaxrl_agents.agents.search.agent import AGENT
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.harness.rollout import Sampling, run_episode
from tests.agents.search.arena import corpus, make_task

GOLD = ("100_0", "103_2", "107_4")
QUESTION = (
  "1. Thing: the river stands near the stone, part 0 of river number00. 2. Thing holding 1. "
  "3. Thing kept in 2: the lantern stands near the candle; number 32. "
  "Question: which thing is 3?"
)


def play(name, services, task, seed=0):
  player = AGENT.player(name, task, services, seed, services.chat)
  sampling = Sampling(max_new_tokens=services.limits.max_new_tokens)
  return asyncio.run(run_episode(player, services.chat, player, task=task, sampling=sampling))


def queries(trajectory):
  return [
    c.arguments["query"].strip() for c in reward.calls(trajectory.log) if "query" in c.arguments
  ]


def answered(trajectory):
  return reward.answer_ids(trajectory.log[-1].content)


def test_clues_are_the_descriptions_of_a_question():
  assert baselines.clues(QUESTION) == [
    "the river stands near the stone, part 0 of river number00",
    "the lantern stands near the candle; number 32",
  ]
  assert baselines.clues("1. Module holding 2. Question: which module is 1?") == []


def test_the_heuristic_searches_each_clue_in_rounds_and_lists_the_first_hits(services):
  trajectory = play("heuristic_2x1", services, make_task(QUESTION, GOLD))
  assert queries(trajectory) == baselines.clues(QUESTION) * 2
  results = [reward.hit_ids(m.content) for m in trajectory.log if m.role == "tool"]
  shown = [hits for hits in results if hits]  # a prune shows none
  assert len(answered(trajectory)) == len(shown) == 4
  assert answered(trajectory) == [hits[0] for hits in shown]
  assert trajectory.rewards["trajectory_recall"] > 0


@pytest.mark.parametrize("third", ["Thing kept in 2: candle", "Thing: candle; kept in 2"])
def test_hops_are_searched_for_with_names_in_the_hits_wherever_a_clue_refers_to_others(third):
  prompt = f"1. Thing: river. 2. Thing holding 1. 3. {third}. Question: which thing is 3?"
  plan = baselines._plan("hops_2x1", prompt, SearchConfig())
  shown = lambda name: view.hit("7", f"def {name}(other_name):", 5)
  assert plan.queries == ["river"]
  plan.ask(1)
  plan.learn([shown("first_name")])
  assert plan.queries == ["first_name", "other_name"]
  plan.ask(2)
  plan.learn([shown("first_name"), shown("found_name")])
  assert plan.queries == ["candle first_name", "candle found_name"]  # both are defined there


def test_a_clue_that_refers_to_none_before_it_is_searched_for_by_its_own_words():
  prompt = "1. Thing: river; kept in 9. 2. Thing: stone; kept in 2. Question: which thing is 2?"
  assert baselines._plan("hops_2x1", prompt, SearchConfig()).queries == ["river", "stone"]


def test_a_full_context_costs_the_heuristic_no_id(limited):
  services = limited(threshold_tokens=200, token_budget=500)
  trajectory = play("heuristic_3x4", services, make_task(QUESTION, GOLD))
  assert trajectory.stop == "answer"
  assert any(call.name == "prune_chunks" for call in reward.calls(trajectory.log))
  assert set(answered(trajectory)) <= set(reward.shown_ids(trajectory.log))
  assert set(answered(trajectory)) & set(reward.pruned_ids(trajectory.log))


def test_a_question_without_numbered_clues_is_one_clue(services):
  question = "Which stone does the river stand near?"
  trajectory = play("heuristic_2x1", services, make_task(question, GOLD))
  assert queries(trajectory) == [question] * 2


def test_one_search_asks_the_whole_question(services):
  trajectory = play("one_search_2", services, make_task(QUESTION, GOLD))
  assert queries(trajectory) == [QUESTION] * 2
  assert answered(trajectory) == reward.shown_ids(trajectory.log)


def test_a_guesser_earns_nothing_although_it_names_gold(services):
  task = make_task(QUESTION, GOLD)
  numbers = dict(zip(GOLD, "012", strict=True))
  task.facts["short_ids"] = numbers
  trajectory = play("guesser", services, task)
  assert set(numbers.values()) <= set(answered(trajectory))
  assert trajectory.rewards["output_recall"] == trajectory.rewards["answer_found"] == 0.0
  assert AGENT.reward(services.limits, trajectory.rewards) == reward.EPSILON


def test_the_expert_lists_the_gold_alone(services):
  trajectory = play("expert", services, make_task(gold=GOLD))
  assert sorted(answered(trajectory)) == sorted(GOLD)
  assert AGENT.reward(services.limits, trajectory.rewards) == 2.0


def test_every_baseline_of_the_agent_has_a_player_and_other_names_are_refused(services):
  task = make_task(corpus()[0].text, GOLD)
  for name in (*AGENT.baselines(AGENT.config()), agent_lib.DEMONSTRATOR):
    assert play(name, services, task).stop == "answer"
  for name in ("nobody", "heuristic_0x2", "one_search_"):
    with pytest.raises(ValueError, match=f"no scripted player '{name}'; it has expert, "):
      AGENT.player(name, task, services, 0, services.chat)
