"""Counted FLOPs against a count by hand and XLA's of an unrolled model."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxrl_agents import config
from jaxrl_agents.planning import flops
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.config import PolicyConfig

CFG = PolicyConfig(
  vocab_size=512,
  embed_dim=128,
  num_layers=3,
  num_dense_layers=1,
  dense_ffw_dim=256,
  num_heads=4,
  num_kv_heads=2,
  head_dim=32,
  num_experts=4,
  experts_per_token=4,  # all of them: what the dense dispatch of few tokens computes
  expert_ffw_dim=128,
  num_shared_experts=1,
)
MLA = PolicyConfig(
  vocab_size=512,
  embed_dim=128,
  num_layers=3,
  num_dense_layers=3,
  dense_ffw_dim=256,
  num_heads=4,
  attention="mla",
  q_lora_rank=64,
  kv_lora_rank=64,
  qk_nope_dim=32,
  qk_rope_dim=16,
  v_head_dim=32,
)


def test_active_parameters_by_hand():
  attention = 128 * (4 + 2 * 2) * 32 + 4 * 32 * 128
  expert = 3 * 128 * 128
  moe = 4 * expert + expert + 128 * 4
  assert flops.active_parameters(CFG) == 3 * attention + 3 * 128 * 256 + 2 * moe + 128 * 512


def test_windows_bound_the_keys_of_their_layers():
  cfg = PolicyConfig(
    vocab_size=8,
    embed_dim=8,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    num_dense_layers=4,
    dense_ffw_dim=8,
    window_tokens=16,
    full_attention_every=2,
  )
  assert flops.score_flops(cfg, 100) == 2 * 2 * 8 * (2 * 16 + 2 * 100)


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [CFG, MLA], ids=["experts", "mla"])
def test_xla_counts_as_many_flops_of_an_unrolled_forward_pass_within_5_percent(cfg):
  """Rows of one tile, computed whole: each query meets all keys. Norms and softmax make up the 5
  percent."""
  rows, length = 1, 64
  params = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype),
    params_lib.unstack(params_lib.init(cfg, jax.random.key(0))),
  )
  tokens = jnp.zeros((rows, length), jnp.int32)

  @functools.partial(jax.jit, static_argnums=2)
  def forward(params, tokens, cfg):
    hidden = transformer.forward(params, tokens, cfg).hidden
    return transformer.logits(params, hidden, cfg)

  found = forward.lower(params, tokens, cfg).compile().cost_analysis()["flops"]
  counted = rows * length * (2 * flops.active_parameters(cfg) + flops.score_flops(cfg, length))
  assert found == pytest.approx(counted, rel=0.05)


def test_the_published_sizes_have_the_published_numbers_of_parameters():
  """Within 1 % of what the papers say: total and active, in billions."""
  published = {
    "kimi_k2": (1_026, 31.7),  # "1.04 T, 32.6 B": with embeddings counted as active, 1.2 B
    "gpt_oss_20b": (20.9, 3.6),
    "qwen3_30b_a3b": (30.5, 3.04),  # "3.3 B": likewise
    "qwen3_4b": (4.02, 4.02),  # "4.0 B", the tied head among the active ones
  }
  for name, (total, active) in published.items():
    cfg = config.load(f"configs/{name}_rl.py").policy.model
    assert params_lib.count(cfg) / 1e9 == pytest.approx(total, rel=0.01)
    assert flops.active_parameters(cfg) / 1e9 == pytest.approx(active, rel=0.01)


def test_mfu_is_the_share_of_the_peak_that_model_flops_take():
  assert flops.mfu(6e15, 2.0, chips=4, flops_per_s=1e15) == 0.75
