"""Sizes and choices of a policy network: one frozen record that jitted functions take as static.

Standard library only, so that host code (packing, workers, viewers) may read sizes without jax.
"""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
  """A decoder-only transformer with RMSNorm before each block and rotary positions.

  The first `num_dense_layers` layers have a dense gated feed-forward network, the others a mixture
  of experts. `mtp_depth` modules that predict further tokens follow the trunk (DeepSeek-V3, section
  2.2, https://arxiv.org/abs/2412.19437).

  Attributes:
    vocab_size: V, rows of the embedding.
    embed_dim: D, width of the residual stream.
    num_layers: L, trunk layers, dense and mixture alike.
    num_heads: N, query heads.
    num_kv_heads: G, key-value heads ("gqa" only; N is a multiple of it).
    head_dim: H, width of a head ("gqa" only), even.
    attention: "gqa" (grouped queries) or "mla" (multi-head latent attention).
    qk_norm: RMSNorm on each query and key head before the rotation ("gqa" only).
    rope_theta: base of the rotary frequencies.
    rope_factor: YaRN (https://arxiv.org/abs/2309.00071): contexts of rope_original_tokens are
      stretched so many times; 1 leaves the frequencies as they are. See policy.attention.yarn.
    rope_original_tokens: context length before stretching (rope_factor > 1 only).
    rope_beta_fast: pairs that turn at least so often over it keep their frequency.
    rope_beta_slow: pairs that turn at most so often are slowed down by rope_factor.
    rope_truncate: the pairs in between begin and end at whole pairs.
    rope_gain: factor on the rotated parts of queries and keys (YaRN's attention factor).
    score_gain: factor on attention scores, beside 1 / sqrt(width of a query head).
    sinks: each head may also attend to nothing, with a learned score (gpt-oss; "gqa" only).
    window_tokens: how far layers with a window see, the query itself included; 0 for no windows.
    full_attention_every: of so many layers the last sees all of the context, the others
      window_tokens; 1 where there are no windows.
    biases: attention projections, the router and routed experts add one (gpt-oss; "gqa" only).
    norm_eps: added to the mean square inside RMSNorm.
    latent_norm_eps: the same inside the norms of latents ("mla" only).
    q_lora_rank: width of the query latent ("mla" only); 0 projects queries directly.
    kv_lora_rank: width of the cached key-value latent c ("mla" only).
    qk_nope_dim: width of the part of a query or key head without rotation ("mla" only).
    qk_rope_dim: width of the rotated part, shared by all key heads ("mla" only), even.
    v_head_dim: width of a value head ("mla" only).
    num_dense_layers: leading layers without experts; num_layers for a dense model.
    dense_ffw_dim: F of those layers.
    num_experts: E, routed experts of a mixture layer; 0 for a dense model.
    experts_per_token: K.
    expert_ffw_dim: F of one expert.
    num_shared_experts: experts that every token visits, fused into one of that many times F.
    swiglu_limit: routed experts clamp the gate from above and the other half on both sides, and
      compute gate * sigmoid(swiglu_alpha * gate) * (up + 1) (gpt-oss); 0 for silu(gate) * up.
    swiglu_alpha: of that; 1 without a limit.
    router: "sigmoid" (DeepSeek-V3, Kimi K2) or "softmax" scores.
    router_groups: groups that experts are divided into; 1 is no grouping.
    router_topk_groups: groups that a token may choose from.
    route_scale: factor on the normalised weights of the chosen experts.
    mtp_depth: M, modules that predict the token after the next, and so on.
    tie_embeddings: the head is the transposed embedding.
    scale_tied_head: a tied head is divided by sqrt(D), for embeddings of standard deviation 1.
    kernels: what computes experts and attention (policy.kernel_choice): "auto" is what is made for
      the device, "reference" the plain code, as on CPU; "tpu" and "gpu" compile for those
      elsewhere.
  """

  vocab_size: int
  embed_dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int = 0
  head_dim: int = 0
  attention: Literal["gqa", "mla"] = "gqa"
  qk_norm: bool = True
  rope_theta: float = 10_000.0
  rope_factor: float = 1.0
  rope_original_tokens: int = 0
  rope_beta_fast: float = 32.0
  rope_beta_slow: float = 1.0
  rope_truncate: bool = True
  rope_gain: float = 1.0
  score_gain: float = 1.0
  sinks: bool = False
  window_tokens: int = 0
  full_attention_every: int = 1
  biases: bool = False
  norm_eps: float = 1e-6
  latent_norm_eps: float = 1e-6
  q_lora_rank: int = 0
  kv_lora_rank: int = 0
  qk_nope_dim: int = 0
  qk_rope_dim: int = 0
  v_head_dim: int = 0
  num_dense_layers: int = 0
  dense_ffw_dim: int = 0
  num_experts: int = 0
  experts_per_token: int = 0
  expert_ffw_dim: int = 0
  num_shared_experts: int = 0
  swiglu_limit: float = 0.0
  swiglu_alpha: float = 1.0
  router: Literal["sigmoid", "softmax"] = "sigmoid"
  router_groups: int = 1
  router_topk_groups: int = 1
  route_scale: float = 1.0
  mtp_depth: int = 0
  tie_embeddings: bool = False
  scale_tied_head: bool = True
  kernels: Literal["auto", "reference", "tpu", "gpu"] = "auto"

  @property
  def num_moe_layers(self) -> int:
    """Layers with experts: the second axis from the right of every routing array."""
    return self.num_layers - self.num_dense_layers

  @property
  def num_cache_layers(self) -> int:
    """L + M: the trunk's layers, then one for each multi-token-prediction module."""
    return self.num_layers + self.mtp_depth

  @property
  def cache_width(self) -> int:
    """C, what attention reads of a cached token in a layer: keys and values, or the latent and its
    rotated key. (Entries of latents may be wider: cache.entry_shape.)
    """
    if self.attention == "mla":
      return self.kv_lora_rank + self.qk_rope_dim
    return 2 * self.num_kv_heads * self.head_dim

  @property
  def rope_dim(self) -> int:
    """Width of the rotated part of a head."""
    return self.qk_rope_dim if self.attention == "mla" else self.head_dim

  def has_window(self, layer: int) -> bool:
    """Whether a layer of the trunk (from 0) sees only window_tokens."""
    return bool((layer + 1) % self.full_attention_every)

  def __post_init__(self):
    validate(self)


