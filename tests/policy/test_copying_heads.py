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
  vocab_size=1000,
  embed_dim=192,
  num_layers=4,
  num_heads=4,
  num_kv_heads=4,
  head_dim=64,
  num_experts=2,
  experts_per_token=1,
  expert_ffw_dim=32,
  qk_norm=False,
  rope_theta=1e6,
  tie_embeddings=True,
)
CONTEXT, STRING = 600, 20


def copied(weights, string, context):
  """The share of the tokens of strings that are predicted where a string of the context recurs.

  The first three tokens of a string are left out: they follow tokens of the context's end.
  """
  tokens = jnp.asarray(np.concatenate([context, string], axis=1), jnp.int32)
  out = transformer.forward(weights, tokens, CFG, rows=layer.one_sequence(tokens))
  predicted = np.asarray(out.hidden[:, -STRING + 2 : -1] @ weights["embed"].T).argmax(-1)
  return (predicted == string[:, 3:]).mean()


def strings(vocabulary):
  """Random contexts [4, 600] of so many tokens, and a string [4, 20] of each."""
  draw = np.random.default_rng(0)
  context = draw.integers(0, vocabulary, (4, CONTEXT))
  starts = draw.integers(0, CONTEXT - STRING, 4)
  return np.stack([c[s : s + STRING] for c, s in zip(context, starts, strict=True)]), context


def test_a_string_among_six_hundred_tokens_is_copied_before_any_training():
  string, context = strings(CFG.vocab_size)
  drawn = params.init(CFG, jax.random.key(0))
  made = copying_heads.with_copying_heads(drawn, CFG, jax.random.key(1))
  assert copied(drawn, string, context) < 0.05
  assert copied(made, string, context) > 0.9


def test_the_token_after_three_equal_ones_is_copied_not_that_after_two():
  # Forty tokens make every pair occur in the context by chance, and every triple hardly ever.
  string, context = strings(40)
  drawn = params.init(CFG, jax.random.key(0))
  made = copying_heads.with_copying_heads(drawn, CFG, jax.random.key(1))
  assert copied(made, string, context) > 0.8


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
