"""Published weights: bitwise, visible at once, verified, collected."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxrl_agents.weights import manifest, store
from tests import forced_devices


def make_tree(seed=0):
  rng = np.random.default_rng(seed)
  return {
    "embed": jnp.asarray(rng.normal(size=(7, 5)), jnp.float32),
    "layers": {
      "qkv": rng.normal(size=(2, 3, 4)).astype(ml_dtypes.bfloat16),
      "bias": np.array([np.nan, -0.0, np.inf], np.float32),
    },
    "scale": jnp.float32(1.5),
  }


def assert_bitwise(got, expected):
  assert jax.tree.structure(got) == jax.tree.structure(expected)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    assert isinstance(a, np.ndarray)
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == np.asarray(b).tobytes()


def test_a_fetched_version_is_bitwise_the_published_one_in_its_own_dtypes(tmp_path):
  store.publish(make_tree(), 3, tmp_path)
  assert manifest.versions(tmp_path) == [3]
  assert_bitwise(store.fetch(tmp_path, 3), make_tree())
  written = manifest.read(tmp_path, 3)
  assert written.base is None
  assert [t.name for t in written.tensors] == ["embed", "layers.bias", "layers.qkv", "scale"]
  assert written.tensors[2].dtype == "bfloat16"


def test_a_version_that_is_deleted_while_it_is_read_is_missing_and_not_damaged(
  tmp_path, monkeypatch
):
  store.publish(make_tree(), 3, tmp_path)
  read = manifest.read

  def then_deleted(folder, version):
    found = read(folder, version)
    manifest.path(folder, version).unlink()
    shutil.rmtree(manifest.files(folder, version))
    return found

  monkeypatch.setattr(manifest, "read", then_deleted)
  with pytest.raises(FileNotFoundError, match="deleted while it was read"):
    store.fetch(tmp_path, 3)


def test_digests_are_those_of_the_bytes_in_memory(tmp_path):
  import hashlib

  store.publish({"w": np.arange(6, dtype=np.float32)}, 0, tmp_path)
  expected = hashlib.sha256(b"".join(np.float32(i).tobytes() for i in range(6))).hexdigest()
  tensor = manifest.read(tmp_path, 0).tensors[0]
  assert tensor.shards == (manifest.Shard((0,), (6,), expected),)


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_byte_is_found_and_its_tensor_named(tmp_path, where):
  store.publish(make_tree(), 3, tmp_path)
  chunk = next(
    p for p in (manifest.files(tmp_path, 3) / "layers.qkv" / "c").rglob("*") if p.is_file()
  )
  content = bytearray(chunk.read_bytes())
  content[int(where * len(content))] ^= 0x10
  chunk.write_bytes(content)
  with pytest.raises(store.CorruptWeights, match=r"version 3: layers\.qkv"):
    store.fetch(tmp_path, 3)


def test_a_lost_shard_file_and_a_broken_header_are_found(tmp_path):
  store.publish(make_tree(), 3, tmp_path)
  files = manifest.files(tmp_path, 3)
  header = files / "embed" / "zarr.json"
  content = header.read_text()
  header.write_text(content.replace("7", "6", 1))
  with pytest.raises(store.CorruptWeights, match="embed cannot be read"):
    store.fetch(tmp_path, 3)
  header.write_text(content)
  assert_bitwise(store.fetch(tmp_path, 3), make_tree())
  chunk = next(p for p in (files / "embed" / "c").rglob("*") if p.is_file())
  chunk.unlink()
  with pytest.raises(store.CorruptWeights, match="embed"):
    store.fetch(tmp_path, 3)


def test_files_without_a_manifest_are_no_version_and_are_replaced(tmp_path):
  store.publish(make_tree(0), 1, tmp_path)
  manifest.path(tmp_path, 1).unlink()
  assert manifest.versions(tmp_path) == []
  with pytest.raises(FileNotFoundError, match=r"no weights of version 1 .* versions \[\]"):
    store.fetch(tmp_path, 1)
  store.publish(make_tree(5), 1, tmp_path)
  assert_bitwise(store.fetch(tmp_path, 1), make_tree(5))


def test_only_the_newest_versions_are_kept(tmp_path):
  for version in (1, 2, 5):
    store.publish({"w": np.full(3, version, np.float32)}, version, tmp_path, keep=2)
  assert manifest.versions(tmp_path) == [2, 5]
  assert not manifest.files(tmp_path, 1).exists()
  manifest.files(tmp_path, 6).mkdir()  # of a process that died before its manifest
  store.publish({"w": np.full(3, 7, np.float32)}, 7, tmp_path, keep=1)
  assert manifest.versions(tmp_path) == [7]
  assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest_v0000000007.json", "v0000000007"]


def test_a_version_never_changes_and_only_dicts_of_arrays_are_published(tmp_path):
  store.publish({"w": np.zeros(2)}, 1, tmp_path)
  with pytest.raises(ValueError, match="version 1 is published"):
    store.publish({"w": np.ones(2)}, 1, tmp_path)
  with pytest.raises(ValueError, match="layers is a tuple"):
    store.publish({"layers": (np.ones(2),)}, 2, tmp_path)
  with pytest.raises(ValueError, match=r"'a\.b' under ''"):
    store.publish({"a.b": np.ones(2)}, 2, tmp_path)
  assert manifest.versions(tmp_path) == [1]


def test_manifests_are_plain_json_and_an_absent_folder_has_no_versions(tmp_path):
  store.publish({"w": np.zeros(2, np.float32)}, 4, tmp_path)
  raw = json.loads(manifest.path(tmp_path, 4).read_text())["manifest"]
  assert raw["version"] == 4 and raw["tensors"][0]["shape"] == [2]
  assert manifest.versions(tmp_path / "nowhere") == []
  with pytest.raises(FileNotFoundError, match=r"no weights of version 9 .* versions \[4\]"):
    manifest.read(tmp_path, 9)


@pytest.mark.slow
def test_the_manifest_module_needs_the_standard_library_only():
  code = "import sys; from jaxrl_agents.weights import manifest; print('numpy' in sys.modules)"
  root = pathlib.Path(__file__).parents[2]
  result = subprocess.run(
    [sys.executable, "-c", code],
    env={**os.environ, "PYTHONPATH": str(root)},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert result.stdout.strip() == "False", result.stderr


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, sys
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxrl_agents.weights import manifest, store
mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
w = jax.device_put(jnp.arange(32.0).reshape(4, 8), NamedSharding(mesh, P("x", None)))
store.publish({"w": w}, 1, sys.argv[1])
m = manifest.read(sys.argv[1], 1)
assert [s.offset for s in m.tensors[0].shards] == [(0, 0), (2, 0)], m
np.testing.assert_array_equal(store.fetch(sys.argv[1], 1)["w"], np.arange(32.0).reshape(4, 8))
chunks = [p for p in manifest.files(sys.argv[1], 1).rglob("c/**/*") if p.is_file()]
assert len(chunks) == 2, chunks
print("two shards")
"""


