"""Scripted players in workers: a task that kills its workers does not end a run."""

import pytest

from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.runs import evaluation, rollout_workers
from jaxrl_agents.types import Group, Task, Trajectory
from tests.runs.small_run import CONFIG


@pytest.mark.slow
def test_a_task_that_kills_its_workers_is_set_aside_and_the_others_are_played(capfd):
  tasks = [Task(name, "count", name, {"turns": 2}) for name in ("count", "kill", "play")]
  spec = WorkerSpec("tests.harness.toy_services:build_scripted")
  sampling = Sampling(max_new_tokens=8)
  played = rollout_workers.scripted(CONFIG, spec, tasks, 2, sampling, label="x")
  groups = {group.task.id: group.trajectories for group in played}
  assert sorted(groups) == ["count", "kill", "play"]
  assert all("its worker died 3 times" in t.error for t in groups["kill"])
  assert [t.error for name in ("count", "play") for t in groups[name]] == [""] * 4
  assert "task kill was set aside" in capfd.readouterr().err


def test_an_evaluation_in_which_every_episode_failed_is_an_error_that_names_the_first():
  def group(name, *errors):
    played = tuple(
      Trajectory(name, (), (), {}, stop="error", metrics={}, error=error) for error in errors
    )
    return Group(Task(name, "search", name, {}), played)

  groups = [group("a", "KeyError: x"), group("b", "KeyError: y")]
  with pytest.raises(ValueError, match=r"all 2 episodes \(nobody\) failed, .* by KeyError: x"):
    evaluation.collected(CONFIG, groups, 2, "nobody")
