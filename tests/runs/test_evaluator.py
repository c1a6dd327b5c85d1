"""The evaluator follows what is published: the newest version, once, with its own weights."""

import dataclasses
import multiprocessing
import os
import re
import signal
import time

import jax
import numpy as np
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents import service_log
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import EvaluatorConfig, PolicySection, PublishConfig
from jaxrl_agents.fleet.version_scores import VersionScores
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import (
  agent_setting,
  evaluation,
  evaluator,
  evaluator_service,
  published_weights,
)
from jaxrl_agents.runs.evaluator_process import LocalEvaluator
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.service_log import ServiceLog
from jaxrl_agents.types import Group, Segment, Task, Trajectory
from jaxrl_agents.viewer import inputs
from jaxrl_agents.weights import store
from tests.runs import told_lines
from tests.runs.small_run import CFG, CONFIG

RUN = dataclasses.replace(
  CONFIG,
  policy=PolicySection(model=CFG, init="scratch"),
  evaluator=EvaluatorConfig(every=2, tasks=2),
)


class Counted(Tasks):
  digest = ""
  tasks = {"dev": [Task(f"t{i}", "counting", f"count {i}", {}, "dev") for i in range(3)]}


@pytest.mark.slow
def test_the_newest_of_the_published_versions_is_scored_with_its_own_weights(tmp_path):
  workdir = Workdir(tmp_path)
  publisher = ServiceLog(workdir.services, "publisher")
  start = params_lib.init(CFG, jax.random.key(RUN.seed))
  other = params_lib.init(CFG, jax.random.key(9))
  longer = config_lib.with_overrides(
    RUN, ["learner.steps=9", "monitor.listener=tests.runs.told_lines:kept"]
  )
  looks = []

  def publish(version, params):
    publisher.now("publishes", version=version, step=version)
    store.publish(params, version, workdir.weights)

  def is_over():
    """Called before each poll: the learner publishes meanwhile, and ends with the first weights,
    before its last step, too soon for an evaluation in between.
    """
    looks.append(len(list(workdir.evaluations.glob("*.json"))))
    if looks == [0, 1]:
      for version in (1, 2, 3):
        publish(version, other)
    if looks == [0, 1, 2]:
      publish(4, start)
    return len(looks) > 2

  tell = ServiceLog(workdir.services, "evaluator").now
  evaluator.follow(longer, Counted(), workdir, tell, is_over)
  found = {each["version"]: each for each in inputs.read_held_out(workdir.evaluations)}
  assert sorted(found) == [0, 3, 4] and looks == [0, 1, 2, 3]
  assert found[3]["step"] == 3 and found[3]["scores"]["tasks"] == 2.0
  rewards = {version: each["scores"]["reward"] for version, each in found.items()}
  assert rewards[4] == rewards[0] != rewards[3]
  assert not list(workdir.evaluations.glob("*.claim"))
  told = told_lines.read(tmp_path)[:-1]
  assert told == [["held_out", found[v]["step"], found[v]["scores"]] for v in (0, 3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "delta"])
def test_a_run_that_goes_back_to_a_checkpoint_has_its_later_versions_scored_anew(tmp_path, kind):
  """Its learner was killed at version 3, goes on from 1, and trains other weights as 2 and 3."""
  workdir = Workdir(tmp_path)
  run = dataclasses.replace(
    RUN,
    policy=dataclasses.replace(RUN.policy, dtype="bfloat16"),
    evaluator=EvaluatorConfig(every=1, tasks=2),
    publish=PublishConfig(kind=kind),
  )
  publisher = ServiceLog(workdir.services, "publisher")
  params = [params_lib.init(CFG, jax.random.key(seed), "bfloat16") for seed in (RUN.seed, 9)]
  found = []

  with published_weights.publishing(run, workdir.weights) as publishing:

    def publish(version, weights, begin=publishing.publish):
      publisher.now("publishes", version=version, step=version)
      begin(weights, version)

    def story():
      """What happens before each poll: whether the run is over."""
      yield False
      publish(1, params[0], publishing.restart)
      publish(2, params[0])
      publish(3, params[1])
      yield False
      found.extend(inputs.read_held_out(workdir.evaluations))
      VersionScores(workdir.evaluations, 0.0).withdraw_after(1)
      publish(2, params[0], publishing.restart)
      yield False
      yield False  # with another engine
      publish(3, params[0])
      yield False

    looks, tell = story(), ServiceLog(workdir.services, "evaluator").now
    evaluator.follow(run, Counted(), workdir, tell, lambda: next(looks, True))
  rewards = lambda records: {each["version"]: each["scores"]["reward"] for each in records}
  before, after = rewards(found), rewards(inputs.read_held_out(workdir.evaluations))
  assert before.keys() == {0, 3} and before[3] != before[0]
  assert after == {0: before[0], 2: before[0], 3: before[0]}


