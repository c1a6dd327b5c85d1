"""One episode, one group: what is asked of the sampler, what is recorded, what fails how."""

import asyncio
import dataclasses

import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.harness import rollout
from jaxrl_agents.harness.rollout import (
  EpisodeError,
  Record,
  SamplerRefused,
  Sampling,
  run_episode,
  run_group,
  turn_seed,
)
from jaxrl_agents.harness.worker_process import RemoteSampler
from jaxrl_agents.types import Context, Generation, Message, SamplingLimits, Task

TASK = Task("t7", "toy", "say something", {})


def test_where_one_of_several_players_fails_the_others_are_ended():
  ended, told = [], []

  async def player(seconds, error=None):
    try:
      await asyncio.sleep(seconds)
      if error:
        raise error
    finally:
      ended.append(seconds)

  async def run():
    await rollout.at_once(told.append, [player(60), player(0.01, ValueError("lost")), player(60)])

  with pytest.raises(ValueError, match="lost"):
    asyncio.run(run())
  assert sorted(ended) == [0.01, 60, 60] and sum(told) == 0


class ToyEnv:
  """Shows a prompt, then an edited tool result and a notice, then ends."""

  def __init__(self, *, turns=2, room=16, delay_s=0.0):
    self.turns, self.room, self.delay_s = turns, room, delay_s
    self.messages = [Message("user", "say something")]
    self.closed = False

  async def start(self):
    return Context(tuple(self.messages), max_new_tokens=self.room)

  async def step(self, reply):
    await asyncio.sleep(self.delay_s)
    self.turns -= 1
    number = len(self.messages)
    edited = [
      dataclasses.replace(m, content="cut") if m.role == "tool" else m for m in self.messages
    ]
    self.messages = [*edited, reply, Message("tool", f"result {number}", tool_call_id=str(number))]
    notice = Message("user", "hurry", ephemeral=True)
    return Context(
      (*self.messages, notice),
      max_new_tokens=self.room,
      done=self.turns == 0,
      stop="answer" if self.turns == 0 else "",
    )

  def rewards(self, trajectory):
    return {"messages": float(len(trajectory.log))}

  async def close(self):
    self.closed = True


class ToySampler:
  """Answers with `reply`; remembers what it was asked."""

  def __init__(self, **changes):
    stop = chat_lib.load().stop_tokens[0]
    self.fields = {
      "tokens": np.asarray([40, 41, stop], np.int32),
      "logprobs": np.full(3, -1.0, np.float32),
      "versions": np.full(3, 2, np.int32),
      "routing": None,
      "stop": "stop",
    } | changes
    self.asked = []

  async def generate(self, prompt, limits):
    self.asked.append((prompt, limits))
    return Generation(**self.fields)


def run(env, sampler, sampling=None, **options):
  return asyncio.run(
    run_episode(
      env, chat_lib.load(), sampler, task=TASK, sampling=sampling or Sampling(seed=5), **options
    )
  )


def test_an_episode_is_recorded_as_sampled_and_closed():
  env, sampler = ToyEnv(), ToySampler()
  trajectory = run(env, sampler, rollout=3)
  assert env.closed
  assert (trajectory.task_id, trajectory.stop) == ("t7", "answer")
  assert trajectory.rewards == {"messages": 7.0}
  assert trajectory.metrics["turns"] == 2
  assert trajectory.metrics["sampled_tokens"] == 6
  replies = [m for m in trajectory.log if m.role == "assistant"]
  assert [r.tokens.tolist() for r in replies] == [sampler.fields["tokens"].tolist()] * 2


def test_the_log_has_every_message_once_as_first_shown_and_notices_each_time():
  trajectory = run(ToyEnv(), ToySampler())
  shown = [m.content for m in trajectory.log if m.role != "assistant"]
  assert shown == ["say something", "result 1", "hurry", "result 3", "hurry"]


def test_seeds_depend_on_run_task_rollout_and_turn():
  sampler = ToySampler()
  run(ToyEnv(turns=3), sampler, rollout=1)
  assert [limits.seed for _, limits in sampler.asked] == [
    turn_seed(5, "t7", 1, i) for i in range(3)
  ]
  seeds = {turn_seed(s, t, r, n) for s in (0, 1) for t in "ab" for r in (0, 1) for n in (0, 1)}
  assert len(seeds) == 16
  assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_reply_may_be_as_long_as_both_sampling_and_environment_allow():
  for room, allowed in ((16, 10), (4, 4)):
    sampler = ToySampler()
    run(ToyEnv(room=room), sampler, Sampling(max_new_tokens=10, temperature=0.5, top_p=0.9))
    limits = sampler.asked[0][1]
    assert limits.max_new_tokens == allowed
    assert (limits.temperature, limits.top_p) == (0.5, 0.9)
    assert limits.stop_tokens == chat_lib.load().stop_tokens


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"tokens": np.zeros(0, np.int32)}, "returned 0 tokens"),
    ({"tokens": np.zeros(17, np.int32)}, "returned 17 tokens; 1 to 16 were asked for"),
    ({"logprobs": np.zeros(2, np.float32)}, "3 tokens but 2 logprobs and 3 versions"),
    ({"routing": np.zeros((4, 1, 1), np.uint16)}, "returned 4 routing rows for"),
  ],
)
def test_a_sampler_that_breaks_its_contract_is_named(changes, message):
  env = ToyEnv()
  with pytest.raises(EpisodeError, match=message):
    run(env, ToySampler(**changes))
  assert env.closed


