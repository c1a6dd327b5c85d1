"""A run in several processes has the numbers of one; they stop, save and end together."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import weight_files
from jaxrl_agents.weights import store
from tests import forced_devices
from tests.runs.small_run import CFG

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
MESH = {"expert": 2, "fsdp": 4}  # rows and experts are cut between the processes
SMALL = {"expert": 2}  # for what does not depend on the mesh: less to compile
LEARNER = {"steps": 2, "rows_per_microbatch": 8}


def start(script, folder, cache, devices, **options):
  environment = {
    **forced_devices.environment(devices),
    "JAX_COMPILATION_CACHE_DIR": str(cache),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  return subprocess.Popen(
    [sys.executable, str(ROOT / "tests/runs" / script), str(folder), json.dumps(options)],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def start_both(folder, cache, devices=1, mesh=SMALL, script="small_run.py", **options):
  address = f"127.0.0.1:{free_port()}"
  return [
    start(script, folder, cache, devices, processes=[address, 2, i], mesh=mesh, **options)
    for i in range(2)
  ]


def ended(process, status=0, limit_s=200):
  output, _ = process.communicate(timeout=limit_s)
  assert process.returncode == status, output[-3000:]
  return output


def stop(process):
  process.kill()
  process.communicate(timeout=30)


def free_port():
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def one(tmp_path_factory, cache):
  """A run of one process of eight devices."""
  folder = tmp_path_factory.mktemp("one")
  ended(start("small_run.py", folder, cache, 8, mesh=MESH, learner=LEARNER))
  return folder


def assert_same(one, other, **tolerance):
  expected, found = (np.load(folder / "params.npz") for folder in (one, other))
  assert found["version"] == expected["version"] == 4
  for name in expected.files:
    np.testing.assert_allclose(found[name], expected[name], **tolerance, err_msg=name)


def wait_for(process, line):
  for text in process.stdout:
    if text.startswith(line):
      return
  raise AssertionError(f"it ended before {line!r}")


@pytest.mark.timeout(400)
def test_two_processes_of_four_devices_play_and_train_as_one_of_eight(one, cache, tmp_path):
  """Parameters after two steps of two substeps each: within 1e-5. What they save is what they have,
  and of what each of them published and saved in parts nothing else is left.
  """
  both = start_both(tmp_path, cache, 4, MESH, learner=LEARNER)
  for process in both:
    assert "step 1" in ended(process)
  assert_same(one, tmp_path, atol=1e-5)
  held = np.load(tmp_path / "params.npz")
  for i, saved in enumerate(jax.tree.leaves(weight_files.load(str(tmp_path / "trained"), CFG))):
    np.testing.assert_array_equal(saved, held[f"p{i}"])
  assert not list(tmp_path.rglob("part*"))


@pytest.mark.timeout(400)
def test_processes_that_were_killed_while_they_joined_what_they_saved_save_it_again(
  cache, tmp_path
):
  left = np.ones(2, np.float32)  # of whatever they had before
  store.publish({"embed": left}, 0, tmp_path / "trained" / "parts")
  for process in start_both(tmp_path / "trained", cache, script="two_saves.py"):
    ended(process)
  found = weight_files.load(str(tmp_path / "trained"), CFG)
  expected = params_lib.init(CFG, jax.random.key(0))
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  assert not list(tmp_path.rglob("part*"))


@pytest.mark.timeout(400)
def test_sigterm_to_either_process_stops_and_saves_both_and_they_go_on(one, cache, tmp_path):
  learner = {**LEARNER, "save_every": 100}
  both = start_both(tmp_path, cache, learner=learner)
  wait_for(both[0], "step 0")
  both[1].send_signal(signal.SIGTERM)
  for process in both:
    ended(process, status=143)
  again = start_both(tmp_path, cache, learner=learner)
  assert all(re.search("^from [12]$", ended(process), re.MULTILINE) for process in again)
  assert_same(one, tmp_path, atol=1e-5)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
  ("killed", "named"),
  [
    (0, "leader task was preempted/died|process 0 of the run is gone"),
    (1, "task:1|process 1 of the run is gone"),
  ],
)
def test_a_process_that_is_killed_ends_the_other_with_its_name(cache, tmp_path, killed, named):
  """The words are jax's, or ours where a device program fails first."""
  both = start_both(tmp_path, cache, learner={**LEARNER, "steps": 10_000, "save_every": 100_000})
  wait_for(both[killed], "step 0")
  both[killed].send_signal(signal.SIGKILL)
  output, _ = both[1 - killed].communicate(timeout=120)
  assert both[1 - killed].returncode not in (0, None)
  assert re.search(named, output), output[-3000:]
  both[killed].communicate(timeout=30)


def test_several_processes_cannot_sample_a_policy_that_is_not_trained(cache, tmp_path):
  weight_files.save(params_lib.init(CFG, jax.random.key(7)), CFG, tmp_path / "frozen")
  both = start_both(tmp_path, cache, frozen=str(tmp_path / "frozen"))
  outputs = [process.communicate(timeout=200)[0] for process in both]
  assert all(process.returncode for process in both)  # the first to end may take the other along
  assert any("for these policies (sampler.frozen_slices)" in output for output in outputs)
