"""The evaluator of a run on a node of the Ray cluster: its scores, and losses of actor and node."""

import contextlib
import dataclasses
import time

import jax
import psutil
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents import service_log
from jaxrl_agents.config import EvaluatorConfig, FleetConfig
from jaxrl_agents.fleet import cluster as cluster_lib
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import agent_setting, evaluator, evaluator_node, evaluator_service
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.service_log import ServiceLog
from jaxrl_agents.viewer import inputs
from jaxrl_agents.weights import store
from tests.fleet.conftest import another_node, needs_ray

pytestmark = [
  pytest.mark.slow,
  pytest.mark.timeout(400),
  needs_ray,
]

NODE = {"num_cpus": 0, "resources": {evaluator_node.RESOURCE: 1}}


def configured(cluster):
  return dataclasses.replace(
    config_lib.load("scripts/bench/chaos_config.py"),
    fleet=FleetConfig(backend="ray", address=cluster.address),
    evaluator=EvaluatorConfig(every=1, tasks=1, on_node=True, deadline_s=240.0),
  )


def members():
  """The processes of the actors that evaluate, of this process' cluster."""
  found = []
  for process in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.Error):
      if any("EvaluatorNode" in part for part in process.cmdline()):
        found.append(process)
  return found


def wait_for(condition, limit_s=180):
  deadline = time.monotonic() + limit_s
  while not (found := condition()):
    assert time.monotonic() < deadline
    time.sleep(0.2)
  return found


def publish(run, workdir, version):
  """Publishes other weights than those of the versions before."""
  ServiceLog(workdir.services, "publisher").now("publishes", version=version, step=version)
  store.publish(params_lib.init(run.policy.model, jax.random.key(9)), version, workdir.weights)


def scored(workdir):
  """{version: its scores}."""
  return {each["version"]: each["scores"] for each in inputs.read_held_out(workdir.evaluations)}


def test_versions_are_scored_on_a_node_whose_actor_is_killed_and_which_is_lost(
  cluster, tmp_path, capfd
):
  """With the scores of an evaluator in this process."""
  run, workdir, here = configured(cluster), Workdir(tmp_path / "run"), Workdir(tmp_path / "here")
  corpus = agent_setting.open_tasks(run)
  told = []

  def started_again(count):
    look()
    told.append(capfd.readouterr().err)
    return "".join(told).count("; it is started again") == count

  with contextlib.ExitStack() as nodes:
    first = nodes.enter_context(another_node(cluster, **NODE))
    with evaluator_service.serving(run, corpus, workdir) as look:
      wait_for(lambda: started_again(0) and 0 in scored(workdir))
      (member,) = members()
      assert service_log.read(workdir.services)["evaluator"][-1].pid == member.pid
      member.kill()
      wait_for(lambda: started_again(1))
      publish(run, workdir, 1)
      wait_for(lambda: 1 in scored(workdir))
      nodes.enter_context(another_node(cluster, **NODE))
      cluster.remove_node(first, allow_graceful=False)
      wait_for(lambda: started_again(2))
      publish(run, workdir, 2)
    assert "".join(told).count("the evaluator ended on node ") == 2
    wait_for(lambda: not members())
  publish(run, here, 1)
  tell = ServiceLog(here.services, "evaluator").now
  evaluator.follow(run, corpus, here, tell, lambda: True)
  found = scored(workdir)
  assert found.keys() == {0, 1, 2}
  assert found[1] == found[2] == scored(here)[1]


def test_without_a_node_the_message_says_what_to_start_and_one_that_comes_evaluates(
  cluster, tmp_path, capfd, monkeypatch
):
  monkeypatch.setattr(evaluator_node, "_NODE_S", 0.5)
  run, workdir = configured(cluster), Workdir(tmp_path)
  corpus = agent_setting.open_tasks(run)
  with evaluator_service.serving(run, corpus, workdir) as look:
    look()
  told = capfd.readouterr().err
  assert told.count("""ray start --resources='{"evaluator": 1}'; training goes on""") == 1
  assert "the last version may have no score" in told
  with contextlib.ExitStack() as nodes:
    with evaluator_service.serving(run, corpus, workdir) as look:
      nodes.enter_context(another_node(cluster, **NODE))
      look()
    assert scored(workdir).keys() == {0}


def test_a_node_with_other_code_is_named_with_the_remedy(cluster, tmp_path, capfd, monkeypatch):
  run = configured(cluster)
  corpus = agent_setting.open_tasks(run)
  monkeypatch.setattr(cluster_lib, "code", lambda: "another")
  told = []

  def given_up():
    look()
    told.append(capfd.readouterr().err)
    return "is not started again" in told[-1]

  with another_node(cluster, **NODE):
    with evaluator_service.serving(run, corpus, Workdir(tmp_path)) as look:
      wait_for(given_up)
  assert "".join(told).count("than the run (another); copy the run's checkout") == 4