@pytest.mark.slow
def test_a_sharded_array_is_written_shard_by_shard_without_its_replicas(tmp_path):
  result = subprocess.run(
    [sys.executable, "-c", SHARDED, str(tmp_path)],
    env=forced_devices.environment(4),
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert "two shards" in result.stdout, result.stderr[-2000:]


PARTS = """
import jax, jax.numpy as jnp, numpy as np, pathlib, sys
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxrl_agents.weights import manifest, store
folder = sys.argv[1]
mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
values = np.arange(64.0, dtype=np.float32).reshape(8, 8)
spread = jax.device_put(values, NamedSharding(mesh, P("x", "y")))
other = lambda *axes: {"a": {"w": NamedSharding(mesh, P(*axes))}}
store.publish({"a": {"w": spread}}, 1, folder)
for axes in (("x", "y"), ("y", "x"), ("y",), (None, ("x", "y")), ()):
  got = store.fetch(folder, 1, other(*axes))["a"]["w"]
  assert got.sharding == other(*axes)["a"]["w"]
  np.testing.assert_array_equal(got, values)
whole = np.zeros((8, 8), np.float32)
for name, place, piece in store.shards(folder, 1):
  assert name == "a.w" and piece.shape == (4, 4)
  whole[place] += piece
np.testing.assert_array_equal(whole, values)
chunk = next(p for p in manifest.files(folder, 1).rglob("c/1/1"))
chunk.write_bytes(chunk.read_bytes()[:-1] + b"~")
try:
  store.fetch(folder, 1, other("x"))
except store.CorruptWeights as error:
  print(error)
"""


@pytest.mark.slow
def test_devices_are_given_their_slices_however_they_were_split_and_every_shard_is_verified(
  tmp_path,
):
  result = subprocess.run(
    [sys.executable, "-c", PARTS, str(tmp_path)],
    env=forced_devices.environment(4),
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.stdout.startswith("version 1: a.w"), result.stdout + result.stderr[-2000:]


def test_a_version_whose_parts_are_not_all_there_does_not_appear(tmp_path):
  store.begin(4, tmp_path)
  store.publish({"w": np.ones(3)}, 4, tmp_path, part=1, parts=2)  # part 0 writes such arrays
  with pytest.raises(ValueError, match="part_0.json was not written"):
    store.join_parts(4, tmp_path, parts=2)
  with pytest.raises(ValueError, match="part_0.json was not written"):
    store.join_parts(4, tmp_path, parts=1)
  (manifest.files(tmp_path, 4) / "part_1.json").rename(manifest.files(tmp_path, 4) / "part_0.json")
  with pytest.raises(ValueError, match="the parts do not make up w"):
    store.join_parts(4, tmp_path, parts=1)
  assert manifest.versions(tmp_path) == []


def test_versions_after_a_checkpoint_are_withdrawn_and_can_be_published_again(tmp_path):
  for version in (0, 4, 8):
    store.publish(make_tree(version), version, tmp_path, keep=3)
  assert store.withdraw_after(4, tmp_path) == [8]
  assert manifest.versions(tmp_path) == [0, 4]
  store.publish(make_tree(1), 8, tmp_path, keep=3)
  assert_bitwise(store.fetch(tmp_path, 8), make_tree(1))
