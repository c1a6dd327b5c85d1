"""Copying heads: the untrained policy leans to what followed last time; what cannot is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import copying_heads, params, transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.policy.config import PolicyConfig

CFG = PolicyConfig(
  vocab_size=300,
  embed_dim=128,
  num_layers=4,
  num_heads=4,
  num_kv_heads=2,
  head_dim=32,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=64,
  qk_norm=False,
  rope_theta=1e6,
  tie_embeddings=True,
)


def advantage(weights):
  """The logit of the token that followed last time, in standard deviations above the others."""
  string = np.random.default_rng(0).integers(0, CFG.vocab_size, (16, 20))
  tokens = jnp.asarray(np.tile(string, (1, 2)), jnp.int32)
  places = jnp.broadcast_to(jnp.arange(40), tokens.shape)
  out = transformer.forward(
    weights, tokens, CFG, rows=layer.Rows(jnp.full_like(tokens, tokens.shape[1]), places)
  )
  logits = np.asarray(out.hidden @ weights["embed"].T)[:, 20:-1]
  logits = (logits - logits.mean(-1, keepdims=True)) / logits.std(-1, keepdims=True)
  return np.take_along_axis(logits, np.asarray(tokens)[:, 21:, None], axis=-1).mean()


@pytest.mark.slow
def test_copying_heads_favour_what_followed_last_time_before_any_training():
  drawn = params.init(CFG, jax.random.key(0))
  copying = copying_heads.with_copying_heads(drawn, CFG, jax.random.key(1))
  assert abs(advantage(drawn)) < 0.2
  assert advantage(copying) > 0.5


@pytest.mark.slow
def test_embeddings_named_alike_are_and_no_others():
  drawn = params.init(CFG, jax.random.key(0))
  made = copying_heads.with_copying_heads(drawn, CFG, jax.random.key(1), alike=[5, 9, 100])
  plain = copying_heads.with_copying_heads(drawn, CFG, jax.random.key(1))
  cosine = np.corrcoef(np.asarray(made["embed"])[[5, 9, 100]])
  assert cosine[np.triu_indices(3, 1)].min() > 0.6
  rest = np.setdiff1d(np.arange(CFG.vocab_size), [5, 9, 100])
  np.testing.assert_array_equal(made["embed"][rest], plain["embed"][rest])


@pytest.mark.parametrize(
  "change", [{"qk_norm": True}, {"tie_embeddings": False}, {"num_layers": 2}]
)
def test_networks_that_cannot_hold_copying_heads_are_refused(change):
  cfg = dataclasses.replace(CFG, **change)
  with pytest.raises(ValueError, match="copying heads need"):
    copying_heads.with_copying_heads(params.init(cfg, jax.random.key(0)), cfg, jax.random.key(1))
