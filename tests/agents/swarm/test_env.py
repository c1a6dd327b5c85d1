"""The swarm environment: stages, statuses, budgets, and faults that cost no more than they must."""

import asyncio
import dataclasses
import random

import numpy as np
import pytest

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents.swarm import env as swarm
from jaxrl_agents.agents.swarm.subagents import Crew
from jaxrl_agents.harness import group_files
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.types import Generation, Group, Message, ToolCall
from tests.agents.swarm.arena import (
  HEADER,
  answer,
  assign,
  create,
  episode,
  play,
  play_group,
  results,
  search,
  swarm_services,
  swarm_task,
  turn,
)

ROW = "| number00 | stone | 100_0 |"
SAYS = lambda text: lambda assignment: [Message("assistant", text)]


@pytest.fixture
def arena(services):
  return lambda **changes: swarm_services(services, **changes)


def test_assignments_of_one_turn_return_in_order_with_one_message_each(arena):
  of = lambda assignment: [Message("assistant", f"of {assignment.prompt}")]
  turns = [turn(create(), *(assign(f"p{i}") for i in range(3))), answer(ROW)]
  trajectory = play(arena(), turns, of)
  line = "\n[Steps left: 2]"
  assert results(trajectory) == ["Created", "of p0", "of p1", f"of p2{line}"]
  assert trajectory.rewards["critical_steps"] == 3 and trajectory.rewards["total_steps"] == 5


def test_a_sub_agent_sees_its_role_its_task_and_the_tools_that_look_things_up(arena):
  of = lambda _: [turn(search("number10")), Message("assistant", "found")]
  task = swarm_task(max_steps=6)
  role = create(system_prompt="a role")
  trajectory = play(arena(), [turn(role, assign("number10")), answer(ROW)], of, task)
  child = trajectory.children[0]
  assert [(m.role, m.content) for m in child.log[:2]] == [
    ("system", "a role"),
    ("user", "number10"),
  ]
  assert "# DOCUMENT ID: 101_0" in child.log[3].content
  text = arena().search.chat.decode(child.segments[0].tokens)
  assert text.startswith("<|tools|>search_corpus grep_corpus read_document<|end|>")


def test_children_are_kept_and_none_of_their_tokens_is_trained(arena, tmp_path):
  turns = [turn(create(), assign(), assign()), answer(ROW)]
  trajectory = play(arena(), turns, SAYS("the secret of the child"))
  chat = arena().search.chat
  assert [c.stop for c in trajectory.children] == ["finished"] * 2
  trained = [chat.decode(s.tokens[s.loss_mask]) for s in trajectory.segments]
  shown = [chat.decode(s.tokens) for s in trajectory.segments]
  assert "secret" in "".join(shown) and "secret" not in "".join(trained)
  group_files.save_groups(tmp_path / "g.npz", [Group(swarm_task(), (trajectory,))])
  loaded = group_files.load_groups(tmp_path / "g.npz")[0].trajectories[0]
  assert [c.task_id for c in loaded.children] == ["t/0.0", "t/0.1"]


def test_a_childs_metrics_hold_its_stage_its_call_and_its_steps(arena, tmp_path):
  def of(assignment):
    if assignment.prompt == "lost":
      raise RuntimeError("the sampler is gone")
    return [*[turn(search("number10"))] * len(assignment.prompt), Message("assistant", "found")]

  first = turn(create(), assign("x"), assign("y", agent="nobody"), assign("xx"))
  turns = [first, turn(search(), assign("lost")), answer(ROW)]
  trajectory = play(arena(), turns, of, swarm_task(max_steps=12))
  group_files.save_groups(tmp_path / "g.npz", [Group(swarm_task(), (trajectory,))])
  children = group_files.load_groups(tmp_path / "g.npz")[0].trajectories[0].children
  told = [tuple(c.metrics[name] for name in ("stage", "call", "steps")) for c in children]
  assert told == [(0, 1, 2), (0, 3, 3), (1, 1, 0)]
  assert trajectory.rewards["critical_steps"] == (1 + 3) + 1 + 1


