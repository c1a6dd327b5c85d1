"""Initial weights with the two heads that quoting from the context takes.

A network that is trained for minutes spends most of them finding out how to look up what followed
an earlier occurrence of a token (Olsson et al. 2022, https://arxiv.org/abs/2209.11895). Here two
heads begin as that look-up and everything else as usual, in the spirit of mimetic initialisation
(Trockman and Kolter 2023, https://arxiv.org/abs/2305.09828):

  layer l      attends to the token before and writes C B^T e(before) into the residual stream
  layer l + 1  matches B^T e(here) against what C holds, and writes S S^T e(matched)

with random B, C, S [D, H]. All weights stay free to move. Only grouped-query attention without
query-key norms, and only networks with tied embeddings, where what is written is what is predicted.

Alphabet: D width, G kv heads, R query heads of a kv head, H head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.policy.config import PolicyConfig

SHARED = 0.5
"""Standard deviation of the vector that all embeddings share: what a positional head keys on."""

SHARPNESS = 12.0
"""Logit of the token before, over an average one, in the positional head."""

POSITIONAL_PAIRS = 3
"""The fastest rotary pairs: they tell neighbours apart. Content is matched in the slower half."""

ALIKE = 0.85
"""Correlation of the embeddings of ids that begin alike."""

MATCH = 2.0
COPY = 2.0


def with_copying_heads(
  params: dict[str, Any], cfg: PolicyConfig, key: jax.Array, *, alike: Sequence[int] = ()
) -> dict[str, Any]:
  """`params` (stacked, as `params.init` draws them) with copying heads in layers 0-1 and 1-2.

  Args:
    params: of the policy.
    cfg: its sizes.
    key: of the random maps.
    alike: ids after which the same kind of token follows, say the marks before a document's id:
      their embeddings begin alike, so that what followed one of them is looked up at another.

  Raises:
    ValueError: the policy has query-key norms, latent attention, untied embeddings, dense layers or
      fewer than three layers.
  """
  plain = cfg.attention == "gqa" and not cfg.qk_norm and cfg.tie_embeddings
  if not plain or cfg.num_dense_layers or cfg.num_layers < 3 or cfg.num_kv_heads < 2:
    raise ValueError(
      "copying heads need attention='gqa', qk_norm=False, tie_embeddings=True, num_kv_heads >= 2, "
      "three layers or more and no dense ones; change policy.model or set policy.init=scratch"
    )
  shared_key, *keys = jax.random.split(key, 3)
  shared = SHARED * jax.random.normal(shared_key, (cfg.embed_dim,))
  attention = params["moe_layers"]["attention"]
  qkv, out = attention["qkv"], attention["out"]
  for layer, group, pair_key in ((0, 0, keys[0]), (1, 1, keys[1])):
    qkv, out = _pair(qkv, out, cfg, layer, group, shared, pair_key)
  attention = {**attention, "qkv": qkv, "out": out}
  layers = {**params["moe_layers"], "attention": attention}
  embed = params["embed"]
  if len(alike):
    ids = jnp.asarray(alike)
    embed = embed.at[ids].set(ALIKE * embed[ids[0]] + (1 - ALIKE**2) ** 0.5 * embed[ids])
  return {**params, "embed": embed + shared, "moe_layers": layers}


def _pair(qkv, out, cfg, layer, group, shared, key):
  """Writes a positional head into `layer` and a matching head into the next; returns qkv, out."""
  d, h = cfg.embed_dim, cfg.head_dim
  reader, carrier, copier = (
    d**-0.5 * jax.random.normal(k, (d, h)) for k in jax.random.split(key, 3)
  )
  per_group = cfg.num_heads // cfg.num_kv_heads
  query, positional_key = _positional(cfg, shared)
  qkv = qkv.at[layer, :, group, :per_group].set(query[:, None])
  qkv = qkv.at[layer, :, group, per_group].set(positional_key)
  qkv = qkv.at[layer, :, group, per_group + 1].set(reader)
  out = out.at[layer, group].set(carrier.T / per_group)
  slow = _slow_columns(cfg)
  qkv = qkv.at[layer + 1, :, group, :per_group].set(MATCH * (reader * slow)[:, None])
  qkv = qkv.at[layer + 1, :, group, per_group].set(carrier * slow)
  qkv = qkv.at[layer + 1, :, group, per_group + 1].set(copier)
  out = out.at[layer + 1, group].set(COPY * copier.T / per_group)
  return qkv, out


def _positional(cfg: PolicyConfig, shared: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Query and key maps [D, H] whose product peaks where the key stands one before the query."""
  h = cfg.head_dim
  frequencies = cfg.rope_theta ** (-jnp.arange(POSITIONAL_PAIRS) * 2 / h)
  fast = jnp.arange(POSITIONAL_PAIRS)
  # A vector of cos, sin of each pair; the key is turned one step ahead of the query.
  query = jnp.zeros(h).at[fast].set(1.0)
  ahead = jnp.zeros(h).at[fast].set(jnp.cos(frequencies))
  ahead = ahead.at[fast + h // 2].set(jnp.sin(frequencies))
  # After RMSNorm an embedding holds shared / sqrt(1 + SHARED^2), so this projection of it is 1.
  to_one = shared / jnp.sum(shared**2) * (1 + SHARED**2) ** 0.5
  gain = (SHARPNESS * h**0.5) ** 0.5
  return gain * to_one[:, None] * query, gain * to_one[:, None] * ahead


def _slow_columns(cfg: PolicyConfig) -> jax.Array:
  """1 for the columns whose rotation hardly turns over a context, 0 for the fast ones: [H]."""
  pair = jnp.arange(cfg.head_dim) % (cfg.head_dim // 2)
  return (pair >= cfg.head_dim // 6).astype(jnp.float32)
