"""bfloat16 parameters: what is rounded, what stays float32, and that training goes on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner import state, train_step
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import causal
from jaxrl_agents.policy.experts import local, moe
from tests.learner import test_train_step as float32
from tests.policy import tiny


def rounded(params, cfg):
  abstract = params_lib.abstract(cfg, jnp.bfloat16)
  return jax.tree.map(lambda x, like: x.astype(like.dtype), params, abstract)


def flat(tree):
  return np.concatenate([np.asarray(x, np.float32).ravel() for x in jax.tree.leaves(tree)])


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [tiny.GQA, tiny.MLA, tiny.BIASED], ids=["gqa", "mla", "biased"])
def test_a_bfloat16_pass_agrees_with_float32_within_its_rounding(cfg):
  """Log-probabilities within 0.15 and 0.03 in the mean, with the same experts."""
  params = tiny.init(cfg)
  tokens = tiny.tokens(cfg, 2, 40)

  @jax.jit
  def run(params, routing):
    out = transformer.forward(params, tokens, cfg, routing=routing)
    return out, transformer.token_logprobs(params, out.hidden, jnp.roll(tokens, -1, 1), cfg)

  nothing = jnp.full((*tokens.shape, cfg.num_moe_layers, cfg.experts_per_token), -1, jnp.int32)
  wide, (expected, _) = run(params, nothing)
  narrow, (logprobs, entropy) = run(rounded(params, cfg), wide.routing)
  assert narrow.hidden.dtype == jnp.bfloat16
  assert logprobs.dtype == entropy.dtype == jnp.float32
  gap = np.abs(logprobs - expected)
  assert gap.max() < 0.15 and gap.mean() < 0.03, (gap.max(), gap.mean())
  np.testing.assert_array_equal(narrow.routing, wide.routing)


@pytest.mark.slow
def test_routers_score_and_weigh_in_float32():
  params = rounded(tiny.init(tiny.GQA), tiny.GQA)
  weights = jax.tree.map(lambda x: x[0], params["moe_layers"]["moe"])
  assert weights["router"].dtype == weights["router_bias"].dtype == jnp.float32
  x = jnp.asarray(np.random.default_rng(0).normal(size=(7, 16)), jnp.bfloat16)
  weight, experts = moe.route(weights, x, tiny.GQA)
  scores = 1 / (1 + np.exp(-np.asarray(x, np.float64) @ np.asarray(weights["router"], np.float64)))
  chosen = np.take_along_axis(scores, np.asarray(experts), axis=-1)
  expected = tiny.GQA.route_scale * chosen / chosen.sum(axis=-1, keepdims=True)
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


@pytest.mark.slow
def test_gradients_of_bfloat16_parameters_are_summed_in_float32_and_point_the_same_way():
  """Cosine with those of float32 above 0.995; the sum of three microbatches is float32."""
  params = params_lib.init(float32.CFG, jax.random.key(0))
  batches = float32.pack(float32.make_rollouts(), rows=1)
  assert len(batches) > 2
  wide = float32.total_gradients(params, batches, float32.SFT)
  narrow = float32.total_gradients(rounded(params, float32.CFG), batches, float32.SFT)
  assert {x.dtype for x in jax.tree.leaves(narrow.grads)} == {np.dtype(np.float32)}
  a, b = flat(wide.grads), flat(narrow.grads)
  assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.995


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "dtype"), [("adamw8bit", "float32"), ("muon", "bfloat16"), ("adamw", "bfloat16")]
)
def test_supervised_updates_learn_the_examples_by_heart(kind, dtype):
  tx = state.make_optimizer(float32.CFG, learning_rate=3e-2, kind=kind, dtype=dtype)
  current = state.init_state(float32.CFG, tx, jax.random.key(1), dtype)
  batches = float32.pack(float32.make_rollouts())
  losses = []
  for _ in range(40):
    current, metrics = train_step.update(current, batches, float32.CFG, float32.SFT, tx)
    losses.append(metrics["loss"])
  assert losses[0] > 3
  assert losses[-1] < 0.6
  assert current.policy.params["embed"].dtype == dtype


def plain_peaks(q, k, segments):
  """Largest scaled score of each head by loops over queries and keys that they see."""
  rows, groups, shared, length, width = q.shape
  top = np.full((groups, shared), -np.inf)
  for b, g, r, i in np.ndindex(rows, groups, shared, length):
    for j in range(i + 1):
      if segments[b, i] == segments[b, j] != 0:
        top[g, r] = max(top[g, r], q[b, g, r, i] @ k[b, g, j] / np.sqrt(width))
  return top


def test_the_largest_scores_are_those_of_pairs_that_attend_and_padding_has_none(monkeypatch):
  monkeypatch.setattr(causal, "SHORT_BLOCK", 4)
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 2, 3, 10, 4)), rng.normal(size=(2, 2, 10, 4))
  segments = np.array([[1] * 4 + [2] * 3 + [0] * 3, [1] * 10])
  q[0, :, :, 8:], k[0, :, 8:] = 30, 30
  ends = jnp.asarray([[4] * 4 + [7] * 3 + [0] * 3, [10] * 10])
  depths = jnp.asarray([[*range(4), *range(3), 0, 0, 0], [*range(10)]])
  found = causal.largest_scores(*map(jnp.float32, (q, k)), ends, depths)
  np.testing.assert_allclose(found, plain_peaks(q, k, segments), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_after_qk_clip_the_scores_of_the_same_batch_are_within_the_bound(attention):
  """A learning rate of 0 leaves the clip alone to act; the largest score falls to the bound."""
  cfg = tiny.MLA if attention == "mla" else tiny.GQA
  cfg = dataclasses.replace(cfg, qk_norm=False, num_kv_heads=cfg.num_kv_heads and 4)
  params = tiny.init(cfg)
  tokens = tiny.tokens(cfg, 2, 12)
  peaks = jax.jit(
    lambda p: transformer.forward(p, tokens, cfg, attention_peaks=True).attention_peaks
  )
  before = np.asarray(peaks(params))
  assert before.shape == (cfg.num_layers, cfg.num_heads)
  bound = float(np.median(before[0]))
  tx = state.make_optimizer(cfg, learning_rate=0.0, qk_clip=bound)
  current = state.make_state(params, tx, jax.random.key(0))
  zeros = jax.tree.map(jnp.zeros_like, params)
  current, _ = train_step.apply(current, zeros, tx, jnp.asarray(before))
  after = np.asarray(peaks(current.policy.params))
  # The first layer sees the same inputs as before: each of its heads is at min(score, bound).
  np.testing.assert_allclose(after[0], np.minimum(before[0], bound), rtol=1e-5)


@pytest.mark.slow
def test_an_objective_with_attention_peaks_reports_the_largest_of_all():
  objective = dataclasses.replace(float32.SFT, attention_peaks=True)
  cfg = dataclasses.replace(float32.CFG, qk_norm=False)
  tx = state.make_optimizer(cfg, learning_rate=1e-3, qk_clip=0.05)
  current = state.init_state(cfg, tx, jax.random.key(1))
  batches = float32.pack(float32.make_rollouts())
  one = train_step.gradients(current.policy.params, batches[0], cfg, objective)
  assert one.maxima["attention_score_max"].shape == (1, 2)
  current, first = train_step.update(current, batches, cfg, objective, tx)
  for _ in range(3):
    current, last = train_step.update(current, batches, cfg, objective, tx)
  assert first["attention_score_max"] > 0.1 > last["attention_score_max"]


def test_the_gradient_of_a_row_that_is_read_thousands_of_times_is_summed_in_float32():
  """In bfloat16 a sum of ones stands still at 256."""
  table = jnp.zeros((3, 4), jnp.bfloat16)
  tokens = jnp.asarray([[1] * 4_096 + [2]])
  total = lambda table: transformer.embed({"embed": table}, tokens).astype(jnp.float32).sum()
  found = jax.grad(total)(table)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found[:, 0], [0, 4_096, 1])


def test_blocks_of_one_expert_are_summed_in_float32():
  """The gradient of bfloat16 experts is as near to that of float32 as one rounding allows."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / 4, jnp.bfloat16)
  experts = {"gate_up": draw(1, 16, 2, 8), "down": draw(1, 8, 16)}
  x, choice = draw(4_096, 16), jnp.zeros((4_096, 1), jnp.int32)
  weight = jnp.ones((4_096, 1), jnp.bfloat16)

  def gradient(dtype):
    cast = jax.tree.map(lambda a: a.astype(dtype), (experts, x, weight))
    total = lambda e: local.blocks(e, cast[1], cast[2], choice).astype(jnp.float32).sum()
    return flat(jax.grad(total)(cast[0]))

  wide, narrow = gradient(jnp.float32), gradient(jnp.bfloat16)
  assert np.linalg.norm(narrow - wide) < 5e-3 * np.linalg.norm(wide)
