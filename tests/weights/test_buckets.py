"""Versions in a bucket: what is true of a folder is true of gs:// and s3://.

The server of S3 is moto's. One of Google Cloud Storage, such as `gcp-storage-emulator start
--in-memory --default-bucket=jaxrl --port=9023`, is used where JAXRL_GCS_URL names it
(http://127.0.0.1:9023).
"""

import concurrent.futures
import itertools
import os
import pickle
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import search_cpu
from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import resumption
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.weights import chain, manifest, places, store, timeouts
from jaxrl_agents.weights.publisher import Publisher
from jaxrl_agents.weights.receiver import Receiver
from tests import s3_server

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def s3():
  with s3_server.serving():
    yield


@pytest.fixture(params=["s3", "gs"])
def bucket(request, monkeypatch):
  """A place of a bucket that nobody else uses."""
  if request.param == "gs":
    if not os.environ.get("JAXRL_GCS_URL"):
      pytest.skip("JAXRL_GCS_URL names no server of Google Cloud Storage")
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", os.environ["JAXRL_GCS_URL"])
  else:
    request.getfixturevalue("s3")
  monkeypatch.setattr(places, "BUCKET_POLL_S", 0.05)
  return f"{request.param}://jaxrl/runs/{os.getpid()}-{next(NUMBERS)}"


def policy(version):
  """Weights of which a few change from one version to the next."""
  draw = np.random.default_rng(0)
  weights = {"embed": draw.normal(size=(60, 40)), "layers": {"up": draw.normal(size=(2, 30, 20))}}
  for i in range(version):
    moved = np.random.default_rng(100 + i)
    weights = jax.tree.map(lambda w: w + moved.normal(0, 1e-4, w.shape), weights)  # noqa: B023
  return jax.tree.map(lambda w: jnp.asarray(w, jnp.bfloat16), weights)


def assert_bitwise(found, version):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(policy(version)), strict=True):
    assert a.dtype == b.dtype
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def names(bucket):
  return places.names(places.of(bucket), "")


def test_a_complete_version_is_read_bitwise_and_old_ones_are_deleted(bucket):
  before = places.sent_bytes(places.of(bucket))
  for version in (3, 4, 5):
    store.publish(policy(version), version, bucket, keep=2)
  assert manifest.versions(bucket) == [4, 5]
  assert names(bucket) == [
    "manifest_v0000000004.json",
    "manifest_v0000000005.json",
    "v0000000004",
    "v0000000005",
  ]
  assert_bitwise(store.fetch(bucket, 5), 5)
  assert places.sent_bytes(places.of(bucket)) - before > 3 * 2 * (60 * 40 + 2 * 30 * 20) / 2
  with pytest.raises(FileNotFoundError, match=r"no weights of version 3 .*\[4, 5\]"):
    store.fetch(bucket, 3)
  assert store.withdraw_after(4, bucket) == [5]
  assert names(bucket) == ["manifest_v0000000004.json", "v0000000004"]


def test_a_receiver_follows_differences_and_has_a_damaged_one_repaired(bucket):
  with Publisher(bucket) as publisher:
    publisher.publish(policy(0), 0)
    receiver, held = Receiver(bucket, 0, policy(0), timeout_s=20.0), policy(0)
    for version in (1, 2, 3):
      publisher.publish(policy(version), version)
    held = receiver.swap(receiver.stage(3), held)  # three differences at once
    assert_bitwise(held, 3)
    assert manifest.versions(bucket) == [0]
    publisher.publish(policy(4), 4)
    differences = manifest.differences(bucket)
    part = manifest.files(differences, 4) / "part_0"
    for kind in part.names(""):
      places.remove_tree(part / kind)
    held = receiver.swap(receiver.stage(4), held)  # asks for a complete one
    assert_bitwise(held, 4)
    assert manifest.versions(bucket) == [0, 4]
    publisher.publish(policy(5), 5)
    assert places.names(differences, "wanted_v") == []
    held = receiver.swap(receiver.stage(5), held)
    assert_bitwise(held, 5)
    assert [m.version for m in chain.route(bucket, 4, 5)] == [5]


def test_a_damaged_manifest_is_named(bucket):
  store.publish(policy(1), 1, bucket)
  place = manifest.path(bucket, 1)
  place.write_text(place.read_bytes().decode().replace('"version": 1', '"version": 2'))
  with pytest.raises(manifest.CorruptWeights, match=r"runs/.*manifest_v0000000001.json is damaged"):
    store.fetch(bucket, 1)


def test_a_place_in_a_bucket_is_of_one_run_alone(bucket, tmp_path):
  config = config_lib.with_overrides(search_cpu.get_config(), [f"publish.folder={bucket}"])
  first, second = (Workdir(tmp_path / name, weights=bucket) for name in ("a", "b"))
  resumption.claim_published(config, first)
  store.publish(policy(0), 0, first.weights)
  resumption.claim_published(config, first)  # resumed
  with pytest.raises(ValueError, match=rf"the weights of another run \(\w+ of {first.path}\)"):
    resumption.claim_published(config, second)
  assert manifest.versions(bucket) == [0]