class SlowSampler(ToySampler):
  async def generate(self, prompt, limits):
    await asyncio.sleep(30)


def test_deadlines_of_generation_and_episode_are_named_errors():
  with pytest.raises(EpisodeError, match="no generation within 0.05 s for a prompt of"):
    run(ToyEnv(), SlowSampler(), Sampling(generate_deadline_s=0.05))
  record = Record()
  with pytest.raises(EpisodeError, match="task t7 rollout 0: not done after"):
    run(ToyEnv(delay_s=30), ToySampler(), Sampling(episode_deadline_s=0.1), record=record)
  assert len(record.turns) == 1


def test_a_timeout_within_an_environment_is_not_taken_for_the_episodes_deadline():
  class Upstream(ToyEnv):
    async def step(self, reply):
      raise TimeoutError("the search service did not answer in 5 s")

  with pytest.raises(TimeoutError, match="the search service did not answer in 5 s"):
    run(Upstream(), ToySampler())


def test_an_environment_that_is_never_closed_ends_its_episode_with_a_named_error(monkeypatch):
  class Open(ToyEnv):
    async def close(self):
      await asyncio.sleep(600)

  monkeypatch.setattr(rollout, "CLOSE_S", 0.05)
  with pytest.raises(EpisodeError, match="t7 rollout 0: its environment was not closed within"):
    run(Open(), ToySampler())


def test_a_failed_rollout_is_data_and_leaves_its_siblings_alone():
  made = []

  def make_episode(task, seed, sampler):
    made.append(seed)
    if len(made) == 2:
      raise OSError("no room on the disk")
    return ToyEnv(), (SlowSampler() if len(made) == 3 else sampler)

  sampling = Sampling(generate_deadline_s=0.05)
  group = asyncio.run(
    run_group(
      make_episode,
      TASK,
      4,
      chat=chat_lib.load(),
      sampler=ToySampler(),
      sampling=sampling,
      group_id="g",
    )
  )
  first, second, third, fourth = group.trajectories
  assert group.id == "g"
  assert len(set(made)) == 4
  assert first.rewards == fourth.rewards == {"messages": 7.0}
  assert second.error == "OSError: no room on the disk"
  assert third.error.startswith("EpisodeError: no generation within")
  assert [m.content for m in third.log] == ["say something"]
  for lost in (second, third):
    assert (lost.rewards, lost.segments, lost.stop) == ({}, (), "")


def test_an_episode_that_waits_for_what_is_cancelled_fails_alone_and_its_group_ends():
  class Waiting(ToyEnv):
    async def step(self, reply):
      inner = asyncio.ensure_future(asyncio.sleep(60.0))
      inner.cancel()
      await inner

  made = []

  def make_episode(task, seed, sampler):
    made.append(seed)
    return (Waiting() if len(made) == 1 else ToyEnv()), sampler

  shared = chat_lib.load()
  group = asyncio.run(
    run_group(make_episode, TASK, 2, chat=shared, sampler=ToySampler(), sampling=Sampling())
  )
  lost, played = group.trajectories
  assert "task t7 rollout 0: something that it waited for was cancelled" in lost.error
  assert played.error == "" and played.rewards


def test_a_group_that_is_cancelled_as_a_whole_raises():
  async def run():
    env = ToyEnv(delay_s=60.0)
    played = asyncio.ensure_future(
      run_group(
        lambda task, seed, sampler: (env, sampler),
        TASK,
        1,
        chat=chat_lib.load(),
        sampler=ToySampler(),
        sampling=Sampling(),
      )
    )
    await asyncio.sleep(0.05)
    played.cancel()
    with pytest.raises(asyncio.CancelledError):
      await played
    assert env.closed

  asyncio.run(run())


def test_the_main_process_is_told_of_a_request_that_is_not_waited_for_any_more():
  said = []

  async def run():
    sampler = RemoteSampler(said.append)
    ask = lambda: sampler.generate(np.zeros(2, np.int32), SamplingLimits(4, ()), "g")
    asked = asyncio.ensure_future(ask())
    with pytest.raises(TimeoutError):
      await asyncio.wait_for(ask(), 0.01)
    assert not asked.done()
    sampler.refuse(0, "no")
    with pytest.raises(SamplerRefused):
      await asked

  asyncio.run(run())
  assert [message[:2] for message in said] == [("generate", 0), ("generate", 1), ("cancel", 1)]
