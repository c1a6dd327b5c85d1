"""The scripted swarm: at once it is right within a budget in which one agent alone is not."""

import asyncio
import dataclasses

import pytest

from jaxrl_agents.agents.swarm.agent import AGENT
from jaxrl_agents.agents.swarm.expert import SwarmNoise, make_player
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.types import Task
from tests.agents.swarm.arena import HEADER, swarm_services, swarm_task

FAULTLESS = SwarmNoise(
  serial=0.0, lonely=0.0, crowded=0.0, hasty=0.0, drop=0.0, give_up=0.0, wrong_cell=0.0
)
SERIAL = dataclasses.replace(FAULTLESS, serial=1.0)


@pytest.fixture
def played(services):
  arena = swarm_services(services)

  def demonstrate(noise=FAULTLESS, task=None, seed=0):
    task = task or swarm_task()
    player = make_player(task, arena, noise, seed)
    chat, sampling = arena.search.chat, Sampling(max_new_tokens=400)
    return asyncio.run(run_episode(player, chat, player, task=task, sampling=sampling))

  return demonstrate


def tools_of(trajectory):
  return [[call.name for call in m.tool_calls] for m in trajectory.log if m.role == "assistant"]


def test_at_once_the_table_is_right_within_the_budget_and_alone_it_is_not(played):
  together, alone = played(), played(SERIAL)
  assert tools_of(together) == [["create_subagent", *["assign_task"] * 8], []]
  assert tools_of(alone) == [["search_corpus"]] * 3 + [[]]
  assert together.rewards["item_f1"] == together.rewards["success"] == 1.0
  assert together.rewards["critical_steps"] == alone.rewards["critical_steps"] == 4
  # three rows of eight: precision 1, recall 3/8
  assert alone.rewards["item_f1"] == pytest.approx(2 * (3 / 8) / (1 + 3 / 8))
  assert (together.rewards["serial_rate"], alone.rewards["serial_rate"]) == (0.0, 1.0)
  assert together.rewards["parallelism"] == 8.0


def test_an_agent_alone_with_room_finds_every_row_step_by_step(services):
  roomy = swarm_services(services, {"token_budget": 4_096}, alone=True, stretch=4.0)
  noise = dataclasses.replace(FAULTLESS, alone=1.0)
  task = swarm_task()
  player = make_player(task, swarm_services(services), noise, 0, roomy)
  sampling = Sampling(max_new_tokens=400)
  episode = run_episode(player, roomy.search.chat, player, task=task, sampling=sampling)
  trajectory = asyncio.run(episode)
  assert tools_of(trajectory) == [["search_corpus"]] * 8 + [[]]
  assert trajectory.rewards["success"] == 1.0 and trajectory.rewards["critical_steps"] == 9.0
  assert "create_subagent" not in roomy.search.chat.decode(trajectory.segments[0].tokens.tolist())


def test_where_there_are_few_rows_the_agent_alone_is_right_and_the_swarm_is_not(played):
  task = swarm_task(rows=2, max_steps=3)
  assert played(SERIAL, task).rewards["success"] == 1.0
  assert played(FAULTLESS, task).rewards["performance"] == 0.0


def test_one_task_a_turn_takes_as_many_stages_as_rows(played):
  noise = dataclasses.replace(FAULTLESS, lonely=1.0)
  trajectory = played(noise, swarm_task(rows=3, max_steps=10))
  assert [tools.count("assign_task") for tools in tools_of(trajectory)] == [1, 1, 1, 0]
  assert trajectory.rewards["critical_steps"] == 3 * 3 + 1
  assert trajectory.rewards["success"] == 1.0 == trajectory.rewards["serial_rate"]


def test_two_rows_to_a_sub_agent_take_it_three_turns(played):
  noise = dataclasses.replace(FAULTLESS, crowded=1.0)
  trajectory = played(noise, swarm_task(max_steps=5))
  assert trajectory.rewards["assigned"] == 4 and trajectory.rewards["success"] == 1.0
  assert trajectory.rewards["critical_steps"] == 5


def test_a_chain_is_looked_up_link_by_link(played):
  task = swarm_task(rows=2, max_steps=5)
  rows = [
    {
      **row,
      "lookups": [row["lookups"][0], f"number{d + 5}1"],
      "chunk_ids": [row["source"], f"{105 + d}_1"],
    }
    for d, row in enumerate(task.facts["rows"])
  ]
  task = dataclasses.replace(task, facts={**task.facts, "rows": rows})
  trajectory = played(task=task)
  assert tools_of(trajectory.children[0]) == [["search_corpus"]] * 2 + [[]]
  assert trajectory.rewards["success"] == 1.0


def test_a_question_is_answered_with_the_row_that_it_asks_for(played):
  rows = swarm_task(rows=4).facts["rows"]
  for i, row in enumerate(rows):
    row["cells"]["end"] = f"end{i}"
  task = swarm_task(
    rows=4, truth="number20", asked="end2", columns=["end", "name"], header="|end| name |"
  )
  task = Task(task.id, task.env, task.prompt, {**task.facts, "rows": rows})
  trajectory = played(task=task)
  assert [c.log[-1].content for c in trajectory.children][2] == "|end2| number20 |"
  assert trajectory.log[-1].content == "|end2| number20 |"
  assert trajectory.rewards["success"] == 1.0


def test_noise_is_of_its_rate_and_of_its_seed(played):
  noise = SwarmNoise()
  trajectories = [played(noise, seed=seed) for seed in range(60)]
  serial = sum(t.rewards["assigned"] == 0 for t in trajectories) / 60
  assert 0.5 < serial < 0.9
  assert min(t.rewards["item_f1"] for t in trajectories) < 1.0
  first, again = (played(noise, seed=3) for _ in range(2))
  assert [s.tokens.tolist() for s in first.segments] == [s.tokens.tolist() for s in again.segments]
  assert all((s.versions == -1).all() for s in first.segments)


def test_a_sub_agent_that_errs_shows_in_what_it_returns(played):
  sure = dataclasses.replace(FAULTLESS, scales=(1.0,))
  silent = played(dataclasses.replace(sure, give_up=1.0))
  assert {c.log[-1].content for c in silent.children} == {"none"}
  assert silent.rewards["finish_rate"] == 1.0 and silent.rewards["performance"] == 0.0
  empty = played(dataclasses.replace(sure, drop=1.0))
  assert empty.log[-1].content == HEADER


def test_the_expert_of_comparisons_works_alone_on_short_tables_only(services):
  arena, found = swarm_services(services), {}
  for kind in ("wide table", "narrow table"):
    task = swarm_task()
    task = dataclasses.replace(task, facts={**task.facts, "kind": kind})
    player = AGENT.player("expert", task, arena, 0, arena.search.chat)
    sampling = Sampling(max_new_tokens=400)
    episode = run_episode(player, arena.search.chat, player, task=task, sampling=sampling)
    found[kind] = tools_of(asyncio.run(episode))[0][0]
  assert found == {"wide table": "create_subagent", "narrow table": "search_corpus"}
