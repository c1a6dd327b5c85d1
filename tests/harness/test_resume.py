"""Going on after faults and branching, with a counting game in the place of an environment."""

import asyncio

import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.harness.resume import run_branches, run_resumable
from jaxrl_agents.harness.rollout import EpisodeError, Sampling
from jaxrl_agents.types import Context, Generation, Message, Task

TASK = Task("t", "toy", "count", {})


class Counting:
  """Shows how many replies there were; ends after six. `kept` counts the states not given back."""

  kept = 0

  def __init__(self, messages=(Message("user", "count"),), fails_at=99, slow_s=0.0):
    self.messages, self.fails_at, self.slow_s = list(messages), fails_at, slow_s
    self.closed = False

  def _context(self):
    number = sum(m.role == "assistant" for m in self.messages)
    return Context(tuple(self.messages), max_new_tokens=8, done=number == 6, stop="answer")

  async def start(self):
    return self._context()

  async def step(self, reply):
    await asyncio.sleep(self.slow_s)
    number = sum(m.role == "assistant" for m in self.messages)
    if number == self.fails_at:
      raise OSError(f"broke at {number}")
    self.messages += [reply, Message("tool", f"{number + 1}", tool_call_id=f"r{number}")]
    return self._context()

  def rewards(self, trajectory):
    return {"turns": trajectory.metrics["turns"]}

  async def close(self):
    self.closed = True

  async def snapshot(self):
    Counting.kept += 1
    return tuple(self.messages)

  def forget(self, state):
    Counting.kept -= 1


class Sampler:
  """Draws one token from the seed it is given, and counts how often it was asked."""

  def __init__(self):
    self.asked = 0

  async def generate(self, prompt, limits):
    self.asked += 1
    tokens = np.asarray([40 + limits.seed % 40, limits.stop_tokens[0]], np.int32)
    return Generation(tokens, np.full(2, -1, np.float32), np.zeros(2, np.int32), None, "stop")


def resumed(fails, sampler, *, sampling=None, **options):
  envs = [Counting(fails_at=fails[0])]

  def restore(task, state, player):
    envs.append(Counting(state, fails_at=fails[min(len(envs), len(fails) - 1)]))
    return envs[-1], player

  trajectory = asyncio.run(
    run_resumable(
      lambda task, seed, player: (envs[0], player),
      restore,
      TASK,
      chat=chat_lib.load(),
      sampler=sampler,
      sampling=sampling or Sampling(seed=1),
      **options,
    )
  )
  return trajectory, envs


def test_after_faults_the_episode_is_what_it_had_been_without_them():
  Counting.kept = 0
  calm, _ = resumed([99], Sampler(), turns_between=2)
  sampler = Sampler()
  faulty, envs = resumed([3, 5, 99], sampler, turns_between=2)
  assert len(envs) == 3
  assert all(env.closed for env in envs)
  assert [m.content for m in faulty.log] == [m.content for m in calm.log]
  np.testing.assert_array_equal(faulty.segments[0].tokens, calm.segments[0].tokens)
  assert faulty.rewards == calm.rewards == {"turns": 6.0}
  # Turns 0-1 once; 2-3, of which 3 broke, again; 4-5, of which 5 broke, again.
  assert sampler.asked == 2 + 2 + 2 + 2 + 2
  assert Counting.kept == 0


def test_too_many_faults_and_one_before_the_first_snapshot_are_raised():
  Counting.kept = 0
  with pytest.raises(OSError, match="broke at 0"):
    resumed([0], Sampler())
  with pytest.raises(OSError, match="broke at 3"):
    resumed([3], Sampler(), turns_between=2, max_faults=2)
  assert Counting.kept == 0


def test_the_deadline_holds_for_the_whole_episode():
  sampling = Sampling(episode_deadline_s=0.2)
  env = Counting(slow_s=0.15)
  with pytest.raises(EpisodeError, match="not done after"):
    asyncio.run(
      run_resumable(
        lambda task, seed, player: (env, player),
        lambda task, state, player: (Counting(state, slow_s=0.15), player),
        TASK,
        chat=chat_lib.load(),
        sampler=Sampler(),
        sampling=sampling,
        turns_between=1,
      )
    )
  assert env.closed


def branched(shared_turns, fails_at=99):
  return asyncio.run(
    run_branches(
      lambda task, seed, player: (Counting(fails_at=fails_at), player),
      lambda task, state, player: (Counting(state), player),
      TASK,
      3,
      shared_turns=shared_turns,
      chat=chat_lib.load(),
      sampler=Sampler(),
      sampling=Sampling(seed=2),
    )
  )


def test_branches_share_their_first_turns_and_differ_after_them():
  Counting.kept = 0
  group = branched(shared_turns=4)
  tokens = [t.segments[0].tokens for t in group.trajectories]
  assert len({len(each) for each in tokens}) == 1
  trained = [int(t.segments[0].loss_mask.sum()) for t in group.trajectories]
  assert trained == [12, 4, 4]  # two tokens a turn: six turns, two turns
  first = np.flatnonzero(group.trajectories[1].segments[0].loss_mask)[0]
  np.testing.assert_array_equal(tokens[0][:first], tokens[1][:first])
  assert not np.array_equal(tokens[0], tokens[1])
  assert not np.array_equal(tokens[1], tokens[2])
  assert Counting.kept == 0


def test_an_episode_that_ends_within_the_shared_turns_is_alone_in_its_group():
  group = branched(shared_turns=9)
  assert [t.stop for t in group.trajectories] == ["answer"]


def test_a_fault_within_the_shared_turns_fails_every_rollout():
  group = branched(shared_turns=4, fails_at=1)
  assert [t.error for t in group.trajectories] == ["OSError: broke at 1"] * 3