@pytest.mark.parametrize(
  ("turns_of", "status", "steps", "text"),
  [
    ([Message("assistant", ROW)], "finished", 1, ROW),
    ([Message("assistant", " ")], "empty", 1, "[status: empty]"),
    ([turn(search("number10")), turn(search("number20"))], "step_limit", 3, "[status: step_limit]"),
    ([Message("assistant", "x " * 200)], "error", 4, "[status: error] x x"),
  ],
)
def test_a_sub_agent_ends_with_a_status(arena, turns_of, status, steps, text):
  task = swarm_task(max_steps=2 + max(steps, 3))  # 1 to assign, 1 to answer
  services = arena()
  trajectory = play(services, [turn(create(), assign()), answer(ROW)], lambda _: turns_of, task)
  assert trajectory.children[0].stop == status
  assert trajectory.rewards["critical_steps"] == 2 + steps
  assert results(trajectory)[1].startswith(text)
  assert trajectory.rewards["faults"] == 0


def test_a_sub_agent_without_room_for_a_reply_has_reached_its_token_limit(arena):
  turns = [turn(create(), assign("long " * 40)), answer(ROW)]
  trajectory = play(arena(sub_token_budget=40), turns)
  assert trajectory.children[0].stop == "token_limit"


def crashing(env, assignment, seed):
  raise RuntimeError("the sampler is gone")


class Hanging:
  async def generate(self, prompt, limits):
    await asyncio.sleep(60)


class Breaking:
  async def generate(self, prompt, limits):
    return Generation(np.zeros(0, np.int32), np.zeros(0), np.zeros(0), None, "stop")


@pytest.mark.parametrize("player", [crashing, Hanging(), Breaking()])
def test_a_sub_agent_that_is_lost_costs_its_own_status_and_not_the_episode(arena, player):
  services = arena(sub_deadline_s=0.2)
  crew = Crew(player if callable(player) else lambda env, a, s: (env, player))
  turns = [turn(create(), assign(), assign()), answer(ROW)]
  group = play_group(services, turns, crew)
  trajectory = group.trajectories[0]
  assert not trajectory.error
  assert [c.stop for c in trajectory.children] == ["error"] * 2
  assert all(c.error for c in trajectory.children)
  assert trajectory.rewards["faults"] == 2 and trajectory.rewards["item_recall"] == 1 / 8
  assert results(trajectory)[1].startswith("[status: error]")


def test_an_episode_with_a_lost_sub_agent_keeps_its_reward_whatever_its_score(arena):
  for last, performance in ((answer(), 0.0), (answer(ROW), 2 / 9)):
    turns = [turn(create(), assign()), last]
    lost = play_group(arena(), turns, Crew(crashing)).trajectories[0]
    assert not lost.error and lost.rewards["faults"] == 1
    assert lost.rewards["performance"] == pytest.approx(performance)


class Barrier:
  """Answers nobody before `count` ask at the same time."""

  def __init__(self, chat, count):
    self.chat, self.count, self.waiting, self.most = chat, count, 0, 0
    self.everybody = asyncio.Event()

  async def generate(self, prompt, limits):
    assert limits.policy == "frozen"
    self.waiting += 1
    self.most = max(self.most, self.waiting)
    if self.waiting == self.count:
      self.everybody.set()
    await self.everybody.wait()
    self.waiting -= 1
    tokens = self.chat.encode_reply(Message("assistant", "here"))
    n = len(tokens)
    return Generation(tokens, np.zeros(n, np.float32), np.full(n, 70, np.int32), None, "stop")


def test_sub_agents_of_a_turn_ask_their_frozen_policy_at_the_same_time(arena):
  from jaxrl_agents.harness.rollout import Pinned

  services, told = arena(), []
  barrier = Barrier(services.search.chat, 6)
  crew = Crew(lambda env, a, s: (env, Pinned(barrier, "frozen")), told.append)
  trajectory = play(services, [turn(create(), *[assign()] * 6), answer(ROW)], crew)
  assert barrier.most == 6
  assert told[0] == 5 and told[1:] == [-1] * 5  # the last one hands back to the orchestrator
  assert [c.segments[0].versions[-1] for c in trajectory.children] == [70] * 6


@pytest.mark.parametrize(
  ("calls", "place", "text"),
  [
    ([assign(agent="nobody")], 0, "Error: there is no sub-agent 'nobody'. There are: none"),
    ([create(), create()], 1, "Error: there is a sub-agent 'a' already"),
    ([create(f"{i}") for i in range(5)], 3, "Error: there are 3 sub-agents already"),
    ([create(), *[assign()] * 9], 9, "Error: at most 8 tasks a turn"),
    ([search(), search()], 1, "Error: at most 1 calls a turn"),
    ([create(system_prompt=7)], 0, "Error: create_subagent: 'system_prompt' must be of type"),
    ([create(), assign(prompt="")], 1, "Error: assign_task: 'prompt' has 0 characters"),
    ([ToolCall("", "assign_tasks", {})], 0, "Error: there is no tool 'assign_tasks'; did you"),
    ([assign(), create()], 0, "Error: there is no sub-agent 'a'"),
  ],
)
def test_what_cannot_be_done_is_an_observation(arena, calls, place, text):
  trajectory = play(arena(), [turn(*calls), answer(ROW)])
  assert results(trajectory)[place].startswith(text)
  assert trajectory.stop == "answer"


