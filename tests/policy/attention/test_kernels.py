"""Kernels of accelerators: against the plain code where they can be interpreted, else lowered."""

import dataclasses
import functools
import importlib.util
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import kernel_choice, sharding, transformer
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.attention import (
  cache,
  causal,
  flash_gpu,
  layer,
  paged,
  ragged_tpu,
  splash_tpu,
)
from jaxrl_agents.policy.experts import grouped_matmul, local
from jaxrl_agents.policy.experts.local import Clamp
from tests.policy import tiny, triton_kernels


def draws(*shapes, seed=0):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def both(function, inputs, cotangent):
  """Value and gradients."""
  out, pull = jax.vjp(function, *inputs)
  return out, pull(cotangent)


def close(found, expected, **tolerance):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_grouped_products_equal_dense_ones_forward_and_backward(kind, biased):
  """Expert 1 gets nobody; some tokens have one expert only or none."""
  tokens, held, embed, width = 150, 5, 6, 4
  x, weight, cotangent = draws((tokens, embed), (tokens, 2), (tokens, embed))
  gate_up, down, gate_up_bias, down_bias = draws(
    (held, embed, 2, width), (held, width, embed), (held, 2, width), (held, embed), seed=1
  )
  arrays = {"gate_up": gate_up, "down": down}
  clamp = None
  if biased:
    arrays |= {"gate_up_bias": gate_up_bias, "down_bias": down_bias}
    clamp = Clamp(1.5, 1.702)
  choice = np.random.default_rng(2).choice([0, 2, 3, 4, 5], (tokens, 2))
  choice[:3] = held
  choice = jnp.asarray(choice, jnp.int32)
  weight = jnp.where(choice < held, weight, 0.0)

  def run(function):
    def of(arrays, x, weight):
      return function(arrays, x, jnp.where(choice < held, weight, 0.0), choice, clamp)

    return both(of, (arrays, x, weight), cotangent)

  found = run(functools.partial(grouped_matmul.apply, kernels=kind, interpret=True))
  close(found, run(local.dense), atol=5e-5)


LENGTH = 256


def rows_of(width, value_width):
  """q, k, v, cotangent of two rows; the ends and depths of their sequences, padding last."""
  shapes = (2, 2, 2, LENGTH, width), (2, 2, LENGTH, width), (2, 2, LENGTH, value_width)
  arrays = draws(*shapes, (2, 2, 2, LENGTH, value_width))
  ends, depths = np.zeros((2, 2, LENGTH), np.int32)
  for row, first, last in ((0, 0, 100), (0, 100, 240), (1, 0, LENGTH)):
    ends[row, first:last], depths[row, first:last] = last, np.arange(last - first)
  return *arrays, jnp.asarray(ends), jnp.asarray(depths)


def without_padding(function, ends):
  """`function` with zeros for padding, whose output means nothing."""
  valid = (ends > 0)[:, None, None, :, None]
  return lambda *inputs: jnp.where(valid, function(*inputs), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 40, LENGTH])
def test_splash_attention_equals_tiles_with_sinks_windows_and_narrow_values(window):
  *inputs, cotangent, ids, depths = rows_of(48, 32)
  inputs += draws((2, 2), seed=3)
  given = None if window is None else jnp.asarray(window)
  made = splash_tpu.masks(LENGTH, 40 if window else 0, interpret=True)

  def kernel(q, k, v, sinks):
    return splash_tpu.attend(made, q, k, v, ids, ids, sinks, given)

  plain = lambda q, k, v, sinks: causal.attend(q, k, v, ids, depths, sinks, given)
  kernel, plain = without_padding(kernel, ids), without_padding(plain, ids)
  close(both(kernel, inputs, cotangent), both(plain, inputs, cotangent), atol=2e-4)


def test_splash_attention_of_a_part_of_the_queries_sees_the_keys_before_them():
  q, k, v, _, ids, depths = rows_of(32, 32)
  made = splash_tpu.masks(LENGTH, 0, time_ways=2, interpret=True)
  second = jax.tree.map(
    lambda spec, leaf: jnp.split(leaf, 2, axis=spec.index("time"))[1] if "time" in spec else leaf,
    splash_tpu.specs(made, half_of_time()),
    made,
    is_leaf=lambda node: isinstance(node, jax.sharding.PartitionSpec),
  )
  late = slice(LENGTH // 2, None)
  found = splash_tpu.attend(second, q[..., late, :], k, v, ids[:, late], ids, None, None)
  valid = (ids[:, late] > 0)[:, None, None, :, None]
  plain = causal.attend(q, k, v, ids, depths)[..., late, :]
  close(jnp.where(valid, found, 0.0), jnp.where(valid, plain, 0.0), atol=2e-5)


def half_of_time():
  mesh = jax.sharding.AbstractMesh((1, 2), ("heads", "time"))
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("heads", "time"))


