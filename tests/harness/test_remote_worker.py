"""Workers of another machine: they join, die and vanish as local ones do, and outlive a run."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.harness import messages
from jaxrl_agents.harness.worker_pool import WorkerPool, WorkerPoolError
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.wire.listener import Listener, code, connect
from tests.harness.test_worker_pool import SPEC, job, serve

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
SECRET = "a secret of the tests"


def opened(port=0):
  return Listener(f"127.0.0.1:{port}", SECRET.encode(), {"worker": code()})


def workers(listener, processes, *, key=SECRET, patience_s=20.0, **environment):
  """scripts/worker.py, as on another machine."""
  return subprocess.Popen(
    [
      sys.executable,
      "scripts/worker.py",
      f"--connect={listener.address}",
      f"--processes={processes}",
      f"--patience_s={patience_s}",
    ],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_KEY": key, **environment},
    stderr=subprocess.PIPE,
    text=True,
  )


def children(process):
  found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True)
  return [int(pid) for pid in found.stdout.split()]


def ended(process, limit_s=20.0):
  _, text = process.communicate(timeout=limit_s)
  return process.returncode, text


def test_workers_that_join_play_beside_local_ones_without_jax_and_outlive_the_run():
  with opened() as listener:
    fleet = workers(listener, 2, patience_s=2.0)
    with WorkerPool(SPEC, 1, groups_per_worker=1, listener=listener) as pool:
      while "(3 ready, 2 of them joined" not in pool.describe():
        pool.poll(timeout_s=0.2)
      for i in range(6):
        pool.submit(job(f"g{i}"))
      groups, events, _ = serve(pool, until=lambda groups, _: len(groups) == 6)
    assert events == []
    for group in groups.values():
      assert [t.rewards for t in group.trajectories] == [{"turns": 2.0, "jax": 0.0}] * 2
    with WorkerPool(SPEC, 0, listener=listener) as pool:  # the next run, on the same machines
      pool.wait_until_ready()
      pool.submit(job("again"))
      groups, _, _ = serve(pool, until=lambda groups, _: groups)
    assert groups["again"].trajectories[0].error == ""
  assert ended(fleet)[0] == 0  # no run for two seconds


def test_the_groups_of_a_killed_worker_are_handed_back_and_another_joins():
  with opened() as listener, WorkerPool(SPEC, 0, listener=listener) as pool:
    fleet = workers(listener, 1)
    try:
      pool.wait_until_ready()
      pool.submit(job("lethal", prompt="kill"))
      _, events, _ = serve(pool, until=lambda _, events: events)
      ((_, (kind, text, jobs)),) = events
      assert (kind, [lost.group_id for lost in jobs]) == ("died", ["lethal"])
      assert "at 127.0.0.1:" in text and "its connection ended" in text
      pool.submit(job("after"))
      groups, _, _ = serve(pool, until=lambda groups, _: groups)
      assert groups["after"].trajectories[0].error == ""
      (child,) = children(fleet)
    finally:
      fleet.send_signal(signal.SIGKILL)
      fleet.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while pathlib.Path(f"/proc/{child}").exists():  # no worker outlives who started it
      assert time.monotonic() < deadline
      time.sleep(0.05)


def test_a_worker_without_heartbeats_counts_as_dead():
  with opened() as listener, WorkerPool(SPEC, 0, listener=listener, silence_s=0.5) as pool:
    vanished = connect(listener.address, SECRET.encode(), role="worker", runs=code(), patience_s=5)
    began = time.monotonic()
    assert vanished.send_bytes(messages.encode(("ready",))) is None
    pool.wait_until_ready()
    pool.submit(job("lost"))
    _, events, _ = serve(pool, until=lambda _, events: events)
    assert 0.5 <= time.monotonic() - began < 5
    assert events[0][1][1].endswith("s of silence.")
    assert [lost.group_id for lost in events[0][1][2]] == ["lost"]
    vanished.close()


def test_a_living_worker_whose_messages_were_read_late_is_not_dead():
  """While the learner learns nobody polls: what has come meanwhile is read before it is judged."""
  with opened() as listener, WorkerPool(SPEC, 0, listener=listener, silence_s=0.5) as pool:
    living = connect(listener.address, SECRET.encode(), role="worker", runs=code(), patience_s=5)
    living.send_bytes(messages.encode(("ready",)))
    pool.wait_until_ready()
    time.sleep(1.0)
    living.send_bytes(messages.encode(("alive",)))
    assert pool.poll(timeout_s=0.1) == []
    assert "1 ready" in pool.describe()
    living.close()


def test_another_key_ends_the_workers_with_a_line():
  with opened() as listener:
    status, text = ended(workers(listener, 1, key="a secret of others"))
  assert status == 2
  assert "has another key; set JAXRL_KEY" in text and "Traceback" not in text


def test_a_worker_without_the_corpus_says_where_it_looked(tmp_path):
  arguments = ("search", "base", SearchConfig(), "/nowhere/0123abcd", "")
  spec = WorkerSpec("jaxrl_agents.agents.agent:worker_services", arguments)
  with opened() as listener, WorkerPool(spec, 0, listener=listener, start_deadline_s=30) as pool:
    fleet = workers(listener, 1, JAXRL_CACHE=str(tmp_path))
    threading.Thread(target=lambda: fleet.wait(30)).start()
    while fleet.poll() is None:
      pool.poll(timeout_s=0.1)
  status, text = ended(fleet)
  assert status == 2
  assert f"neither as /nowhere/0123abcd nor as {tmp_path}/0123abcd" in text


def test_a_run_without_workers_ends_and_names_the_missing_command():
  with opened() as listener, WorkerPool(SPEC, 0, listener=listener, start_deadline_s=0.3) as pool:
    with pytest.raises(WorkerPoolError, match=f"start some with --connect={listener.address}"):
      pool.wait_until_ready()


def test_jobs_wait_for_a_worker_to_join():
  with opened() as listener, WorkerPool(SPEC, 0, listener=listener) as pool:
    pool.submit(Job("g", job("g").task, 1, job("g").sampling))
    assert pool.unfinished == 1
    assert pool.poll(timeout_s=0.01) == []