def test_assignments_that_are_refused_take_no_place_of_those_that_run(arena):
  wrong = [assign(agent="nobody")] * 6 + [assign(prompt="")] * 2
  trajectory = play(arena(), [turn(create(), *wrong, assign()), answer(ROW)])
  assert len(trajectory.children) == 1
  assert (trajectory.rewards["width"], trajectory.rewards["refused"]) == (1.0, 8.0)


def test_a_flood_of_assignments_is_bounded_over_the_episode_too(arena):
  task = swarm_task(max_steps=9)
  flood = [turn(create(), *[assign()] * 8), turn(*[assign()] * 8), answer(ROW)]
  trajectory = play(arena(), flood, task=task)
  assert len(trajectory.children) == 12
  assert "all 12 tasks of this episode are given" in results(trajectory)[-1]
  assert trajectory.rewards["refused"] == 4
  assert trajectory.rewards["finish_rate"] == 12 / 16


def test_the_budget_is_never_exceeded_and_one_step_is_kept_for_the_answer(arena):
  endless = lambda _: [turn(search())]
  calls = [turn(create(), assign()), answer(ROW)]
  for steps, sub_steps in ((3, 1), (5, 3), (50, 6)):
    trajectory = play(arena(), calls, endless, swarm_task(max_steps=steps))
    assert trajectory.rewards["critical_steps"] == 1 + sub_steps + 1 <= steps
  refused = play(arena(), calls, endless, swarm_task(max_steps=2))
  assert results(refused)[1].startswith("Error: no steps are left for a sub-agent")


def test_calls_on_the_last_step_end_the_episode_without_an_answer(arena):
  trajectory = play(arena(), [turn(search())] * 2, task=swarm_task(max_steps=2))
  assert trajectory.stop == "step_limit"
  assert trajectory.rewards["performance"] == 0 and trajectory.rewards["completed"] == 0
  assert trajectory.rewards["critical_steps"] == 2 and len(results(trajectory)) == 1


def test_turns_and_contexts_of_the_orchestrator_are_bounded(arena):
  task = swarm_task(max_steps=50)
  assert play(arena(max_turns=3), [turn(search())] * 3, task=task).stop == "turn_limit"
  small = arena(search={"token_budget": 130})
  assert play(small, [turn(search())] * 3, task=task).stop == "context_overflow"


def test_messages_are_cut_and_share_the_room_there_is(arena):
  many = [turn(create(), *[assign()] * 8), answer(ROW)]
  said = SAYS("word " * 60)
  chat = arena().search.chat
  lengths = [chat.count(text) for text in results(play(arena(), many, said))[1:8]]
  assert lengths == [32] * 7
  tight = play(arena(search={"token_budget": 460}), many, said)
  assert tight.stop == "answer" and max(map(chat.count, results(tight)[1:8])) < 32


def test_the_tools_of_the_orchestrator_run_beside_its_sub_agents(arena):
  of = lambda _: [turn(search("number10")), Message("assistant", "found")]
  trajectory = play(arena(), [turn(search(), create(), assign()), answer(ROW)], of)
  assert "# DOCUMENT ID: 100_0" in results(trajectory)[0]
  assert trajectory.rewards["tool_calls"] == 3


def test_a_question_is_judged_by_its_answer(arena):
  task = swarm_task(truth="number30")
  right = play(arena(), [Message("assistant", "Number30")], task=task)
  wrong = play(arena(), [Message("assistant", "number40")], task=task)
  row = play(arena(), [Message("assistant", "|some end| number30 |")], task=task)
  scores = [each.rewards["performance"] for each in (right, wrong, row)]
  assert scores == [1.0, 0.0, 1.0]


def test_a_task_without_a_budget_or_anything_to_judge_by_is_an_error(arena):
  for facts in ({"max_steps": 0}, {"rows": []}):
    task = dataclasses.replace(swarm_task(), facts={**swarm_task().facts, **facts})
    with pytest.raises(ValueError, match="needs facts"):
      swarm.make(task, arena(), Crew(crashing), 0)


