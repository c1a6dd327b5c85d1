"""The scripted expert: deterministic, imperfect by its rates, and it plays by the same rules."""

import asyncio
import dataclasses

import numpy as np

from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.expert import ExpertNoise, make_player
from jaxrl_agents.harness.rollout import Sampling, run_episode
from tests.agents.search.arena import LIMITS, make_task

FAULTLESS = ExpertNoise(
  scales=(0.0,), cut_query=0.0, read=0.0, one_by_one=0.0, hasty=0.0, generous=0.0
)


def demonstrate(services, seed=0, noise=FAULTLESS, task=None):
  task = task or make_task(gold=("100_0", "103_2", "107_4"))
  player = make_player(task, services, noise, seed)
  sampling = Sampling(max_new_tokens=services.limits.max_new_tokens)
  return asyncio.run(run_episode(player, services.chat, player, task=task, sampling=sampling))


def tools_of(trajectory):
  return [[call.name for call in m.tool_calls] for m in trajectory.log if m.role == "assistant"]


def test_without_noise_the_expert_searches_each_clue_at_once_and_answers_with_the_gold(services):
  trajectory = demonstrate(services)
  assert tools_of(trajectory) == [["search_corpus"] * 3, []]
  assert reward.answer_ids(trajectory.log[-1].content) == ["100_0", "103_2", "107_4"]
  assert reward.search_total(trajectory.rewards, beta=4.0) == 2.0


def test_one_by_one_it_searches_a_clue_a_turn(services):
  noise = dataclasses.replace(FAULTLESS, one_by_one=1.0)
  assert tools_of(demonstrate(services, noise=noise)) == [["search_corpus"]] * 3 + [[]]


def test_a_hasty_episode_searches_one_clue_and_answers_from_it(services):
  trajectory = demonstrate(services, noise=dataclasses.replace(FAULTLESS, hasty=1.0))
  assert tools_of(trajectory) == [["search_corpus"], []]
  assert reward.answer_ids(trajectory.log[-1].content) == ["100_0"]


def test_a_generous_answer_lists_all_that_is_in_sight(services):
  trajectory = demonstrate(services, noise=dataclasses.replace(FAULTLESS, generous=1.0))
  assert reward.answer_ids(trajectory.log[-1].content) == reward.shown_ids(trajectory.log)
  assert trajectory.rewards["output_recall"] == 1.0 > trajectory.rewards["precision"]


def test_above_the_threshold_it_prunes_what_is_not_gold_and_goes_on(limited):
  services = limited(threshold_tokens=150)
  noise = dataclasses.replace(FAULTLESS, one_by_one=1.0)
  trajectory = demonstrate(services, noise=noise)
  assert ["prune_chunks", "search_corpus"] in tools_of(trajectory)
  assert trajectory.rewards["prune_accuracy"] == 1.0
  assert trajectory.rewards["output_recall"] == 1.0


def test_a_forgetful_expert_leaves_gold_out(services):
  noise = dataclasses.replace(
    FAULTLESS, forget=1.0, wrong_document=0.0, scales=(1.0,), early_answer=0.0
  )
  parts = demonstrate(services, noise=noise).rewards
  assert parts["trajectory_recall"] == 1.0
  assert parts["output_recall"] == 0.0


def test_the_same_seed_gives_the_same_tokens_and_others_differ(services):
  noise = ExpertNoise(scales=(2.0,), hasty=0.2)

  def tokens(seed):
    return [s.tokens.tolist() for s in demonstrate(services, seed, noise).segments]

  assert tokens(3) == tokens(3)
  assert len({str(tokens(seed)) for seed in range(8)}) > 2


def test_demonstrations_vary_and_keep_to_the_limits(services):
  played = [demonstrate(services, seed, ExpertNoise()) for seed in range(40)]
  lengths = {t.rewards["num_output"] for t in played}
  recalls = [t.rewards["output_recall"] for t in played]
  assert all(t.stop == "answer" for t in played)
  assert len(lengths) >= 4
  assert min(recalls) < 0.7 < max(recalls) == 1.0
  for trajectory in played:
    assert trajectory.metrics["turns"] <= LIMITS.max_turns
    for segment in trajectory.segments:
      assert (segment.versions[segment.loss_mask] == -1).all()
      assert not segment.logprobs.any()
      assert segment.routing is None
      assert segment.tokens.dtype == np.int32


def test_a_turn_never_exceeds_the_reply_it_may_give(limited):
  services = limited(max_new_tokens=40)
  trajectory = demonstrate(services)
  assert trajectory.metrics["truncated_turns"] == 0