def killed():
  """Kills the evaluator that lives, and returns once it is gone."""
  (process,) = multiprocessing.active_children()
  process.kill()
  process.join(30)


def wait_for(condition, limit_s=120):
  deadline = time.monotonic() + limit_s
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.1)


@pytest.mark.slow
def test_an_evaluator_that_is_killed_is_started_again_also_after_the_last_step(tmp_path, capfd):
  run = dataclasses.replace(
    config_lib.load("scripts/bench/chaos_config.py"),
    evaluator=EvaluatorConfig(every=1, tasks=1, deadline_s=120.0),
  )
  corpus, workdir = agent_setting.open_tasks(run), Workdir(tmp_path)
  with evaluator_service.serving(run, corpus, workdir) as poll:
    wait_for(lambda: list(workdir.evaluations.glob("*.json")))
    killed()
    before = inputs.read_held_out(workdir.evaluations)
    assert [each["version"] for each in before] == [0]
    poll()
    assert "status -9; it is started again" in capfd.readouterr().err
    ServiceLog(workdir.services, "publisher").now("publishes", version=1, step=1)
    store.publish(params_lib.init(run.policy.model, jax.random.key(9)), 1, workdir.weights)
    killed()
  assert "status -9; it is started again" in capfd.readouterr().err
  after = inputs.read_held_out(workdir.evaluations)
  assert after[0] == before[0] and [each["version"] for each in after] == [0, 1]


@pytest.mark.slow
def test_an_evaluator_that_hangs_in_an_evaluation_is_killed_and_started_again(tmp_path, capfd):
  run = dataclasses.replace(
    config_lib.load("scripts/bench/chaos_config.py"),
    evaluator=EvaluatorConfig(every=1, tasks=1, rollouts=400, deadline_s=120.0),
  )
  workdir, longest_s = Workdir(tmp_path), 3.0
  place, scores = LocalEvaluator(run, workdir), VersionScores(workdir.evaluations, 0.0)
  poll = evaluator_service.Supervised(place, scores, workdir.services, longest_s).poll
  try:
    state = lambda: service_log.newest(workdir.services, "evaluator")
    wait_for(lambda: state() and state().does == "evaluates")
    (process,) = multiprocessing.active_children()
    os.kill(process.pid, signal.SIGSTOP)
    poll()
    assert process.is_alive() and "ended" not in capfd.readouterr().err
    time.sleep(longest_s)
    poll()
    assert not process.is_alive()
    told = r"ended by force: it had evaluated version 0 for \d+ s; it is started again"
    assert re.search(told, capfd.readouterr().err)
    poll()  # what the killed one did last is no sign of the new one
    assert len(multiprocessing.active_children()) == 1
    wait_for(lambda: list(workdir.evaluations.glob("*.json")))
  finally:
    place.end()


@pytest.mark.slow
def test_the_absence_of_an_evaluator_that_dies_again_and_again_is_told_and_is_no_wait(
  tmp_path, capfd
):
  run = dataclasses.replace(RUN, evaluator=EvaluatorConfig(every=1, deadline_s=600.0))
  with evaluator_service.serving(run, Counted(), Workdir(tmp_path)) as poll:
    for _ in range(4):
      killed()
      poll()
    poll()
    began = time.monotonic()
  assert time.monotonic() - began < 10
  told = capfd.readouterr().err
  assert told.count("it is started again") == 3
  assert told.count("it has died 4 times without a new score, and is not started again") == 1
  assert multiprocessing.active_children() == []


@pytest.mark.parametrize("init", ["scratch", "copying"])
def test_an_evaluation_without_a_checkpoint_of_a_run_from_scratch_says_so(init):
  with pytest.raises(
    ValueError, match=rf"--checkpoint is missing: policy\.init={init} is no trained"
  ):
    evaluation.newest_policy(init)


def test_scores_of_versions_have_the_judges_grades_as_those_of_training_have():
  config = config_lib.with_overrides(RUN, ["judge.weight=0.5"])
  tokens = np.asarray([1, 2], np.int32)
  segment = Segment(tokens, np.asarray([False, True]), np.zeros(2, np.float32), tokens, None)
  task = Counted.tasks["dev"][0]
  parts = {"right": 1.0, "reward": 0.25, "judged": 1.0}
  graded = Group(task, (Trajectory(task.id, (segment,), (), parts, "answer", {}),), "0")

  class Players:
    def play(self, jobs):
      return [graded]

  (scored,) = evaluator._played(config, Players(), [task], "version 1")
  (of_training,) = evaluation.collected(config, [graded], 1, "training")
  assert scored.trajectories[0].rewards == of_training.trajectories[0].rewards
