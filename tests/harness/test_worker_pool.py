"""Spawned workers: groups come back, deaths are events, no process outlives pool or parent."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from jaxrl_agents import chat
from jaxrl_agents.harness import schema
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_pool import WorkerPool, WorkerPoolError
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.types import Generation, Task

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
SPEC = WorkerSpec("tests.harness.toy_services:build")


def job(name, prompt="count", turns=2, rollouts=2):
  task = Task(name, "count", prompt, {"turns": turns})
  return Job(name, task, rollouts, Sampling(seed=3, generate_deadline_s=20.0))


def reply():
  tokens = chat.load().stop_tokens
  return Generation(
    np.asarray(tokens, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), None, "stop"
  )


def serve(pool, *, until, limit_s=30.0):
  """Answers every request; returns groups by id and the other messages, once `until` holds."""
  groups, events, seeds = {}, [], []
  deadline = time.monotonic() + limit_s
  while not until(groups, events):
    assert time.monotonic() < deadline, (list(groups), events)
    for number, message in pool.poll(timeout_s=0.5):
      if message[0] == "generate":
        seeds.append(message[3].seed)
        pool.send(number, ("generation", message[1], reply()))
      elif message[0] == "group":
        groups[message[1].id] = message[1]
      else:
        events.append((number, message))
  return groups, events, seeds


def is_alive(pid):
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False
  return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_dead(pids, limit_s=10.0):
  deadline = time.monotonic() + limit_s
  while any(is_alive(pid) for pid in pids):
    assert time.monotonic() < deadline, f"still alive: {[p for p in pids if is_alive(p)]}"
    time.sleep(0.05)


def test_several_groups_run_at_once_without_jax_and_no_process_is_left():
  with WorkerPool(SPEC, 2, groups_per_worker=3) as pool:
    for i in range(7):
      pool.submit(job(f"g{i}"))
    assert pool.unfinished == 7
    groups, events, seeds = serve(pool, until=lambda groups, _: len(groups) == 7)
    assert pool.unfinished == 0
    pids = list(pool.pids.values())
  assert events == []
  assert len(set(seeds)) == 7 * 2 * 2  # each turn of each rollout of each task has its own
  for group in groups.values():
    assert [t.rewards for t in group.trajectories] == [{"turns": 2.0, "jax": 0.0}] * 2
    assert [t.stop for t in group.trajectories] == ["answer"] * 2
  wait_until_dead(pids, limit_s=1.0)


@pytest.mark.parametrize(
  ("prompt", "error"),
  [
    ("raise", "RuntimeError: the environment broke"),
    ("text", "rewards['turns']: a number is needed, not '2.0'"),
  ],
)
def test_what_an_environment_does_wrong_is_data_and_leaves_its_worker_alone(prompt, error):
  with WorkerPool(SPEC, 1) as pool:
    pool.submit(job("bad", prompt=prompt))
    pool.submit(job("good"))
    groups, events, _ = serve(pool, until=lambda groups, _: len(groups) == 2)
  assert events == []
  for trajectory in groups["bad"].trajectories:
    assert error in trajectory.error
    assert trajectory.rewards == {}  # and not a reward of zero
    assert trajectory.segments == ()
  assert all(t.error == "" for t in groups["good"].trajectories)


def test_a_refused_generation_fails_its_rollout_with_the_samplers_words():
  with WorkerPool(SPEC, 1) as pool:
    pool.submit(job("g", rollouts=1))
    deadline = time.monotonic() + 20
    group = None
    while group is None and time.monotonic() < deadline:
      for number, message in pool.poll(timeout_s=0.5):
        if message[0] == "generate":
          pool.send(number, ("refused", message[1], "the prompt of 9,999 tokens is too long"))
        elif message[0] == "group":
          group = message[1]
  expected = "SamplerRefused: the sampler refused: the prompt of 9,999 tokens is too long"
  assert group.trajectories[0].error == expected


def test_a_killed_worker_is_an_event_that_returns_its_groups_and_another_takes_over():
  lethal = job("lethal", prompt="kill")
  with WorkerPool(SPEC, 1) as pool:
    pool.submit(lethal)
    _, events, _ = serve(pool, until=lambda _, events: events)
    ((number, (kind, text, jobs)),) = events
    assert (number, kind) == (0, "died")
    assert "SIGKILL" in text
    assert [lost.group_id for lost in jobs] == ["lethal"]
    assert pool.unfinished == 0
    assert not pool.send(0, ("generation", 0, reply()))
    pool.submit(job("after"))
    groups, _, _ = serve(pool, until=lambda groups, _: "after" in groups)
    assert list(pool.pids) == [1]
  assert groups["after"].trajectories[0].error == ""


def test_a_worker_that_sends_a_pickle_is_ended_and_its_message_is_not_read():
  with WorkerPool(SPEC, 1) as pool:
    pool.submit(job("forged", prompt="forge"))
    _, events, _ = serve(pool, until=lambda _, events: events)
    ((_, (kind, text, jobs)),) = events
    assert (kind, [lost.group_id for lost in jobs]) == ("died", ["forged"])
    assert "It sent an invalid message: " in text
    pool.submit(job("after"))
    groups, _, _ = serve(pool, until=lambda groups, _: "after" in groups)
  assert groups["after"].trajectories[0].error == ""


def test_a_worker_that_sends_half_a_message_does_not_hold_the_pool():
  with WorkerPool(SPEC, 1, stall_s=1.0) as pool:
    pool.submit(job("half", prompt="half", turns=5))
    began = time.monotonic()
    _, events, _ = serve(pool, until=lambda _, events: events)
    ((_, (kind, text, jobs)),) = events
    assert (kind, [lost.group_id for lost in jobs]) == ("died", ["half"])
    assert "SIGKILL. It sent half of a message, and for 1 s no more." in text
    assert time.monotonic() - began < 15


def test_a_group_that_no_message_holds_fails_by_name_and_leaves_its_worker_alone(monkeypatch):
  monkeypatch.setattr(schema, "MAX_BYTES", 4_000)
  spec = WorkerSpec("tests.harness.toy_services:build_with_short_messages")
  with WorkerPool(spec, 1) as pool:
    pool.submit(job("long", turns=60))
    pool.submit(job("short"))
    groups, events, _ = serve(pool, until=lambda groups, _: len(groups) == 2)
  assert events == []
  for trajectory in groups["long"].trajectories:
    assert "MessageError: a 'group' message of " in trajectory.error
    assert "at most 4000; have fewer rollouts in a group" in trajectory.error
  assert all(t.error == "" for t in groups["short"].trajectories)


def test_a_worker_whose_loop_stands_still_is_killed_and_named():
  with WorkerPool(SPEC, 1, stall_s=1.0) as pool:
    pool.submit(job("stuck", prompt="hang"))
    _, events, _ = serve(pool, until=lambda _, events: events)
  assert "SIGALRM, its event loop stood still for 1 s" in events[0][1][1]


def test_too_many_deaths_end_the_pool_with_a_named_error():
  with WorkerPool(SPEC, 1, max_deaths=0) as pool:
    pool.submit(job("lethal", prompt="kill"))
    with pytest.raises(WorkerPoolError, match="Too many workers have died"):
      serve(pool, until=lambda _, events: events)


def test_a_worker_that_is_killed_while_it_starts_is_replaced():
  with WorkerPool(SPEC, 1) as pool:
    (first,) = pool.pids.values()
    os.kill(first, signal.SIGKILL)
    pool.submit(job("g"))
    groups, events, _ = serve(pool, until=lambda groups, _: groups)
  assert len(groups["g"].trajectories) == 2
  assert [(message[0], message[2]) for _, message in events] == [("died", ())]


def test_services_that_cannot_be_built_end_the_pool_with_their_error():
  with (
    WorkerPool(WorkerSpec("tests.harness.toy_services:build_nothing"), 1) as pool,
    pytest.raises(WorkerPoolError, match="(?s)no corpus here.*never became ready"),
  ):
    serve(pool, until=lambda *_: False)


def test_closing_does_not_wait_for_a_worker_that_hangs():
  pool = WorkerPool(SPEC, 1)
  pool.submit(job("stuck", prompt="hang"))
  deadline = time.monotonic() + 20
  asked = False
  while not asked and time.monotonic() < deadline:
    for number, message in pool.poll(timeout_s=0.5):
      asked = pool.send(number, ("generation", message[1], reply()))
  time.sleep(0.2)
  pids, began = list(pool.pids.values()), time.monotonic()
  pool.close(timeout_s=0.5)
  assert time.monotonic() - began < 5
  wait_until_dead(pids, limit_s=1.0)


def test_a_group_id_may_not_be_submitted_twice():
  with WorkerPool(SPEC, 1) as pool:
    pool.submit(job("g"))
    with pytest.raises(ValueError, match="an id that no unfinished group has"):
      pool.submit(job("g"))


def test_workers_end_when_their_parent_is_killed():
  program = f"""
    import sys, time
    sys.path.insert(0, {str(ROOT)!r})
    from jaxrl_agents.harness.worker_process import Job, WorkerSpec
    from jaxrl_agents.harness.rollout import Sampling
    from jaxrl_agents.harness.worker_pool import WorkerPool
    from jaxrl_agents.types import Task
    pool = WorkerPool(WorkerSpec("tests.harness.toy_services:build"), 2, groups_per_worker=1)
    for i in range(2):
      pool.submit(Job(str(i), Task(str(i), "count", "count", {{"turns": 2}}), 2, Sampling()))
    waiting, deadline = set(), time.monotonic() + 30
    while len(waiting) < 2 and time.monotonic() < deadline:
      waiting |= {{number for number, message in pool.poll(1.0) if message[0] == "generate"}}
    print(*pool.pids.values(), flush=True)
    time.sleep(60)
  """
  parent = subprocess.Popen(
    [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
  )
  try:
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
  finally:
    parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=10)
    parent.stdout.close()
  wait_until_dead(pids)