def test_a_bucket_that_is_not_there_is_named_with_what_to_do(s3, tmp_path):
  url = "s3://somewhere-else/run"
  config = config_lib.with_overrides(search_cpu.get_config(), [f"publish.folder={url}"])
  with pytest.raises(
    ValueError, match=r"publish.folder=s3://somewhere-else/run cannot be used.*Buc"
  ):
    resumption.claim_published(config, Workdir(tmp_path, weights=url))


def test_versions_without_an_owner_are_not_taken_for_those_of_a_new_run(tmp_path):
  old = tmp_path / "old" / "weights"
  store.publish(policy(7), 7, old)
  config = config_lib.with_overrides(search_cpu.get_config(), [f"publish.folder={old}"])
  with pytest.raises(
    ValueError, match=r"holds versions \[7\] and no mark .*; choose another place"
  ):
    resumption.claim_published(config, Workdir(tmp_path / "new", weights=str(old)))
  assert manifest.versions(old) == [7]


def test_the_copy_of_a_run_is_another_run(bucket, tmp_path):
  config = config_lib.with_overrides(search_cpu.get_config(), [f"publish.folder={bucket}"])
  resumption.claim_published(config, Workdir(tmp_path / "a", weights=bucket))
  shutil.copytree(tmp_path / "a", tmp_path / "b")
  with pytest.raises(ValueError, match=r"of another run .* or its folder was moved"):
    resumption.claim_published(config, Workdir(tmp_path / "b", weights=bucket))


def test_of_runs_that_claim_a_place_at_once_one_has_it(tmp_path):
  place = tmp_path / "place"
  config = config_lib.with_overrides(search_cpu.get_config(), [f"publish.folder={place}"])
  runs = [Workdir(tmp_path / str(i), weights=str(place)) for i in range(8)]

  def claims(run):
    try:
      resumption.claim_published(config, run)
    except ValueError:
      return False
    return True

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(claims, runs)) == 1
  assert [each.name for each in place.iterdir()] == ["run_of_weights.txt"]


def test_the_empty_folder_of_a_console_can_be_claimed(bucket, tmp_path):
  folder = places.of(bucket)
  folder._store.write(f"{folder._key}/", b".").result()
  assert names(bucket) == []
  config = config_lib.with_overrides(search_cpu.get_config(), [f"publish.folder={bucket}"])
  resumption.claim_published(config, Workdir(tmp_path, weights=bucket))
  assert names(bucket) == ["run_of_weights.txt"]


def test_requests_of_a_killed_run_are_gone_where_it_goes_on(bucket):
  for version in (3, 7):
    chain.ask_for(bucket, version)
    chain.call(bucket, version)
  store.withdraw_after(3, bucket)
  assert names(bucket) == []


def test_a_bucket_that_does_not_permit_it_is_no_damage():
  failed = concurrent.futures.Future()
  failed.set_exception(ValueError("PERMISSION_DENIED: Error reading s3://b/x: HTTP 403"))
  with pytest.raises(OSError, match=r"s3://b/x cannot be reached: PERMISSION.*the credentials"):
    timeouts.result(failed, "s3://b/x")


@pytest.mark.parametrize(
  "url",
  ["gs://", "gs://bucket", "gs://bucket/", "http://host/x", "s3:///x", "s3://b/x?versionId=1"],
)
def test_urls_that_name_no_place_are_refused(url):
  with pytest.raises(ValueError, match="names no place in a bucket; write gs://BUCKET/FOLDER"):
    places.of(url)


def test_places_are_as_paths_are():
  place = places.of("gs://b/runs/one/")
  assert str(place / "v1") == "gs://b/runs/one/v1"
  assert (str(place.parent), place.absolute()) == ("gs://b/runs", place)
  assert pickle.loads(pickle.dumps(place)) == place
  assert places.kvstore(place / "v1") == {"driver": "gcs", "bucket": "b", "path": "runs/one/v1/"}


def test_the_region_and_the_server_of_s3_come_from_the_surroundings(monkeypatch):
  for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
    monkeypatch.delenv(name, raising=False)
  place = places.of("s3://b/x")
  assert places.kvstore(place) == {"driver": "s3", "bucket": "b", "path": "x/"}
  monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
  assert places.kvstore(place)["aws_region"] == "eu-west-1"
  monkeypatch.setenv("AWS_ENDPOINT_URL", "https://minio:9000")
  found = places.kvstore(place)
  assert (found["endpoint"], found["aws_region"]) == ("https://minio:9000", "eu-west-1")
