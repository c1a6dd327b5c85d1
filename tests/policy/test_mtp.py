import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import kernel_choice, mtp, sharding
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention import layer
from tests.policy import tiny

modules = jax.jit(mtp.mtp, static_argnums=3)


def trunk_states(cfg, rows, length):
  return jnp.asarray(
    np.random.default_rng(7).normal(size=(rows, length, cfg.embed_dim)), jnp.float32
  )


@pytest.mark.slow
def test_modules_equal_plain_loops_and_deeper_ones_read_further_tokens():
  cfg = dataclasses.replace(tiny.GQA, mtp_depth=2)
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, 1, 8)
  hidden = trunk_states(cfg, 1, 8)
  next_tokens = mtp.shift_left(ids, 1)
  got = modules(params, hidden, next_tokens, cfg)

  plain = jax.tree.map(lambda a: np.asarray(a, np.float64), params_lib.unstack(params))
  state, tokens = np.asarray(hidden[0], np.float64), np.asarray(ids[0])
  for depth, module in enumerate(plain["mtp"], start=1):
    ahead = np.append(tokens[depth:], np.zeros(depth, int))
    merged = np.concatenate(
      [
        tiny.norm(state, module["hidden_norm"]),
        tiny.norm(plain["embed"][ahead], module["embed_norm"]),
      ],
      axis=-1,
    )
    block, x = module["block"], merged @ module["merge"]
    x = x + tiny.grouped_attention(block["attention"], tiny.norm(x, block["attention_norm"]), cfg)
    x = x + tiny.mixture(block["moe"], tiny.norm(x, block["ffw_norm"]), cfg)
    state = tiny.norm(x, module["final_norm"])
    np.testing.assert_allclose(got[depth - 1, 0], state, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("cfg", [tiny.GQA, tiny.MLA], ids=["gqa", "mla"])
def test_drafting_from_the_cache_equals_the_training_pass(monkeypatch, cfg, platform):
  cfg = dataclasses.replace(cfg, kernels="reference")
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, 2, 10)
  hidden, next_tokens = trunk_states(cfg, 2, 10), jnp.roll(ids, -1, axis=1)
  whole = modules(params, hidden, next_tokens, cfg)[0]
  cache = cache_lib.init(cfg, 7, 4)
  table = jnp.asarray([[2, 5, 1], [3, 4, 6]])
  monkeypatch.setattr(kernel_choice, "platform", lambda: platform)
  held, decode = sharding.served(params), jax.jit(mtp.mtp_decode, static_argnums=3)
  got, at = [], 0
  for count in (6, 1, 1, 2):
    states, cache = decode(
      held,
      hidden[:, at : at + count],
      next_tokens[:, at : at + count],
      cfg,
      cache,
      page_table=table,
      lengths=jnp.full(2, at),
      num_new=jnp.full(2, count),
    )
    got.append(states)
    at += count
  np.testing.assert_allclose(jnp.concatenate(got, axis=1), whole, atol=1e-5)
  np.testing.assert_array_equal(cache.pages[: cfg.num_layers], 0.0)


@pytest.mark.slow
def test_detached_inputs_leave_gradients_to_the_modules_alone():
  cfg = tiny.GQA
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, 1, 6)
  hidden = trunk_states(cfg, 1, 6)

  @jax.jit
  def grads(params):
    def loss(params):
      frozen = jax.tree.map(jax.lax.stop_gradient, params) | {"mtp": params["mtp"]}
      out = mtp.mtp(frozen, hidden, ids, cfg)
      return jnp.sum(jnp.sin(out))

    return jax.grad(loss)(params)

  found = grads(params)
  assert all(not np.any(leaf) for leaf in jax.tree.leaves(found | {"mtp": None}))
  assert np.any(np.asarray(found["mtp"]["merge"]))


def test_shifted_tokens_end_in_zeros_and_paths_end_at_sequences_and_forks():
  np.testing.assert_array_equal(mtp.shift_left(jnp.asarray([[1, 2, 3]]), 2), [[3, 0, 0]])
  # Tokens 0, 1, 2, a second branch 3, 4 of token 1, and another sequence 5.
  rows = layer.Rows(jnp.asarray([[5, 5, 3, 5, 5, 6]]), jnp.asarray([[0, 1, 2, 2, 3, 0]]))
  places = jnp.arange(6)[None]
  assert mtp.is_path(rows, places, 1).tolist() == [[False, True, True, False, True, False]]
  assert mtp.is_path(rows, places, 2).tolist() == [[False, False, True, False, False, False]]
