"""Small policies of every kind for these tests, and plain references to compare with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig

GQA = PolicyConfig(
  vocab_size=53,
  embed_dim=16,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  num_dense_layers=1,
  dense_ffw_dim=24,
  num_experts=8,
  experts_per_token=2,
  expert_ffw_dim=12,
  num_shared_experts=1,
  route_scale=1.5,
  mtp_depth=1,
)
MLA = dataclasses.replace(
  GQA,
  attention="mla",
  num_kv_heads=0,
  head_dim=0,
  q_lora_rank=10,
  kv_lora_rank=12,
  qk_nope_dim=6,
  qk_rope_dim=4,
  v_head_dim=5,
)
DENSE = PolicyConfig(
  vocab_size=53,
  embed_dim=16,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  num_dense_layers=2,
  dense_ffw_dim=24,
  tie_embeddings=True,
)
# As gpt-oss: every other layer sees five tokens.
BIASED = dataclasses.replace(
  GQA,
  num_layers=4,
  num_dense_layers=0,
  dense_ffw_dim=0,
  num_shared_experts=0,
  mtp_depth=0,
  qk_norm=False,
  router="softmax",
  route_scale=1.0,
  sinks=True,
  window_tokens=5,
  full_attention_every=2,
  biases=True,
  swiglu_limit=1.5,
  swiglu_alpha=1.702,
)


def init(cfg, seed=0):
  """Parameters with norms, biases and sinks moved off their initial ones and zeros."""
  key = jax.random.key(seed)
  params = jax.jit(params_lib.init, static_argnums=0)(cfg, key)

  def stir(path, leaf):
    name = path[-1].key
    draw = np.random.default_rng(len(jax.tree_util.keystr(path))).normal(size=leaf.shape)
    if name.endswith("norm"):
      return leaf + jnp.asarray(0.2 * draw, leaf.dtype)
    if name == "sinks" or name.endswith("_bias"):
      return jnp.asarray((0.1 if name == "router_bias" else 0.5) * draw, leaf.dtype)
    return leaf

  return jax.tree_util.tree_map_with_path(stir, params)


def tokens(cfg, rows, length, seed=0):
  """int32 [rows, length]."""
  ids = np.random.default_rng(seed).integers(0, cfg.vocab_size, (rows, length))
  return jnp.asarray(ids, jnp.int32)


def norm(x, scale, eps=1e-6):
  return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def softmax(z):
  e = np.exp(z - z.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


def swiglu(weights, x):
  gate, up = x @ weights["gate_up"][:, 0], x @ weights["gate_up"][:, 1]
  return (gate / (1 + np.exp(-gate)) * up) @ weights["down"]


def mixture(weights, x, cfg):
  """[N, D]: one token and one expert at a time."""
  out = np.zeros_like(x)
  for n, token in enumerate(x):
    scores = 1 / (1 + np.exp(-token @ weights["router"]))
    best = np.argsort(-(scores + weights["router_bias"]), kind="stable")[: cfg.experts_per_token]
    for e in best:
      expert = {name: weights["experts"][name][e] for name in ("gate_up", "down")}
      out[n] += cfg.route_scale * scores[e] / scores[best].sum() * swiglu(expert, token)
  return out + swiglu(weights["shared"], x) if cfg.num_shared_experts else out


def rotated(x, position, theta):
  """x [H] turned pair by pair (x_i, x_{i + H/2}) by position * theta^(-2i/H)."""
  half = len(x) // 2
  out = np.zeros_like(x)
  for i in range(half):
    angle = position * theta ** (-2 * i / len(x))
    out[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
    out[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
  return out


def grouped_attention(weights, x, cfg):
  """[T, D] of one row: one head and one query at a time."""
  length = len(x)
  shared = cfg.num_heads // cfg.num_kv_heads
  out = np.zeros((length, cfg.embed_dim))
  for g in range(cfg.num_kv_heads):
    projected = np.einsum("td,drh->rth", x, weights["qkv"][:, g])
    k = [
      rotated(norm(projected[-2, t], weights["k_norm"]), t, cfg.rope_theta) for t in range(length)
    ]
    for r in range(shared):
      for t in range(length):
        q = rotated(norm(projected[r, t], weights["q_norm"]), t, cfg.rope_theta)
        scores = np.array([q @ k[s] for s in range(t + 1)]) / np.sqrt(cfg.head_dim)
        out[t] += softmax(scores) @ projected[-1, : t + 1] @ weights["out"][g, r]
  return out


def hidden(params, ids, cfg):
  """Final hidden states of one row of a grouped-query policy, in float64 loops: [T, D]."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params_lib.unstack(params))
  x = params["embed"][np.asarray(ids)]
  for layer in params.get("dense_layers", ()) + params.get("moe_layers", ()):
    x = x + grouped_attention(layer["attention"], norm(x, layer["attention_norm"]), cfg)
    normed = norm(x, layer["ffw_norm"])
    if "moe" in layer:
      x = x + mixture(layer["moe"], normed, cfg)
    else:
      x = x + swiglu(layer["ffw"], normed)
  return norm(x, params["final_norm"])
