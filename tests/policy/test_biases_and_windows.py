"""Sinks, windows, biases and the clamped activation against plain loops and autodiff."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner import state as state_lib
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.experts import local as dispatch
from jaxrl_agents.policy.experts import moe
from tests.policy import tiny
from tests.policy.test_transformer import decoded, forward

CFG = tiny.BIASED
ROWS, LENGTH = 2, 23


def plain_hidden(params, ids, cfg):
  """Final hidden states of one row, one head, query, token and expert at a time: [T, D]."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params_lib.unstack(params))
  x = params["embed"][np.asarray(ids)]
  for i, layer in enumerate(params["moe_layers"]):
    window = cfg.window_tokens if i % 2 == 0 else len(ids)
    x = x + plain_attention(layer["attention"], tiny.norm(x, layer["attention_norm"]), cfg, window)
    x = x + plain_mixture(layer["moe"], tiny.norm(x, layer["ffw_norm"]), cfg)
  return tiny.norm(x, params["final_norm"])


def plain_attention(weights, x, cfg, window):
  length, shared = len(x), cfg.num_heads // cfg.num_kv_heads
  out = np.tile(weights["out_bias"], (length, 1))
  for g in range(cfg.num_kv_heads):
    qkv = np.einsum("td,drh->rth", x, weights["qkv"][:, g]) + weights["qkv_bias"][g][:, None]
    turned = [
      [tiny.rotated(row[t], t, cfg.rope_theta) for t in range(length)] for row in qkv[: shared + 1]
    ]
    for r in range(shared):
      for t in range(length):
        first = max(0, t - window + 1)
        scores = [turned[r][t] @ turned[-1][s] * cfg.head_dim**-0.5 for s in range(first, t + 1)]
        mix = tiny.softmax(np.array([*scores, weights["sinks"][g, r]]))[:-1]
        out[t] += mix @ qkv[-1, first : t + 1] @ weights["out"][g, r]
  return out


def plain_mixture(weights, x, cfg):
  out = np.zeros_like(x)
  experts = weights["experts"]
  for n, token in enumerate(x):
    logits = token @ weights["router"] + weights["router_logit_bias"]
    biased = tiny.softmax(logits) + weights["router_bias"]
    best = np.argsort(-biased, kind="stable")[: cfg.experts_per_token]
    for e, share in zip(best, tiny.softmax(logits[best]), strict=True):
      gate, up = np.einsum("d,dhf->hf", token, experts["gate_up"][e]) + experts["gate_up_bias"][e]
      gate, up = np.minimum(gate, 1.5), np.clip(up, -1.5, 1.5)
      mixed = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
      out[n] += share * (mixed @ experts["down"][e] + experts["down_bias"][e])
  return out


def test_forward_equals_plain_loops():
  params = tiny.init(CFG)
  ids = tiny.tokens(CFG, 1, 13)
  out = forward(params, ids, CFG)
  np.testing.assert_allclose(out.hidden[0], plain_hidden(params, ids[0], CFG), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("unstacked", [False, True], ids=["scanned", "unrolled"])
def test_prefill_in_chunks_and_single_tokens_equal_the_training_forward(unstacked):
  """Pages of 4 tokens, 8 to a round: windows of 5 begin inside, at and after a round's first."""
  params = tiny.init(CFG)
  ids = tiny.tokens(CFG, ROWS, LENGTH)
  whole = forward(params, ids, CFG)
  layers = params_lib.unstack(params) if unstacked else params
  hidden, routing, _ = decoded(layers, ids, CFG, [(8, 8), (5, 8)] + [(1, 1)] * 10)
  np.testing.assert_allclose(hidden, whole.hidden, atol=1e-5)
  np.testing.assert_array_equal(routing, whole.routing)


@pytest.mark.parametrize("clamp", [None, dispatch.Clamp(1.5, 1.702)], ids=["silu", "clamped"])
def test_blocks_of_experts_with_biases_agree_with_dense_ones_forward_and_backward(clamp):
  experts = jax.tree.map(lambda leaf: leaf[0], tiny.init(CFG)["moe_layers"]["moe"]["experts"])
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(90, 16)), jnp.float32)
  weight = jnp.asarray(rng.uniform(size=(90, 2)), jnp.float32)
  choice = jnp.asarray(np.argsort(rng.random((90, 8)), axis=-1)[:, :2], jnp.int32)
  choice = choice.at[7].set(8)  # a token of padding
  cotangent = jnp.asarray(rng.normal(size=x.shape), jnp.float32)

  def both(function):
    @jax.jit
    def run(*inputs):
      out, pull = jax.vjp(lambda e, x, w: function(e, x, w, choice, clamp), *inputs)
      return out, pull(cotangent)

    return run(experts, x, weight)

  out, gradients = both(dispatch.blocks)
  assert set(gradients[0]) == {"gate_up", "gate_up_bias", "down", "down_bias"}
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5),
    (out, gradients),
    both(dispatch.dense),
  )