@pytest.mark.slow
@pytest.mark.parametrize("value_width", [16, 64])
def test_flash_attention_of_gpus_equals_tiles_with_shared_keys_and_other_widths_of_values(
  value_width,
):
  *inputs, cotangent, ids, depths = rows_of(32, value_width)
  kernel = without_padding(lambda q, k, v: flash_gpu.attend(q, k, v, ids, interpret=True), ids)
  plain = without_padding(lambda q, k, v: causal.attend(q, k, v, ids, depths), ids)
  close(both(kernel, inputs, cotangent), both(plain, inputs, cotangent), atol=2e-4)


def test_kernels_are_chosen_by_what_is_compiled_for_and_can_be_turned_off():
  assert kernel_choice.kind(tiny.GQA) == "reference"
  assert kernel_choice.kind(dataclasses.replace(tiny.GQA, kernels="tpu")) == "tpu"
  plain = {"sinks": False, "windows": False, "forks": False}
  assert kernel_choice.for_rows("tpu", 128, 256, sinks=True, windows=True, forks=False) == "splash"
  assert kernel_choice.for_rows("tpu", 128, 128, **plain | {"forks": True}) == "tree_flash"
  assert kernel_choice.for_rows("gpu", 128, 128, **plain | {"forks": True}) == "tree_flash"
  assert kernel_choice.for_rows("gpu", 100, 100, **plain | {"forks": True}) == "reference"
  assert kernel_choice.for_rows("tpu", 100, 100, **plain) == "reference"
  assert kernel_choice.for_rows("gpu", 256, 256, **plain) == "flash"
  assert kernel_choice.for_rows("gpu", 128, 256, **plain) == "tree_flash"
  assert kernel_choice.for_rows("gpu", 256, 256, **plain | {"sinks": True}) == "tree_flash"
  assert kernel_choice.for_rows("reference", 256, 256, **plain) == "reference"
  wide = dataclasses.replace(tiny.GQA, kernels="tpu", head_dim=128)
  assert kernel_choice.for_cache(wide, jnp.float32, 1, 1) == "tpu"
  assert (
    kernel_choice.for_cache(wide, jnp.bfloat16, 4, 1) == "reference"
  )  # half a key and value head each
  of_cache = lambda cfg, queries=1: kernel_choice.for_cache(cfg, jnp.float32, 1, queries)
  assert of_cache(dataclasses.replace(wide, sinks=True)) == "reference"
  assert of_cache(dataclasses.replace(wide, head_dim=64)) == "reference"
  latents = dataclasses.replace(tiny.MLA, kv_lora_rank=512, qk_rope_dim=64)
  assert of_cache(dataclasses.replace(latents, kernels="tpu")) == "reference"
  for cfg in (wide, dataclasses.replace(wide, head_dim=64, sinks=True), latents):
    of_gpu = dataclasses.replace(cfg, kernels="gpu")
    assert of_cache(of_gpu, 16) == "gpu"
    assert of_cache(of_gpu, 17) == "reference"
  assert of_cache(dataclasses.replace(wide, kernels="gpu", head_dim=96)) == "reference"
  for latent, rope, chosen in ((64, 24, "reference"), (64, 8, "reference"), (32, 32, "gpu")):
    narrow = dataclasses.replace(tiny.MLA, kernels="gpu", kv_lora_rank=latent, qk_rope_dim=rope)
    assert of_cache(narrow) == chosen


@pytest.mark.slow
def test_what_ragged_paged_attention_is_given_means_what_the_loop_over_pages_computes():
  """By the kernel's own reference: it cannot be interpreted. The second of two layers, rows of
  different lengths, one without work.
  """
  from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel

  layers, count, page_tokens, groups, repeats, width = 2, 9, 16, 2, 2, 8
  q, entries = draws(
    (3, 3, groups, repeats, width), (layers, count, page_tokens, 2 * groups, width)
  )
  pages = cache.PagedCache(entries)
  table = jnp.asarray([[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 0, 0]], jnp.int32)
  step = cache.plan_step(pages, table, jnp.asarray([45, 17, 1]), jnp.asarray([3, 2, 0]), 3)
  given = ragged_tpu.arguments(q, entries, jnp.asarray(1), table, step.positions[:, 0])
  found = kernel.ref_ragged_paged_attention(*given, sm_scale=0.1).reshape(q.shape)
  split = lambda entries: (entries[:, :, 0::2], entries[:, :, 1::2])
  expected = paged.attend(q, entries, 1, step, split, 0.1)
  for row, real in enumerate((3, 2)):
    close(found[row, :real], expected[row, :real], atol=2e-5)


