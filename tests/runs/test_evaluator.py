"""The evaluator follows what is published: the newest version, once, with its own weights."""

import dataclasses

import jax
import pytest

from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import EvaluatorConfig, PolicySection
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import evaluation, evaluator
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.service_log import ServiceLog
from jaxrl_agents.types import Task
from jaxrl_agents.viewer import inputs
from jaxrl_agents.weights import store
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
  looks = []

  def publish(version, params):
    publisher.now("publishes", version=version, step=version)
    store.publish(params, version, workdir.weights)

  def is_over():
    """Called before each look: the learner publishes meanwhile, and ends with the first weights."""
    looks.append(len(list(workdir.evaluations.glob("*.json"))))
    if looks == [0, 1]:
      for version in (1, 2, 3):
        publish(version, other)
    if looks == [0, 1, 2]:
      publish(4, start)
    return len(looks) > 2

  evaluator.follow(RUN, Counted(), workdir, ServiceLog(workdir.services, "evaluator").now, is_over)
  found = {each["version"]: each for each in inputs.read_held_out(workdir.evaluations)}
  assert sorted(found) == [0, 3, 4] and looks == [0, 1, 2, 3]
  assert found[3]["step"] == 3 and found[3]["scores"]["tasks"] == 2.0
  rewards = {version: each["scores"]["reward"] for version, each in found.items()}
  assert rewards[4] == rewards[0] != rewards[3]
  assert not list(workdir.evaluations.glob("*.claim"))


@pytest.mark.parametrize("init", ["scratch", "copying"])
def test_an_evaluation_without_a_checkpoint_of_a_run_from_scratch_says_so(init):
  with pytest.raises(
    ValueError, match=rf"--checkpoint is missing: policy\.init={init} is no trained"
  ):
    evaluation.newest_policy(init)
