"""A run that is killed goes on where it stopped: nothing is lost, nothing is trained twice."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def start(folder, cache, *arguments):
  environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
  environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  return subprocess.Popen(
    [sys.executable, str(ROOT / "tests/runs/small_run.py"), str(folder), *arguments],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    text=True,
  )


def finish(folder, cache, *arguments):
  process = start(folder, cache, *arguments)
  output, _ = process.communicate(timeout=900)
  assert process.returncode == 0, output
  return output


def test_a_run_killed_at_random_moments_ends_with_the_parameters_of_one_that_was_not(tmp_path):
  cache = tmp_path / "cache"
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  assert finish(whole, cache).split("\n")[:4] == [f"step {i}" for i in range(4)]
  draw = random.Random(0)
  for kill_after_steps in (0, 2):
    process = start(killed, cache)
    for _ in range(kill_after_steps):
      process.stdout.readline()
    time.sleep(draw.uniform(0.0, 0.3) if kill_after_steps else 2.0)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
  finish(killed, cache)
  expected, found = (np.load(folder / "params.npz") for folder in (whole, killed))
  assert found["version"] == expected["version"] > 0
  for name in expected.files:
    assert found[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.timeout(1000)
def test_a_run_that_changes_its_mesh_halfway_ends_with_the_parameters_of_one_device(
  tmp_path, monkeypatch
):
  """Within 1e-5."""
  cache = tmp_path / "cache"
  flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
  monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count=4")
  finish(tmp_path / "one", cache, "2", "{}")
  finish(tmp_path / "many", cache, "1", '{"expert": 2, "context": 2}')
  finish(tmp_path / "many", cache, "2", '{"fsdp": 2, "context": 2}')
  expected, found = (np.load(tmp_path / name / "params.npz") for name in ("one", "many"))
  assert found["version"] == expected["version"] > 0
  for name in expected.files:
    np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)