def validate(cfg: PolicyConfig) -> None:
  """Raises ValueError, with the values and the remedy, for sizes that cannot work together."""
  for name in ("vocab_size", "embed_dim", "num_layers", "num_heads"):
    _at_least(cfg, name, 1)
  for field in dataclasses.fields(cfg):
    if isinstance(field.default, int | float) and not isinstance(field.default, bool):
      _at_least(cfg, field.name, 0)
  for name in ("rope_theta", "rope_gain", "score_gain", "swiglu_alpha", "route_scale"):
    if not getattr(cfg, name) > 0:
      raise ValueError(f"{name} is {getattr(cfg, name)}; set it above 0")
  _one_of(cfg, "attention", ("gqa", "mla"))
  _one_of(cfg, "router", ("sigmoid", "softmax"))
  _one_of(cfg, "kernels", ("auto", "reference", "tpu", "gpu"))
  if not 0 <= cfg.num_dense_layers <= cfg.num_layers:
    raise ValueError(
      f"num_dense_layers is {cfg.num_dense_layers} of num_layers {cfg.num_layers}; "
      "choose between 0 and num_layers (a dense model)"
    )
  if cfg.num_dense_layers:
    _at_least(cfg, "dense_ffw_dim", 1)
  if not (cfg.tie_embeddings or cfg.scale_tied_head):
    raise ValueError("scale_tied_head=False has no effect without tie_embeddings; leave it out")
  _validate_mla(cfg) if cfg.attention == "mla" else _validate_gqa(cfg)
  _validate_rope(cfg)
  _validate_window(cfg)
  if cfg.num_moe_layers:
    _validate_experts(cfg)
  elif cfg.num_experts:
    raise ValueError(
      f"{cfg.num_experts} experts but all {cfg.num_layers} layers are dense; "
      "lower num_dense_layers or set num_experts=0"
    )


