"""A run that is killed goes on where it stopped: nothing is lost, nothing is trained twice."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxrl_agents.runs import cores
from tests import forced_devices

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def start(folder, cache, **options):
  environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
  environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  return subprocess.Popen(
    [sys.executable, str(ROOT / "tests/runs/small_run.py"), str(folder), json.dumps(options)],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    text=True,
  )


def finish(folder, cache, **options):
  process = start(folder, cache, **options)
  output, _ = process.communicate(timeout=540)
  assert process.returncode == 0, output
  return output


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
  """A run that nobody stops."""
  folder = tmp_path_factory.mktemp("whole")
  assert finish(folder, cache).split("\n")[:5] == ["from 0", *(f"step {i}" for i in range(4))]
  return folder


def test_a_run_killed_at_random_moments_ends_with_the_parameters_of_one_that_was_not(
  whole, cache, tmp_path
):
  killed = tmp_path / "killed"
  draw = random.Random(0)
  for kill_after_steps in (0, 2):
    process = start(killed, cache)
    for _ in range(kill_after_steps and 1 + kill_after_steps):
      process.stdout.readline()
    time.sleep(draw.uniform(0.0, 0.3) if kill_after_steps else 2.0)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
  finish(killed, cache)
  assert_same_parameters(whole, killed)


@pytest.mark.skipif(cores.usable() < 2, reason="one core cannot be split over")
def test_a_learner_split_over_cores_trains_as_on_one_and_goes_on_bitwise(whole, cache, tmp_path):
  """Parameters within 1e-4 after 8 updates of 1e-2; sums of two cores are in another order."""
  split, killed = {"split_cores": True}, tmp_path / "killed"
  assert "trained on 2 devices" in finish(tmp_path / "split", cache, learner=split)
  parameters = np.load(tmp_path / "split" / "params.npz")
  for name, leaf in np.load(whole / "params.npz").items():
    np.testing.assert_allclose(parameters[name], leaf, atol=1e-4)
  process = start(killed, cache, learner=split)
  assert [process.stdout.readline() for _ in range(3)] == ["from 0\n", "step 0\n", "step 1\n"]
  process.send_signal(signal.SIGKILL)
  process.wait(30)
  finish(killed, cache, learner=split)
  assert_same_parameters(tmp_path / "split", killed)


def test_sigterm_loses_no_finished_step_whatever_save_every_is(whole, cache, tmp_path):
  """The small run ends within 60 s of the signal; ten of them wait for workers at most."""
  stopped = tmp_path / "stopped"
  process = start(stopped, cache, learner={"save_every": 100})
  assert [process.stdout.readline() for _ in range(3)] == ["from 0\n", "step 0\n", "step 1\n"]
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=60)
  assert process.returncode == 143
  finished = 2 + output.count("step ")
  assert finish(stopped, cache, learner={"save_every": 100}).startswith(f"from {finished}\n")
  assert_same_parameters(whole, stopped)


def test_a_machine_that_dies_without_a_warning_loses_save_every_steps_at_most(
  whole, cache, tmp_path
):
  killed = tmp_path / "killed"
  process = start(killed, cache, learner={"save_every": 2})
  for _ in range(4):  # from 0, then steps 0, 1 and 2, of which the first two are saved
    process.stdout.readline()
  process.send_signal(signal.SIGKILL)
  process.wait(30)
  first = int(
    finish(killed, cache, learner={"save_every": 2}).partition("\n")[0].removeprefix("from ")
  )
  assert first in (2, 4)  # 4 where the last step ended before the signal came
  assert_same_parameters(whole, killed)


@pytest.mark.parametrize("last_depth", [2, 0])
def test_a_run_that_plays_ahead_trains_each_task_once_though_it_is_killed(
  cache, tmp_path, last_depth
):
  """Six batches of two groups; what was ready is kept, the rest is played again."""
  ahead = {
    "fleet": {"depth": 2},
    "workers": {"deterministic": False},
    "learner": {"steps": 6},
  }
  killed = tmp_path / "killed"
  for steps in (1, 3):
    process = start(killed, cache, **ahead)
    for _ in range(1 + steps):
      process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait(30)
  finish(killed, cache, **ahead | {"fleet": {"depth": last_depth}})
  lines = map(json.loads, (killed / "trained.txt").read_text().splitlines())
  by_step = dict(lines)  # a step that was not saved is trained again, which counts
  assert sorted(by_step) == list(range(6))
  groups = sorted(name for names in by_step.values() for name in names)
  assert groups == sorted(f"step {batch} {place}" for batch in range(6) for place in range(2))


def assert_same_parameters(whole, other):
  expected, found = (np.load(folder / "params.npz") for folder in (whole, other))
  assert found["version"] == expected["version"] > 0
  for name in expected.files:
    assert found[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.timeout(600)
def test_a_run_that_changes_its_mesh_halfway_ends_with_the_parameters_of_one_device(
  tmp_path, monkeypatch
):
  """Within 1e-5."""
  cache = tmp_path / "cache"
  monkeypatch.setenv("XLA_FLAGS", forced_devices.environment(4)["XLA_FLAGS"])
  finish(tmp_path / "one", cache, learner={"steps": 2})
  finish(tmp_path / "many", cache, learner={"steps": 1}, mesh={"expert": 2, "context": 2})
  finish(tmp_path / "many", cache, learner={"steps": 2}, mesh={"fsdp": 2, "context": 2})
  expected, found = (np.load(tmp_path / name / "params.npz") for name in ("one", "many"))
  assert found["version"] == expected["version"] > 0
  for name in expected.files:
    np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)
