"""Published weights with damaged files: never other parameters, never a traceback of a parser."""

import random
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.weights import manifest, store


@pytest.fixture(scope="module")
def published(tmp_path_factory):
  folder = tmp_path_factory.mktemp("weights")
  rng = np.random.default_rng(0)
  params = {
    "embed": jnp.asarray(rng.normal(size=(64, 8)), jnp.float32),
    "layers": {"qkv": jnp.asarray(rng.normal(size=(2, 8, 24)), jnp.bfloat16), "step": jnp.int32(3)},
  }
  store.publish(params, 7, folder)
  return folder, params


def equal(a, b):
  return all(
    np.array_equal(np.asarray(x), np.asarray(y))
    for (_, x), (_, y) in zip(store.flatten(a), store.flatten(b), strict=True)
  )


def test_a_byte_fault_in_any_file_is_detected_by_name_or_harmless(published, tmp_path):
  folder, params = published
  draw = random.Random(0)
  names = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
  assert len(names) > 5
  detected = 0
  for trial in range(12 * len(names)):
    copied = tmp_path / str(trial)
    shutil.copytree(folder, copied)
    path = copied / names[trial % len(names)]
    content = bytearray(path.read_bytes())
    if trial % 3 == 0 or not content:
      content = content[: draw.randrange(len(content) + 1)]
    else:
      content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    try:
      assert equal(store.fetch(copied, 7), params), path
    except store.CorruptWeights as error:
      detected += 1
      assert "publish the version again" in str(error) and "7" in str(error)
    shutil.rmtree(copied)
  assert detected > 6 * len(names)


def test_a_manifest_without_a_shard_is_refused_even_with_a_digest(published, tmp_path):
  folder, _ = published
  shutil.copytree(folder, tmp_path / "w")
  whole = manifest.read(folder, 7)
  tensors = tuple(
    manifest.Tensor(t.name, t.shape, t.dtype, t.shards[:-1] if t.name == "embed" else t.shards)
    for t in whole.tensors
  )
  manifest.write(tmp_path / "w", manifest.Manifest(7, None, tensors))
  with pytest.raises(store.CorruptWeights, match="embed cannot be read.*512 of its numbers are in"):
    store.fetch(tmp_path / "w", 7)


def test_a_damaged_older_manifest_does_not_stop_a_new_publication(published, tmp_path):
  folder, params = published
  shutil.copytree(folder, tmp_path / "w")
  manifest.path(tmp_path / "w", 7).write_text("{")
  store.publish(params, 8, tmp_path / "w")
  assert equal(store.fetch(tmp_path / "w", 8), params)
  with pytest.raises(
    store.CorruptWeights, match=r"manifest_v0000000007.json is damaged .*\[7, 8\]"
  ):
    store.fetch(tmp_path / "w", 7)
