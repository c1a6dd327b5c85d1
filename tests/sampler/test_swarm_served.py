"""A swarm played by real workers, its two policies by two engines behind one server."""

import dataclasses
import os
import re
import signal

import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.sampler.server import RolloutServer
from jaxrl_agents.types import Generation, Message
from tests.agents.search.arena import corpus
from tests.agents.swarm.arena import (
  HEADER,
  assign,
  create,
  search,
  swarm_services,
  swarm_task,
  turn,
)

CHAT = chat_lib.load()


class Speaker:
  """An engine whose weights are a function of the text of the prompt."""

  def __init__(self, say, version):
    self.say, self.version = say, version
    self.waiting, self.batches, self.submitted = {}, [], 0
    self.before_step = lambda: None

  @property
  def num_unfinished(self):
    return len(self.waiting)

  def submit(self, prompt, limits):
    self.submitted += 1
    self.waiting[self.submitted] = prompt
    return self.submitted

  def step(self):
    self.before_step()
    self.batches.append(len(self.waiting))
    done = [(i, self._reply(prompt)) for i, prompt in self.waiting.items()]
    self.waiting.clear()
    return done

  def cancel(self, request_id):
    self.waiting.pop(request_id, None)

  def describe(self):
    return f"version {self.version}"

  def _reply(self, prompt):
    tokens = CHAT.encode_reply(self.say(CHAT.decode(prompt)))
    n = len(tokens)
    versions = np.full(n, self.version, np.int32)
    return Generation(tokens, np.full(n, -0.5, np.float32), versions, None, "stop")


def orchestrate(text):
  if "<|tool|>" not in text:
    return turn(create(), *map(assign, re.findall(r"\d\. (number\d+)\.", text)))
  return Message("assistant", "\n".join([HEADER, *re.findall(r"<\|tool\|>(\| n.*?)[\n<]", text)]))


def look_up(text):
  name = re.findall(r"<\|user\|>(number\d+)<", text)[0]
  if "# DOCUMENT ID" not in text:
    return turn(search(name))
  found = re.search(rf"ID: (\S+) \(\d+ tokens\) \n[^#]*near the (\w+), part 0 of \w+ {name}", text)
  return Message("assistant", f"| {name} | {found[2]} | {found[1]} |")


@pytest.fixture(scope="module")
def pool(services_of_workers):
  spec = WorkerSpec("jaxrl_agents.agents.agent:worker_services", services_of_workers)
  with WorkerPool(spec, 2, groups_per_worker=4) as pool:
    yield pool


@pytest.fixture(scope="module")
def services_of_workers(tmp_path_factory):
  from jaxrl_agents.agents.search.tools import SearchServices
  from tests.agents.search.arena import LIMITS

  built = hybrid.build(corpus(), tmp_path_factory.mktemp("index"), rank=8)
  arena = swarm_services(SearchServices(CHAT, built, LIMITS))
  limits = dataclasses.replace(arena.limits, search=arena.search.limits)
  return ("swarm", "base", limits, str(built.folder), "")


def test_another_engine_stands_in_for_a_frozen_policy_from_one_collection_to_the_next(pool):
  trained, small, large = Speaker(orchestrate, 3), Speaker(look_up, 0), Speaker(look_up, 1)
  server = RolloutServer(trained, pool, max_rollouts=8, others={"f 0": small, "f 1": large})
  heard = []
  for name in ("f 0", "f 1"):
    server.stand_in("frozen", name)
    (group,) = server.collect([Job(name, swarm_task(), 1, Sampling())])
    (trajectory,) = group.trajectories
    assert trajectory.rewards["success"] == 1.0
    heard.append({v for c in trajectory.children for v in c.segments[0].versions if v >= 0})
  assert heard == [{0}, {1}] and small.submitted == large.submitted == 16
  with pytest.raises(ValueError, match="no engine 'f 2' is served here"):
    server.stand_in("frozen", "f 2")


def collect(pool, trained, frozen, rollouts=2, **options):
  server = RolloutServer(trained, pool, max_rollouts=8, others={"frozen": frozen}, **options)
  jobs = [Job(f"g{i}", swarm_task(task_id=f"t{i}"), rollouts, Sampling()) for i in range(3)]
  return sorted(server.collect(jobs), key=lambda group: group.task.id)


def check(groups, rollouts=2):
  assert [group.task.id for group in groups] == ["t0", "t1", "t2"]
  for trajectory in (t for group in groups for t in group.trajectories):
    assert not trajectory.error
    assert trajectory.rewards["success"] == 1.0 and trajectory.rewards["critical_steps"] == 4
    assert trajectory.rewards["finished"] == 8.0
    (segment,) = trajectory.segments
    assert set(segment.versions[segment.loss_mask]) == {3}
    for child in trajectory.children:
      assert set(child.segments[0].versions[child.segments[0].loss_mask]) == {1}


def test_a_swarm_is_right_and_its_sub_agents_share_the_batches_of_their_engine(pool):
  trained, frozen = Speaker(orchestrate, 3), Speaker(look_up, 1)
  check(collect(pool, trained, frozen))
  assert trained.submitted == 3 * 2 * 2 and frozen.submitted == 3 * 2 * 8 * 2
  assert max(frozen.batches) >= 8


def test_a_deterministic_run_fills_every_batch_with_all_that_wait(pool):
  batches = []
  for _ in range(2):
    trained, frozen = Speaker(orchestrate, 3), Speaker(look_up, 1)
    check(collect(pool, trained, frozen, deterministic=True))
    assert trained.batches == [6, 6] and frozen.batches == [48, 48]
    batches.append((trained.batches, frozen.batches))
  assert batches[0] == batches[1]


def test_a_worker_killed_while_sub_agents_run_has_its_episodes_played_again(pool):
  trained, frozen = Speaker(orchestrate, 3), Speaker(look_up, 1)
  victims = list(pool.pids.values())[:1]

  def kill():
    if victims:
      os.kill(victims.pop(), signal.SIGKILL)

  frozen.before_step = kill
  check(collect(pool, trained, frozen, deterministic=True))
  assert not victims and trained.submitted > 3 * 2 * 2


def test_without_its_frozen_policy_nothing_is_scored(pool):
  server = RolloutServer(Speaker(orchestrate, 3), pool, max_rollouts=8)
  (group,) = server.collect([Job("g", swarm_task(), 1, Sampling())])
  assert "no policy 'frozen' is served" in group.trajectories[0].error
  assert not group.trajectories[0].rewards
