"""Runs whose samplers follow differences of the weights give the numbers of those that read whole
versions.
"""

import time

import jax
import numpy as np
import pytest

from jaxrl_agents import record_log
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import weight_files
from jaxrl_agents.weights import manifest, streams
from jaxrl_agents.weights.publisher import Publisher
from jaxrl_agents.weights.receiver import Receiver
from tests import s3_server
from tests.runs import small_run
from tests.runs.small_run import CFG
from tests.runs.test_several import ended, start, start_both, wait_for

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
def test_an_engine_follows_differences_through_a_bucket(full, cache, tmp_path):
  place = f"s3://{s3_server.BUCKET}/runs/small"
  in_bucket = {**DELTA["publish"], "folder": place}
  with s3_server.serving():
    ended(start("small_run.py", tmp_path, cache, 1, **{**DELTA, "publish": in_bucket}))
    assert_bitwise("held.npz", full, tmp_path)
    assert_bitwise("params.npz", full, tmp_path)
    assert len(manifest.versions(place)) == 1
    assert len(manifest.versions(manifest.differences(place))) == 2
  assert not (tmp_path / "weights").exists()


@pytest.mark.timeout(400)
def test_two_processes_publish_the_differences_of_their_shards(cache, tmp_path):
  for process in start_both(tmp_path, cache, **DELTA):
    assert "read from a complete version" not in ended(process)
  weights = tmp_path / "weights"
  last = manifest.versions(manifest.differences(weights))[-1]
  written = manifest.read(manifest.differences(weights), last)
  assert {shard.part for tensor in written.tensors for shard in tensor.shards} == {0, 1}
  reader = Receiver(weights, -1, params_lib.abstract(CFG, "bfloat16"))
  found = reader.whole(reader.read(last))
  saved = weight_files.load(str(tmp_path / "trained"), CFG, dtype="bfloat16")
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(saved), strict=True):
    assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.timeout(400)
def test_weights_are_swapped_while_rollouts_go_on_and_a_killed_run_begins_a_new_chain(
  cache, tmp_path
):
  ahead = {"fleet": {"depth": 1}, "workers": {"deterministic": False}}
  killed = start("small_run.py", tmp_path, cache, 1, **DELTA, **ahead)
  wait_for(killed, "step 0")
  killed.kill()
  killed.communicate(timeout=30)
  output = ended(start("small_run.py", tmp_path, cache, 1, **DELTA, **ahead))
  assert "step 2" in output and "read from a complete version" not in output
  held, params = (np.load(tmp_path / file) for file in ("held.npz", "params.npz"))
  assert held["version"] == params["version"]
  bits = lambda file: sorted(file[n].tobytes() for n in file.files if n != "version")
  assert bits(held) == bits(params)  # one layer: the same arrays, in another order


def test_learning_goes_on_while_differences_are_encoded_and_the_last_version_is_complete(
  tmp_path, monkeypatch
):
  """The first version is encoded only once the learner has taken the batch after it."""
  encode, waited = streams.encode, []

  def taken():
    records = record_log.scan(tmp_path / "schedule.log")
    return sum(each["is"] == "taken" for each in records)

  def slow(differences):
    deadline = time.monotonic() + 60
    while taken() < 2 and time.monotonic() < deadline:
      time.sleep(0.05)
    waited.append(taken())
    return encode(differences)

  begin, begun = Publisher.begin, []

  def begins(publisher, params, version):
    begun.append(version)
    return begin(publisher, params, version)

  monkeypatch.setattr(Publisher, "begin", begins)
  monkeypatch.setattr(streams, "encode", slow)
  ahead = {"fleet": {"depth": 1}, "workers": {"deterministic": False}}
  small_run.run(tmp_path, **DELTA, **ahead)
  assert waited[0] == 2
  records = record_log.scan(tmp_path / "schedule.log")
  swapped = [each["version"] for each in records if each["is"] == "swapped"]
  assert [0, *swapped] == begun and len(begun) == 4  # none is skipped
  held, params = (np.load(tmp_path / file) for file in ("held.npz", "params.npz"))
  last = manifest.versions(manifest.differences(tmp_path / "weights"))[-1]
  assert last == params["version"] > 3
  reader = Receiver(tmp_path / "weights", -1, params_lib.abstract(CFG, "bfloat16"))
  found = jax.tree.leaves(reader.whole(reader.read(last)))
  for i, leaf in enumerate(found):
    assert small_run.bits(leaf).tobytes() == params[f"p{i}"].tobytes()
  assert held["version"] == last
