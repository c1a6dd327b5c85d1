"""Rollout workers on the nodes of a Ray cluster: results, losses of workers and of nodes."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxrl_agents.fleet import cluster as cluster_lib
from jaxrl_agents.fleet.node_pool import NodePool
from jaxrl_agents.harness.worker_pool import WorkerPool, WorkerPoolError
from jaxrl_agents.harness.worker_process import WorkerSpec
from tests.fleet.conftest import another_node, needs_ray, whole_run
from tests.harness.test_worker_pool import SPEC, job, reply, serve
from tests.runs.test_several import ended, start, wait_for

pytestmark = [
  pytest.mark.slow,
  pytest.mark.timeout(120),
  needs_ray,
]

RUN = {"learner": {"steps": 3}}


def turns(groups):
  return {name: [t.rewards for t in group.trajectories] for name, group in groups.items()}


def answers(waiting):
  return [(number, ("generation", request, reply())) for number, request in waiting]


def test_groups_come_back_from_a_node_as_from_this_machine(ray):
  with NodePool(ray, SPEC, 1) as pool:
    pool.wait_until_ready()
    for i in range(6):
      pool.submit(job(f"g{i}"))
    groups, events, _ = serve(pool, until=lambda groups, _: len(groups) == 6)
    assert pool.unfinished == 0
  assert events == []
  with WorkerPool(SPEC, 1) as pool:
    for i in range(6):
      pool.submit(job(f"g{i}"))
    here, _, _ = serve(pool, until=lambda groups, _: len(groups) == 6)
  assert turns(groups) == turns(here)
  assert turns(here)["g0"] == [{"turns": 2.0, "jax": 0.0}] * 2


def test_a_worker_that_dies_or_sends_a_pickle_is_an_event_as_on_this_machine(ray):
  with NodePool(ray, SPEC, 1) as pool:
    for prompt, cause in (("kill", "SIGKILL"), ("forge", "It sent an invalid message")):
      pool.submit(job(prompt, prompt=prompt))
      _, events, _ = serve(pool, until=lambda _, events: events)
      ((number, (kind, text, jobs)),) = events
      assert (kind, [lost.group_id for lost in jobs]) == ("died", [prompt])
      assert cause in text
      assert not pool.unfinished
    pool.submit(job("after"))
    groups, _, _ = serve(pool, until=lambda groups, _: "after" in groups)
  assert groups["after"].trajectories[0].error == ""


def test_services_that_no_node_can_build_end_the_pool_with_their_error(ray):
  with (
    NodePool(ray, WorkerSpec("tests.harness.toy_services:build_nothing"), 1) as pool,
    pytest.raises(WorkerPoolError, match="(?s)no corpus here.*never became ready"),
  ):
    serve(pool, until=lambda *_: False)


def test_the_groups_of_a_node_that_is_lost_are_played_by_another(cluster, ray, capfd):
  with another_node(cluster) as doomed, NodePool(ray, SPEC, 2) as pool:
    deadline = time.monotonic() + 60
    while pool.describe().count(": 2 of 2 workers ready") < 2:
      pool.poll(timeout_s=0.2)
      assert time.monotonic() < deadline, pool.describe()
    for i in range(6):
      pool.submit(job(f"g{i}"))
    waiting = {}
    while len(waiting) < 6 * 2:  # every rollout has asked once
      for number, message in pool.poll(timeout_s=0.5):
        waiting[number, message[1]] = message
      assert time.monotonic() < deadline, pool.describe()
    cluster.remove_node(doomed, allow_graceful=False)
    lost = lambda events: any(kind == "moved" for _, (kind, _, _) in events)
    groups, events, _ = serve(pool, until=lambda _, events: lost(events), limit_s=60)
    gone = {number for number, (kind, _, _) in events if kind == "died"}
    (moved,) = [ids for _, (kind, _, ids) in events if kind == "moved" and ids]
    assert len(gone) == 2 and len(moved) == 3
    answered = [pool.send(*each) for each in answers(waiting)]
    assert answered == [number not in gone for number, _ in waiting]
    more, _, _ = serve(pool, until=lambda more, _: len(groups | more) == 6, limit_s=60)
    groups |= more
  assert turns(groups) == {f"g{i}": [{"turns": 2.0, "jax": 0.0}] * 2 for i in range(6)}
  assert not any(jobs for _, (kind, _, jobs) in events if kind == "died")  # no group is blamed
  assert "3 groups go to others (1 nodes are left)" in capfd.readouterr().err


@pytest.fixture(scope="module")
def here(tmp_path_factory):
  """A run of this machine alone."""
  folder = tmp_path_factory.mktemp("here")
  ended(start("small_run.py", folder / "run", folder / "cache", 1, **RUN))
  return folder


def params(folder):
  found = np.load(folder / "params.npz")
  return {name: found[name] for name in found.files}


def started(cluster, here, folder):
  fleet = {"backend": "ray", "address": cluster.address}
  return start("small_run.py", folder, here / "cache", 1, fleet=fleet, **RUN)


@whole_run
def test_a_run_whose_workers_are_on_nodes_has_the_numbers_of_one_on_this_machine(
  cluster, ray, here, tmp_path
):
  ended(started(cluster, here, tmp_path))
  expected, found = params(here / "run"), params(tmp_path)
  for name in expected:
    assert found[name].tobytes() == expected[name].tobytes(), name


@whole_run
def test_a_run_that_loses_a_node_goes_on_to_the_same_numbers(cluster, ray, here, tmp_path):
  """Within 1e-5: what is sampled again is sampled beside others, which changes the rounding."""
  with another_node(cluster) as doomed:
    run = started(cluster, here, tmp_path)
    wait_for(run, "step 0")
    cluster.remove_node(doomed, allow_graceful=False)
    output = ended(run)
  assert "is lost: " in output and "(1 nodes are left)" in output
  expected, found = params(here / "run"), params(tmp_path)
  for name in expected:
    np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)


@whole_run
def test_a_run_plays_ahead_on_nodes(cluster, ray, here, tmp_path):
  fleet = {"backend": "ray", "address": cluster.address, "depth": 1}
  workers = {"deterministic": False}
  ended(start("small_run.py", tmp_path, here / "cache", 1, fleet=fleet, workers=workers, **RUN))
  found = params(tmp_path)
  assert found["version"] == 6 and all(np.isfinite(each).all() for each in found.values())


def test_a_node_with_other_code_is_refused_with_the_remedy(ray, monkeypatch):
  monkeypatch.setattr(cluster_lib, "code", lambda: "another")
  with (
    NodePool(ray, SPEC, 1) as pool,
    pytest.raises(WorkerPoolError, match="than the run .another.; copy the run's checkout"),
  ):
    pool.wait_until_ready()


@whole_run
def test_nobody_joins_a_cluster_without_its_token(cluster):
  code = (
    "from jaxrl_agents.fleet import cluster; import sys; cluster.joined(sys.argv[1]).__enter__()"
  )
  other = {**os.environ, "RAY_AUTH_TOKEN": "a guess at the token"}
  joined = subprocess.run(
    [sys.executable, "-c", code, cluster.address], env=other, capture_output=True, text=True
  )
  assert joined.returncode == 1
  assert "ClusterError: cannot join the Ray cluster" in joined.stderr


def test_workers_of_a_node_do_not_have_the_token(ray):
  spec = WorkerSpec("tests.harness.toy_services:build_where_no_token_is")
  with NodePool(ray, spec, 1) as pool:
    pool.wait_until_ready()
