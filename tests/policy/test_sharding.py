import dataclasses
import subprocess
import sys

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from tests import forced_devices
from tests.policy import tiny
from tests.policy.eight_devices import ALONE, TOGETHER

pytestmark = pytest.mark.slow


def abstract_mesh(**sizes):
  return AbstractMesh(tuple(sizes.get(axis, 1) for axis in sharding.MESH_AXES), sharding.MESH_AXES)


def test_every_parameter_has_the_partition_of_its_logical_axes():
  cfg = dataclasses.replace(tiny.GQA, vocab_size=56)
  placed = sharding.shardings(cfg, abstract_mesh(fsdp=2, expert=4, tensor=2))
  assert jax.tree.structure(placed) == jax.tree.structure(params_lib.abstract(cfg))
  moe = placed["moe_layers"]["moe"]
  assert moe["experts"]["gate_up"].spec == PartitionSpec(
    None, ("expert",), ("fsdp", "context"), None, ("tensor",)
  )
  assert moe["router"].spec == PartitionSpec(None, ("fsdp", "expert", "context"), None)
  assert placed["head"].spec == PartitionSpec(("fsdp", "expert", "context"), ("tensor",))


def test_what_projects_latents_up_is_split_along_them():
  placed = sharding.shardings(tiny.MLA, abstract_mesh(fsdp=2))["moe_layers"]["attention"]
  for name in ("q_up", "kv_up"):
    assert placed[name].spec == PartitionSpec(None, ("fsdp", "context"), ("tensor",), None)


def one_device():
  return sharding.make_mesh(devices=jax.devices()[:1])


def test_serving_keeps_the_width_of_parameters_whole():
  placed = sharding.shardings(tiny.GQA, one_device(), sharding.SERVE_RULES)
  assert placed["head"].spec == PartitionSpec(None, ("tensor",))


def test_a_mesh_that_does_not_fit_the_devices_or_the_sizes_is_refused():
  with pytest.raises(ValueError, match="needs 3 devices"):
    sharding.make_mesh(data=3, devices=jax.devices()[:1])
  with pytest.raises(ValueError, match='axis "vocab" of 53 does not divide'):
    sharding.shardings(tiny.GQA, abstract_mesh(tensor=2))


@pytest.mark.timeout(600)
def test_eight_devices_train_and_sample_as_one_on_every_axis_alone_and_together():
  """Loss and largest attention scores within 1e-5 and 1e-6 (relative, absolute), gradients within
  1e-4 and 2e-5.

  Parameters after a step within 2e-5; sampled ids and experts equal, log-probabilities within 1e-5.
  Gradients of experts when all tokens go to one device within 5e-5.
  """
  halves = [
    subprocess.Popen(
      [sys.executable, "-m", "tests.policy.eight_devices", *meshes],
      env=forced_devices.environment(8),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for meshes in (ALONE, TOGETHER)
  ]
  for process in halves:
    output, errors = process.communicate(timeout=540)
    assert output.strip() == "equal", errors[-3000:]