def test_no_sequence_of_calls_raises_or_exceeds_the_budget(arena):
  draw = random.Random(0)
  pool = [create(), create("b"), assign(), assign(agent="b"), search(), search("x" * 600)]
  pool += [ToolCall("", "assign_task", {"agent": 3}), ToolCall("", "", {}, error="no JSON")]
  says = [turn(search("number10")), Message("assistant", ""), Message("assistant", ROW)]
  for _ in range(40):
    steps = draw.randint(1, 9)
    turns = [turn(*draw.choices(pool, k=draw.randint(1, 5))) for _ in range(10)]
    cut = draw.randint(0, 9)
    turns = [*turns[:cut], answer(ROW), *turns[cut:]]
    of = lambda _: draw.choices(says, k=3)
    trajectory = play(arena(), turns, of, swarm_task(max_steps=steps))
    assert trajectory.rewards["critical_steps"] <= steps
    assert (
      len(trajectory.children)
      == sum(
        trajectory.rewards[f"sub_{s}"] for s in ("step_limit", "token_limit", "empty", "error")
      )
      + trajectory.rewards["finished"]
    )


def test_an_episode_that_is_given_up_takes_its_sub_agents_along(arena):
  services, told = arena(), []
  crew = Crew(lambda env, a, s: (env, Hanging()), told.append)
  task = swarm_task()
  _, player = episode(services, [turn(create(), assign(), assign())], crew, task)
  chat, sampling = services.search.chat, Sampling(episode_deadline_s=0.2)
  with pytest.raises(RuntimeError, match="not done after"):
    asyncio.run(run_episode(player, chat, player, task=task, sampling=sampling))
  assert sum(told) == 0


def test_the_services_of_a_worker_hand_sub_agents_to_the_frozen_policy(arena, services):
  limits = dataclasses.replace(arena().limits, search=arena().search.limits)
  folder = str(services.index.folder)
  made = agent_lib.worker_services("swarm", "base", limits, folder, "")
  chat, asked = made.chat, []
  said = {
    "": iter([turn(create(), assign()), answer(ROW)]),
    "frozen": iter([Message("assistant", "x")]),
  }

  class Both:
    async def generate(self, prompt, limits):
      asked.append(limits.policy)
      tokens = chat.encode_reply(next(said[limits.policy]))
      n = len(tokens)
      return Generation(tokens, np.zeros(n, np.float32), np.zeros(n, np.int32), None, "stop")

    def playing(self, more):
      raise AssertionError("one sub-agent takes the orchestrator's place")

  task = swarm_task()
  env, player = made.make_episode(task, 1, Both())
  trajectory = asyncio.run(run_episode(env, chat, player, task=task, sampling=Sampling()))
  assert asked == ["", "frozen", ""]
  assert HEADER in trajectory.children[0].log[0].content


def test_messages_of_assignments_are_lost_at_their_rate_and_exactly_as_the_seed_says(arena):
  of = lambda assignment: [turn(search("number10")), Message("assistant", "found")]
  turns = lambda: [turn(create(), *(assign(f"p{i}") for i in range(8))), answer(ROW)]
  task = swarm_task(max_steps=6)

  def statuses(rate, task_id="t"):
    found = play(arena(sub_failure_rate=rate), turns(), of, dataclasses.replace(task, id=task_id))
    assert found.rewards["critical_steps"] == (1 + 2) + 1 and found.rewards["faults"] == 0
    return [child.stop for child in found.children]

  assert statuses(0.0) == ["finished"] * 8 and statuses(1.0) == ["error"] * 8
  assert statuses(0.5) == statuses(0.5) and set(statuses(0.5)) == {"finished", "error"}
  # what is lost at a low rate is lost at a higher one, too
  lost = lambda rate: {i for i, status in enumerate(statuses(rate)) if status == "error"}
  assert lost(0.2) <= lost(0.5) <= lost(0.9)
  every = [s for i in range(30) for s in statuses(0.3, f"t{i}")]
  assert 0.2 < every.count("error") / 240 < 0.4


def test_of_a_lost_message_the_orchestrator_reads_the_status_and_no_word(arena):
  turns = [turn(create(), assign("p0")), answer(ROW)]
  trajectory = play(arena(sub_failure_rate=1.0), turns, SAYS("the secret"))
  assert results(trajectory)[1].startswith("[status: error]")
  assert "secret" not in results(trajectory)[1]
  assert trajectory.rewards["finish_rate"] == 0.0