def _validate_gqa(cfg: PolicyConfig) -> None:
  _at_least(cfg, "num_kv_heads", 1)
  _at_least(cfg, "head_dim", 2)
  if cfg.num_heads % cfg.num_kv_heads:
    raise ValueError(
      f"{cfg.num_heads} query heads cannot share {cfg.num_kv_heads} key-value heads evenly; "
      "make num_heads a multiple of num_kv_heads"
    )
  if cfg.head_dim % 2:
    raise ValueError(f"head_dim {cfg.head_dim} is rotated in pairs; make it even")


def _validate_mla(cfg: PolicyConfig) -> None:
  for name in ("kv_lora_rank", "qk_nope_dim", "v_head_dim"):
    _at_least(cfg, name, 1)
  _at_least(cfg, "q_lora_rank", 0)
  _at_least(cfg, "qk_rope_dim", 2)
  if cfg.qk_rope_dim % 2:
    raise ValueError(f"qk_rope_dim {cfg.qk_rope_dim} is rotated in pairs; make it even")
  for name in ("sinks", "biases", "window_tokens"):
    if getattr(cfg, name):
      raise ValueError(f"{name} works with attention='gqa' only; leave it out or change attention")


def _validate_rope(cfg: PolicyConfig) -> None:
  _at_least(cfg, "rope_factor", 1)
  if cfg.rope_factor > 1:
    _at_least(cfg, "rope_original_tokens", 1)
    if not 0 < cfg.rope_beta_slow <= cfg.rope_beta_fast:
      raise ValueError(
        f"rope_beta_slow {cfg.rope_beta_slow} and rope_beta_fast {cfg.rope_beta_fast} must be "
        "positive and in that order"
      )
  elif cfg.rope_original_tokens or cfg.rope_gain != 1:
    raise ValueError(
      f"rope_original_tokens {cfg.rope_original_tokens} and rope_gain {cfg.rope_gain} have no "
      "effect without stretching; set rope_factor above 1, or leave them 0 and 1"
    )


def _validate_window(cfg: PolicyConfig) -> None:
  _at_least(cfg, "window_tokens", 0)
  _at_least(cfg, "full_attention_every", 1)
  if (cfg.window_tokens > 0) != (cfg.full_attention_every > 1):
    raise ValueError(
      f"window_tokens {cfg.window_tokens} with full_attention_every {cfg.full_attention_every}: "
      "layers have windows where both are set; set both, or leave 0 and 1"
    )


def _validate_experts(cfg: PolicyConfig) -> None:
  for name in ("num_experts", "experts_per_token", "expert_ffw_dim", "router_groups"):
    _at_least(cfg, name, 1)
  _at_least(cfg, "num_shared_experts", 0)
  _at_least(cfg, "swiglu_limit", 0)
  if not cfg.swiglu_limit and cfg.swiglu_alpha != 1:
    raise ValueError(f"swiglu_alpha {cfg.swiglu_alpha} has no effect; set swiglu_limit, or leave 1")
  if cfg.num_experts % cfg.router_groups:
    raise ValueError(
      f"{cfg.num_experts} experts do not divide into {cfg.router_groups} router groups; "
      "make num_experts a multiple of router_groups"
    )
  if not 1 <= cfg.router_topk_groups <= cfg.router_groups:
    raise ValueError(
      f"router_topk_groups is {cfg.router_topk_groups} of {cfg.router_groups} groups; "
      "choose between 1 and router_groups"
    )
  reachable = cfg.num_experts // cfg.router_groups * cfg.router_topk_groups
  if cfg.experts_per_token > reachable:
    raise ValueError(
      f"experts_per_token {cfg.experts_per_token} exceeds the {reachable} experts that a token can "
      "reach; lower it or raise router_topk_groups"
    )
  if cfg.num_experts >= 65535:
    raise ValueError(f"{cfg.num_experts} experts do not fit 16-bit routing; use fewer than 65535")


def _at_least(cfg: PolicyConfig, name: str, least: int) -> None:
  if getattr(cfg, name) < least:
    raise ValueError(f"{name} is {getattr(cfg, name)}; set it to {least} or more")


def _one_of(cfg: PolicyConfig, name: str, choices: tuple[str, ...]) -> None:
  if getattr(cfg, name) not in choices:
    raise ValueError(f"{name} is {getattr(cfg, name)!r}; choose one of {', '.join(choices)}")
