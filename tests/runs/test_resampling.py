"""Groups whose rewards are all equal are replaced, in turns and ahead, and nothing else changes."""

import json
import signal

import numpy as np
import pytest

from jaxrl_agents.fleet import ledger
from jaxrl_agents.runs import batches
from tests.runs import small_run, test_replay, test_resume

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RESAMPLING = {"learner": {"steps": 2, "resample_constant": 4}, "constant": 3}
"""Half of the tasks, which come in a random order, give all of their rollouts the same reward."""


def lines(folder, name):
  """{step: what its last line of a file says}."""
  return dict(map(json.loads, (folder / name).read_text().splitlines()))


def replaced(folder):
  """{step: the groups that it took and did not train}."""
  trained = lines(folder, "trained.txt")
  found = {step: set() for step in trained}
  for each in ledger.read(folder / batches.LEDGER):
    if each.step >= 0 and each.group not in trained[each.step]:
      found[each.step].add(each.group)
  return found


def assert_same(one, other):
  expected, found = (np.load(folder / "params.npz") for folder in (one, other))
  assert found["version"] == expected["version"] > 0
  for name in expected.files:
    assert found[name].tobytes() == expected[name].tobytes(), name
  assert lines(one, "trained.txt") == lines(other, "trained.txt")
  assert replaced(one) == replaced(other)


def assert_resampled(folder):
  """Every step trained two groups with different rewards, and each group was used once."""
  trained, others = lines(folder, "trained.txt"), replaced(folder)
  for step, found in lines(folder, "metrics.txt").items():
    assert found["groups_constant"] == 0 and len(trained[step]) == 2
    assert found["groups_resampled"] == len(others[step])
  used = [name for step in trained for name in (*trained[step], *others[step])]
  assert len(used) == len(set(used)) > 2 * len(trained)
  assert not ledger.read(folder / batches.LEDGER).doubled


def test_a_step_by_turns_replaces_constant_groups_and_goes_on_exactly(tmp_path):
  whole, halved = tmp_path / "whole", tmp_path / "halved"
  small_run.run(whole, **RESAMPLING)
  assert_resampled(whole)
  for steps in (1, 2):
    small_run.run(halved, **RESAMPLING | {"learner": {**RESAMPLING["learner"], "steps": steps}})
  assert_same(whole, halved)


def test_no_more_groups_are_replaced_than_a_step_may_where_all_rollouts_are_left_out(tmp_path):
  """Every reply of a policy that knows no stop token reaches its limit of six tokens."""
  options = {"steps": 1, "resample_constant": 1, "truncated": "drop"}
  small_run.run(tmp_path, learner=options)
  found = lines(tmp_path, "metrics.txt")[0]
  assert (found["groups_resampled"], found["groups_constant"]) == (1, 2)
  assert (found["rollouts_truncated"], found["optimizer_steps"]) == (4, 0)


def test_constant_groups_that_were_played_ahead_are_replaced_and_a_replay_does_the_same(
  tmp_path, monkeypatch
):
  recorded, replayed = tmp_path / "recorded", tmp_path / "replayed"
  workers = {"deterministic": False, "episodes": 6, "stall_s": 240}
  test_replay.play(recorded, monkeypatch, 1, **RESAMPLING, workers=workers)
  assert_resampled(recorded)
  test_replay.play(replayed, monkeypatch, 2, replay=recorded, **RESAMPLING, workers=workers)
  assert_same(recorded, replayed)


def test_a_run_that_plays_ahead_uses_each_group_once_though_it_is_killed(tmp_path):
  folder, cache = tmp_path / "killed", tmp_path / "cache"
  ahead = {"fleet": {"depth": 1}, "workers": {"deterministic": False}}
  options = {**RESAMPLING, **ahead, "learner": {"steps": 4, "resample_constant": 4}}
  process = test_resume.start(folder, cache, **options)
  assert [process.stdout.readline() for _ in range(3)] == ["from 0\n", "step 0\n", "step 1\n"]
  process.send_signal(signal.SIGKILL)
  process.wait(30)
  test_resume.finish(folder, cache, **options)
  assert sorted(lines(folder, "trained.txt")) == [0, 1, 2, 3]
  assert_resampled(folder)