FAMILIES = {"gqa": tiny.GQA, "mla": tiny.MLA, "sinks": tiny.BIASED}


def gradients_of(cfg, rows, forks=False):
  """A jitted gradient of the trunk, and its abstract arguments (without shardings)."""

  def loss(params, tokens, ends):
    cotangent = jnp.cos(jnp.arange(cfg.embed_dim))
    trees = layer.Rows(ends, layer.one_sequence(tokens).depths, has_forks=forks)
    hidden = transformer.forward(params, tokens, cfg, rows=trees, remat="layer").hidden
    return jnp.sum(hidden * cotangent)

  ids = jax.ShapeDtypeStruct((rows, LENGTH), jnp.int32)
  return jax.jit(jax.grad(loss)), (params_lib.abstract(cfg), ids, ids)


@pytest.mark.slow
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("kind", "platform"), [("tpu", "tpu"), ("gpu", "cuda")])
def test_training_lowers_for_accelerators_without_one(kind, platform, family, forks):
  cfg = dataclasses.replace(FAMILIES[family], kernels=kind)
  function, arguments = gradients_of(cfg, 1, forks)
  lowered = function.trace(*arguments).lower(lowering_platforms=(platform,))
  text = lowered.as_text()
  ours = forks or (kind == "gpu" and cfg.sinks)
  assert ("tree_attention" in text) == ours
  if kind == "tpu":
    assert "tpu_custom_call" in text
  else:
    names = triton_kernels.verified(lowered)
    for name in ("grouped_product", "grouped_product_of_matrices"):
      assert name in names
    assert ("mha_forward" in names) == (not ours)


MESHES = {
  "gqa": {"fsdp": 2, "expert": 2},
  "mla": {"expert": 2, "context": 2},
  "sinks": {"expert": 2, "tensor": 2},
}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra libtpu")
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_training_on_a_mesh_compiles_for_tpu_with_every_kernel(family, forks):
  os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3"}
  from jax.experimental import topologies

  devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
  mesh = sharding.make_mesh(**MESHES[family], devices=list(devices))
  cfg = dataclasses.replace(FAMILIES[family], vocab_size=56)
  function, (params, ids, ends) = gradients_of(cfg, 4, forks)
  placed = lambda like, place: jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=place)
  rows = sharding.spec(("batch", "time"), sharding.TRAIN_RULES)
  rows = jax.sharding.NamedSharding(mesh, rows)
  with jax.set_mesh(mesh):
    assert kernel_choice.kind(cfg) == "tpu"
    params = jax.tree.map(placed, params, sharding.shardings(cfg, mesh))
    lowered = function.lower(params, placed(ids, rows), placed(ends, rows))
  text = lowered.as_text()
  for kernel in ("gmm", "tree_attention" if forks else "splash"):
    assert kernel in text
  assert lowered.compile().memory_analysis().temp_size_in_bytes > 0


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra libtpu")
@pytest.mark.parametrize("new_tokens", [1, 64])
def test_decoding_and_prefill_on_a_mesh_compile_for_tpu_with_the_kernel(new_tokens):
  os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3"}
  from jax.experimental import topologies

  devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
  mesh = sharding.make_mesh(data=2, tensor=2, devices=list(devices))
  placed = lambda shape, dtype, *axes: jax.ShapeDtypeStruct(
    shape,
    dtype,
    sharding=jax.sharding.NamedSharding(mesh, sharding.spec(axes, sharding.SERVE_RULES)),
  )
  q = placed((4, new_tokens, 4, 2, 128), jnp.bfloat16, "batch", None, "kv_heads")
  pages = placed((2, 18, 64, 8, 128), jnp.bfloat16, None, "batch", None, "kv_heads")
  ids = lambda *shape: placed(shape, jnp.int32, "batch")

  def of_device(q, pages, table, positions):
    step = cache.Step(table, positions, positions, positions)
    return ragged_tpu.attend(q, pages, 1, step, 0.1)

  def attend(*arrays):
    specs = [array.sharding.spec for array in (q, pages, ids(4, 8), ids(4, new_tokens))]
    return jax.shard_map(
      of_device, in_specs=tuple(specs), out_specs=q.sharding.spec, check_vma=False
    )(*arrays)

  with jax.set_mesh(mesh):
    lowered = jax.jit(attend).lower(q, pages, ids(4, 8), ids(4, new_tokens))
    memory = lowered.compile().memory_analysis()
  assert "ragged_paged_attention" in lowered.as_text()
  assert memory.temp_size_in_bytes < 2 * 9 * 64 * 4 * 128 * 2  # no copy of the pages