def test_the_clamped_activation_is_the_formula():
  x = jnp.asarray([[9.0, -9.0, 1.0, 2.0, 9.0, -9.0]])  # gates 9, -9, 1; ups 2, 9, -9
  out = np.asarray(dispatch.gate(x, dispatch.Clamp(7.0, 1.702)))[0]
  swish = lambda gate: gate / (1 + np.exp(-1.702 * gate))
  np.testing.assert_allclose(out, [swish(7.0) * 3, swish(-9.0) * 8, swish(1.0) * -6], rtol=1e-6)


def test_a_router_bias_moves_both_choice_and_weights():
  weights = {
    "router": jnp.eye(4),
    "router_bias": jnp.zeros(4),
    "router_logit_bias": jnp.asarray([0.0, 0.0, 0.0, 3.0]),
  }
  cfg = dataclasses.replace(CFG, num_experts=4)
  weight, chosen = moe.route(weights, jnp.asarray([[2.0, 1.0, 0.5, -1.5]]), cfg)
  assert chosen[0].tolist() == [0, 3]
  np.testing.assert_allclose(weight[0], tiny.softmax(np.array([2.0, 1.5])), rtol=1e-6)


@pytest.mark.slow
def test_every_bias_and_sink_has_a_gradient_but_the_selection_bias_and_none_is_decayed():
  params = tiny.init(CFG)
  ids = tiny.tokens(CFG, 1, 9)

  @jax.jit
  def gradient(params):
    loss = lambda p: jnp.sum(forward(p, ids, CFG).hidden ** 3)
    return jax.grad(loss)(params)

  tx = state_lib.make_optimizer(CFG, learning_rate=1.0, weight_decay=0.1)
  nothing = jax.tree.map(jnp.zeros_like, params)
  decay, _ = tx.update(nothing, tx.init(params), params)
  for path, found in jax.tree_util.tree_leaves_with_path(gradient(params)):
    name = path[-1].key
    if name.endswith("_bias") or name == "sinks":
      assert bool(jnp.any(found != 0)) == (name != "router_bias"), name
  for path, found in jax.tree_util.tree_leaves_with_path(decay):
    name = path[-1].key
    kept = name.endswith(("norm", "_bias")) or name == "sinks"
    assert bool(jnp.any(found != 0)) != kept, name


@pytest.mark.parametrize(
  ("change", "says"),
  [
    ({"window_tokens": 0}, "set both, or leave 0 and 1"),
    ({"full_attention_every": 1}, "set both, or leave 0 and 1"),
    ({"swiglu_limit": 0.0}, "swiglu_alpha 1.702 has no effect"),
    ({"scale_tied_head": False}, "no effect without tie_embeddings"),
  ],
)
def test_numbers_that_contradict_each_other_are_refused(change, says):
  with pytest.raises(ValueError, match=says):
    dataclasses.replace(CFG, **change)


@pytest.mark.parametrize("name", ["sinks", "biases"])
def test_latent_attention_has_neither_sinks_nor_biases(name):
  with pytest.raises(ValueError, match=f"{name} works with attention='gqa' only"):
    dataclasses.replace(tiny.MLA, **{name: True})


def test_with_the_numbers_at_their_defaults_no_parameter_is_added():
  names = {
    path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(params_lib.abstract(tiny.GQA))
  }
  assert not any(n.endswith("_bias") and n != "router_bias" for n in names) and "sinks" not in names
