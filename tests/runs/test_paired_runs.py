"""Two runs compared task by task, with differences by hand."""

import pytest

from jaxrl_agents.harness import group_files
from jaxrl_agents.runs import paired_runs
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group, Task, Trajectory


def run(folder, rewards, prompt=""):
  """A run whose trained policy earned {task: reward}."""
  (folder / "trajectories").mkdir(parents=True)
  rollout = lambda i, r: Trajectory(i, (), (), {}, "answer", {"reward": r})
  groups = [
    Group(Task(i, "number_game", prompt, {}), (rollout(i, r),), i) for i, r in rewards.items()
  ]
  group_files.save_groups(folder / "trajectories" / "eval_trained.npz", groups)
  return folder


def test_a_row_is_the_mean_difference_on_the_tasks_of_both_with_its_bounds(tmp_path):
  one = run(tmp_path / "all", {"a": 1.0, "b": 0.75, "c": 0.5})
  same = run(tmp_path / "less", {"a": 0.5, "b": 0.25, "d": 0.0})
  lines = paired_runs.table([one, same, one]).splitlines()
  assert lines[0] == "| all minus | tasks | reward (95 %) |"
  assert lines[2] == "| less | 2 | +0.500 (+0.500 to +0.500) |"  # both differences are 0.5
  assert lines[3] == "| all | 3 | +0.000 (+0.000 to +0.000) |"


def test_tasks_of_one_cluster_are_resampled_together(tmp_path):
  runs = []
  for name, rewards in (("one", (1.0, 0.0)), ("two", (0.0, 0.0))):
    (tmp_path / name / "trajectories").mkdir(parents=True)
    groups = [
      Group(
        Task(f"{repo}{i}", "coding", "", {"repo": repo}),
        (Trajectory(f"{repo}{i}", (), (), {}, "answer", {"reward": reward}),),
        f"{repo}{i}",
      )
      for repo, reward in zip("ab", rewards, strict=True)
      for i in range(50)
    ]
    group_files.save_groups(tmp_path / name / "trajectories" / "eval_trained.npz", groups)
    Workdir(tmp_path / name).merge_summary({"config": {"agent": "coding"}})
    runs.append(tmp_path / name)
  # Of two repositories, one with a difference of 1 and one with 0: both, or one of them twice.
  assert paired_runs.table(runs).splitlines()[2].endswith("| +0.500 (+0.000 to +1.000) |")


def test_a_run_alone_an_unfinished_one_and_other_tasks_are_named_errors(tmp_path):
  one = run(tmp_path / "one", {"a": 1.0})
  with pytest.raises(ValueError, match="two runs or more"):
    paired_runs.table([one])
  (tmp_path / "new").mkdir()
  with pytest.raises(ValueError, match="let the run finish"):
    paired_runs.table([one, tmp_path / "new"])
  with pytest.raises(ValueError, match="no task in common"):
    paired_runs.table([one, run(tmp_path / "other", {"z": 1.0})])


def test_other_tasks_by_the_same_names_are_not_compared(tmp_path):
  one = run(tmp_path / "one", {"a": 1.0, "b": 0.5}, "from 1 to 7")
  two = run(tmp_path / "two", {"b": 1.0, "c": 0.5}, "from 1 to 5")
  with pytest.raises(ValueError, match="'b' of two asks 'from 1 to 5', and in one 'from 1 to 7'"):
    paired_runs.table([one, two])
