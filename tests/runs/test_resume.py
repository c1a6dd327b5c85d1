"""A run that is killed goes on where it stopped: nothing is lost, nothing is trained twice."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]


def start(folder, cache):
  environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
  environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  return subprocess.Popen(
    [sys.executable, str(ROOT / "tests/runs/small_run.py"), str(folder)],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    text=True,
  )


def finish(folder, cache):
  process = start(folder, cache)
  output, _ = process.communicate(timeout=240)
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
