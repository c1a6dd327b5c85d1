"""Adapters beside frozen matrices: what they compute, and which matrices a target names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import lora, transformer
from tests.policy import tiny


def adapted(cfg, targets, dtype=jnp.float32):
  """A policy whose adapters are past their start: b is drawn too."""
  params = jax.tree.map(lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x, tiny.init(cfg))
  params = lora.adapt(params, cfg, jax.random.key(1), rank=3, alpha=6.0, targets=targets)

  def stir(node):
    if not lora.is_adapted(node):
      return node
    draw = np.random.default_rng(node.b.size).normal(size=node.b.shape)
    return node.replace(b=jnp.asarray(0.2 * draw, jnp.float32))

  return jax.tree.map(stir, params, is_leaf=lora.is_adapted)


def product(node, stack, inputs):
  """W + 2 A B, one matrix of the stack at a time."""
  weight, a, b = (np.asarray(x, np.float64) for x in (node.weight, node.a, node.b))
  out = weight.copy()
  for place in np.ndindex(weight.shape[:stack]):
    flat_a = a[place].reshape(-1, a.shape[-1])
    flat_b = b[place].reshape(b.shape[stack], -1)
    out[place] += 2.0 * (flat_a @ flat_b).reshape(weight.shape[stack:])
  assert a.shape == (*weight.shape[: stack + inputs], 3)
  return out


@pytest.mark.slow
@pytest.mark.parametrize(
  ("cfg", "path", "stack", "inputs"),
  [
    (tiny.GQA, "dense_layers.attention.qkv", 1, 1),
    (tiny.GQA, "moe_layers.attention.out", 1, 3),
    (tiny.GQA, "moe_layers.moe.experts.gate_up", 2, 1),
    (tiny.GQA, "moe_layers.moe.shared.down", 1, 1),
    (tiny.MLA, "mtp.block.attention.kv_up", 1, 1),
    (tiny.MLA, "moe_layers.attention.out", 1, 2),
  ],
)
def test_a_merged_matrix_is_the_frozen_one_and_gain_a_b_of_each_layer_and_expert(
  cfg, path, stack, inputs
):
  """Within 1e-6 of float64 loops."""
  params = adapted(cfg, (path,))
  node, whole = params, lora.merged(params)
  for name in path.split("."):
    node, whole = node[name], whole[name]
  assert node.gain == 2.0
  np.testing.assert_allclose(whole, product(node, stack, inputs), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("cfg", "targets"),
  [(tiny.GQA, ("qkv", "gate_up", "down")), (tiny.MLA, ("kv_up", "q_down", "out", "experts.down"))],
  ids=["gqa", "mla"],
)
def test_a_pass_with_adapters_is_the_pass_of_merged_weights(cfg, targets):
  """Within 1e-5; with new adapters it is that of the frozen weights, bit by bit."""
  tokens = tiny.tokens(cfg, 2, 12)
  run = jax.jit(lambda p: transformer.forward(p, tokens, cfg).hidden)
  params = adapted(cfg, targets)
  expected = run(lora.merged(params))
  np.testing.assert_allclose(run(params), expected, atol=1e-5)
  plain = tiny.init(cfg)
  assert np.abs(expected - run(plain)).max() > 0.1
  fresh = lora.adapt(plain, cfg, jax.random.key(1), rank=3, alpha=6.0, targets=targets)
  np.testing.assert_array_equal(run(fresh), run(plain))


def test_a_target_is_a_name_or_the_end_of_a_path():
  assert lora.select(tiny.GQA, ["experts.down"]) == [
    "moe_layers.moe.experts.down",
    "mtp.block.moe.experts.down",
  ]
  assert lora.select(tiny.GQA, ["dense_layers.attention.qkv", "ffw.down"]) == [
    "dense_layers.attention.qkv",
    "dense_layers.ffw.down",
  ]
  assert len(lora.select(tiny.GQA, ["down"])) == 5


@pytest.mark.parametrize(
  ("targets", "message"),
  [
    (["qvk"], "no matrix 'qvk' inside layers; did you mean 'qkv'"),
    (["router"], "no matrix 'router' inside layers"),
    (["head"], "no matrix 'head' inside layers"),
    (["attention.q_up"], "did you mean 'attention.qkv'|did you mean 'attention.out'"),
    ([], "would train nothing"),
  ],
)
def test_a_target_that_names_no_matrix_is_an_error_with_the_nearest(targets, message):
  with pytest.raises(ValueError, match=message):
    lora.select(tiny.GQA, targets)


def test_a_rank_of_zero_is_an_error():
  with pytest.raises(ValueError, match="rank=0"):
    lora.adapt(tiny.init(tiny.DENSE), tiny.DENSE, jax.random.key(0), rank=0, alpha=1, targets=[])


def test_what_is_trained_is_the_adapters_where_there_are_any_and_all_parameters_otherwise():
  plain = tiny.init(tiny.DENSE)
  assert lora.trained(plain) is plain
  params = adapted(tiny.DENSE, ("qkv",))
  parts = lora.trained(params)
  assert len(jax.tree.leaves(parts)) == 2
  doubled = lora.with_trained(params, jax.tree.map(lambda x: 2 * x, parts))
  node = doubled["dense_layers"]["attention"]["qkv"]
  np.testing.assert_array_equal(node.a, 2 * parts["dense_layers"]["attention"]["qkv"]["a"])
  np.testing.assert_array_equal(node.weight, plain["dense_layers"]["attention"]["qkv"])
  specs = lora.trained_specs(tiny.DENSE, params)["dense_layers"]["attention"]["qkv"]
  assert specs["a"].axes == ("layers", "embed", None)
  assert specs["b"].axes == ("layers", None, "kv_heads", None, None)


def test_bfloat16_weights_are_merged_in_float32_and_rounded_once():
  params = adapted(tiny.DENSE, ("qkv",), jnp.bfloat16)
  node = params["dense_layers"]["attention"]["qkv"]
  found = lora.merge(node)
  assert found.dtype == jnp.bfloat16 and node.a.dtype == jnp.float32
  expected = product(node, 1, 1)
  np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=2.0**-8, atol=1e-6)
