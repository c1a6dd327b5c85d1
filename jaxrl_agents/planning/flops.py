"""Floating-point operations of a policy, counted from its parameter table and sizes.

A product of [n, k] and [k, m] is 2 n k m. Model FLOPs are those that the mathematics asks for: what
is recomputed in the backward pass, and padding, is not in them.

Alphabet: T time, K experts per token, E experts, N heads, H head dim.
"""

from __future__ import annotations

import math

import jax

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig


def active_parameters(cfg: PolicyConfig, *, drafting: bool = False) -> int:
  """Numbers of weight matrices that one token is multiplied with.

  Of E experts K count, of the embedding none (a look-up) unless it is also the head.

  Args:
    cfg: sizes.
    drafting: with the multi-token-prediction modules and their heads.
  """
  total = 0.0
  leaves = jax.tree.leaves_with_path(params_lib.table(cfg), is_leaf=params_lib.is_spec)
  for path, spec in leaves:
    names = [str(key.key) for key in path]
    if not spec.decayed or not spec.trainable or names == ["embed"]:
      continue
    if names[0] == "mtp" and not drafting:
      continue
    share = cfg.experts_per_token / cfg.num_experts if "experts" in names else 1.0
    total += share * math.prod(spec.shape)
  head = cfg.vocab_size * cfg.embed_dim
  total += head * (bool(cfg.tie_embeddings) + (cfg.mtp_depth if drafting else 0))
  return round(total)


def score_flops(cfg: PolicyConfig, keys: float, *, cached: bool = False) -> float:
  """FLOPs of all layers' scores and weighted values for one query that sees `keys` keys.

  Args:
    cfg: sizes.
    keys: that the query sees on average where a layer has no window.
    cached: MLA in its decoding form, whose keys and values are the latents.
  """
  if cfg.attention == "mla":
    width = cfg.qk_nope_dim + cfg.qk_rope_dim + cfg.v_head_dim
    if cached:
      width = 2 * cfg.kv_lora_rank + cfg.qk_rope_dim
  else:
    width = 2 * cfg.head_dim
  seen = [
    min(keys, cfg.window_tokens) if cfg.window_tokens and cfg.has_window(i) else keys
    for i in range(cfg.num_layers)
  ]
  return 2.0 * cfg.num_heads * width * sum(seen)


def train_flops_per_token(
  cfg: PolicyConfig, row_tokens: int, *, drafting: bool = False, remat: bool = False
) -> float:
  """FLOPs of the forward and backward pass, a token, in rows that one segment fills.

  The backward pass costs twice the forward one, and once more of the layers with `remat` (which is
  no model FLOP). The head is counted for every token, though tokens without a loss skip it, and all
  weights as trained, though adapters leave most of them frozen.
  """
  scores = score_flops(cfg, (row_tokens + 1) / 2)
  active = 2.0 * active_parameters(cfg, drafting=drafting)
  head = 2.0 * cfg.vocab_size * cfg.embed_dim
  return 3 * (active + scores) + (active - head + scores if remat else 0.0)


def decode_flops_per_token(cfg: PolicyConfig, context_tokens: float) -> float:
  """FLOPs of one new token that sees `context_tokens` cached ones."""
  return 2.0 * active_parameters(cfg) + score_flops(cfg, context_tokens, cached=True)


def mfu(model_flops: float, seconds: float, *, chips: int, flops_per_s: float) -> float:
  """Model FLOPs utilisation: the share of the chips' peak that the model's FLOPs take.

  mfu = model_flops / (chips * flops_per_s * seconds), PaLM, https://arxiv.org/abs/2204.02311,
  appendix B.

  Args:
    model_flops: of the work, without recomputation.
    seconds: that the work takes.
    chips: number of chips.
    flops_per_s: peak of one chip.
  """
  return model_flops / (chips * flops_per_s * seconds)
