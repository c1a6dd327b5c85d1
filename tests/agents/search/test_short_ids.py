"""Short ids: numbers to the policy, chunk ids to the rewards, and never a number for two chunks."""

import asyncio
import dataclasses
import re

import pytest

from jaxrl_agents.agents.search import reward, short_ids
from jaxrl_agents.agents.search.expert import ExpertNoise, make_player
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.types import Task
from jaxrl_agents.viewer import trajectory as told
from tests.agents.search.arena import answer, calls, make_task, play, results


@pytest.fixture
def task():
  return short_ids.shortened(make_task(gold=("100_0", "103_2", "107_4")))


def shown_number(text, word):
  """The number of the first hit whose text has `word`."""
  return re.search(rf"# DOCUMENT ID: (\d+) \(\d+ tokens\) \n[^\n]*{word}", text)[1]


def test_hits_are_shown_under_numbers_and_an_answer_in_numbers_earns_the_gold(services, task):
  number = task.facts["short_ids"]

  def name_what_was_found(context):
    text = "".join(m.content for m in context.messages if m.role == "tool")
    assert "_" not in "".join(reward.hit_ids(text))
    assert shown_number(text, "number00") == number["100_0"]
    return answer(number["100_0"], number["103_2"], "100_0x")

  played = play(services, [calls(("search_corpus", "number00")), name_what_was_found], task)
  assert played.rewards["output_recall"] == played.rewards["trajectory_recall"] == 1 / 3
  assert played.rewards["unseen_output"] == 2


def test_there_are_numbers_for_all_chunks_that_an_episode_may_show():
  few = short_ids.shortened(make_task(gold=("100_0",)), shown=99)
  many = short_ids.shortened(make_task(gold=("100_0",)), shown=140)
  assert max(int(short_ids.ShortIds(few).name(f"c{i}")) for i in range(99)) < 100
  names = short_ids.ShortIds(many)
  drawn = [int(names.name(f"c{i}")) for i in range(140)]
  assert len(set(drawn)) == 140 and max(drawn) < 1_000
  # Small numbers are no sign of gold: they are drawn throughout.
  assert any(number < 100 for number in drawn[-60:])
  documents = dataclasses.replace(many, facts={"document_ids": ["100"]})
  gold = short_ids.shortened(documents, [f"100_{i}" for i in range(150)]).facts["short_ids"]
  assert len(gold) == 150


def test_a_number_that_was_never_given_is_no_document(services, task):
  used = task.facts["short_ids"].values()
  unused = next(str(n) for n in range(short_ids.NUMBERS) if str(n) not in used)
  assert play(services, [answer(unused)], task).rewards["unseen_output"] == 1


def test_pruning_and_reading_take_the_numbers(services, task):
  number = task.facts["short_ids"]["100_0"]
  turns = [
    calls(("search_corpus", "number00")),
    calls(("prune_chunks", [number]), ("read_document", number)),
    answer(number),
  ]
  played = play(services, turns, task)
  assert results(played)[1] == "Pruned"
  assert "part 5 of river" in results(played)[2]
  assert played.rewards["num_pruned"] == 1 and played.rewards["prune_accuracy"] == 0.0


def test_the_expert_reads_and_says_numbers(services, task):
  faultless = ExpertNoise(
    scales=(0.0,), cut_query=0.0, read=0.0, one_by_one=0.0, hasty=0.0, generous=0.0
  )
  player = make_player(task, services, faultless, 0)
  sampling = Sampling(max_new_tokens=services.limits.max_new_tokens)
  played = asyncio.run(run_episode(player, services.chat, player, task=task, sampling=sampling))
  said = reward.answer_ids(played.log[-1].content)
  assert sorted(said) == sorted(task.facts["short_ids"].values())
  assert played.rewards["output_recall"] == played.rewards["precision"] == 1.0


def test_the_page_knows_gold_by_its_number(services, task):
  number = task.facts["short_ids"]["103_2"]
  played = play(services, [calls(("search_corpus", "number32")), answer(number)], task)
  page = told.describe(played, task)
  assert page["returned"] == [{"id": number, "gold": [2]}]
  assert [fact["seen"] for fact in page["facts"]] == [None, 1, None]


def test_where_documents_are_gold_the_numbers_of_their_chunks_earn_them(services):
  plain = Task("d", "search", "Which?", {"level": 0, "document_ids": ["103"]})
  task = short_ids.shortened(plain, ["103_0", "103_1", "103_2"])
  number = task.facts["short_ids"]["103_1"]
  found = calls(("grep_corpus", "number31"))
  assert play(services, [found, answer(number)], task).rewards["output_recall"] == 1.0
  assert play(services, [answer(number)], task).rewards["output_recall"] == 0.0
  assert number in told.gold_targets(task)[0]["ids"]


def test_a_chunk_keeps_its_number_and_no_two_share_one_even_where_numbers_run_out(task):
  ids = short_ids.ShortIds(task)
  names = [ids.name(f"1_{i}") for i in range(1_200)]
  assert len({*names, *task.facts["short_ids"].values()}) == 1_203
  assert [ids.name(f"1_{i}") for i in range(1_200)] == names
  assert [ids.chunk_id(name) for name in names[:3]] == ["1_0", "1_1", "1_2"]


def test_numbers_differ_from_task_to_task_and_plain_tasks_keep_their_ids(task):
  other = short_ids.shortened(dataclasses.replace(task, id="u"))
  assert other.facts["short_ids"] != task.facts["short_ids"]
  assert short_ids.ShortIds(make_task()).name("100_0") == "100_0"
