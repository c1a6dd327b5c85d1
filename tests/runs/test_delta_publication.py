"""Runs whose samplers follow differences of the weights give the numbers of those that read whole
versions.
"""

import numpy as np
import pytest

from jaxrl_agents.weights import manifest
from tests.runs.test_several import ended, free_port, start, stop

pytestmark = pytest.mark.slow

SECTIONS = {
  "policy": {"dtype": "bfloat16"},
  "learner": {"steps": 3, "canary_bound": 0.1},
}
DELTA = {**SECTIONS, "publish": {"kind": "delta", "anchor_every": 3}}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def full(tmp_path_factory, cache):
  """A run that publishes whole versions."""
  folder = tmp_path_factory.mktemp("full")
  ended(start("small_run.py", folder, cache, 1, **SECTIONS))
  return folder


def assert_bitwise(file, one, other):
  expected, found = (np.load(folder / file) for folder in (one, other))
  assert found["version"] == expected["version"] > 3
  assert expected.files == found.files and len(found.files) > 10
  for name in expected.files:
    assert found[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.timeout(400)
def test_the_engine_holds_bitwise_what_it_would_have_read_whole(full, cache, tmp_path):
  ended(start("small_run.py", tmp_path, cache, 1, **DELTA))
  assert_bitwise("held.npz", full, tmp_path)
  assert_bitwise("params.npz", full, tmp_path)
  weights = tmp_path / "weights"
  (first,) = manifest.versions(weights)
  assert len(manifest.versions(manifest.differences(weights))) == 2
  assert manifest.versions(manifest.differences(weights))[0] > first


@pytest.mark.timeout(400)
def test_a_sampler_of_its_own_follows_differences_to_the_same_numbers(full, cache, tmp_path):
  listen = {"workers": {"listen": f"127.0.0.1:{free_port()}"}, "sampler": {"slices": 1}}
  sampler = start("small_sampler.py", tmp_path, cache, 1, **DELTA, **listen)
  ended(start("small_run.py", tmp_path, cache, 1, **DELTA, **listen))
  stop(sampler)
  assert_bitwise("params.npz", full, tmp_path)
