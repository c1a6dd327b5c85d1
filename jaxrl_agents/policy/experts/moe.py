"""A mixture of experts without dropped tokens: router, replay of recorded choices, dispatch.

Alphabet: D width, E experts, K experts per token, F ffw.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.policy import kernel_choice, sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.experts import all_to_all
from jaxrl_agents.policy.experts.local import Clamp


def moe(
  weights: dict[str, Any],
  x: jax.Array,
  cfg: PolicyConfig,
  *,
  replay: jax.Array | None = None,
  replay_threshold: float = 0.0,
  valid: jax.Array | None = None,
  rules: sharding.Rules = sharding.TRAIN_RULES,
) -> tuple[jax.Array, jax.Array]:
  """Routed and shared experts.

  Args:
    weights: of one layer, see params.table.
    x: [..., D], normalised.
    cfg: sizes.
    replay: int32 [..., K], experts to use instead of the router's own; a token with an entry
      outside [0, E) chooses natively. None: all do.
    replay_threshold: see `replayed_experts`.
    valid: bool [...], False for padding, which no routed expert computes. None: all are valid.
    rules: how the weights lie on the mesh.

  Returns:
    ([..., D], int32 [..., K], the experts used).
  """
  weight, experts = route(weights, x, cfg, replay=replay, replay_threshold=replay_threshold)
  choice = experts
  if valid is not None:
    choice = jnp.where(valid[..., None], experts, cfg.num_experts)
  clamp = Clamp(cfg.swiglu_limit, cfg.swiglu_alpha) if cfg.swiglu_limit else None
  y = all_to_all.apply(
    weights["experts"],
    x,
    weight.astype(x.dtype),
    choice,
    clamp,
    kernels=kernel_choice.kind(cfg),
    rules=rules,
  )
  if cfg.num_shared_experts:
    y = y + gated(weights["shared"], x)
  return y, experts


def gated(weights: dict[str, Any], x: jax.Array) -> jax.Array:
  """(silu(x W_gate) * x W_up) W_down for x [..., D] (SwiGLU, https://arxiv.org/abs/2002.05202)."""
  hidden = jnp.einsum("...d,dzf->...zf", x, weights["gate_up"])
  return (jax.nn.silu(hidden[..., 0, :]) * hidden[..., 1, :]) @ weights["down"]


def route(
  weights: dict[str, Any],
  x: jax.Array,
  cfg: PolicyConfig,
  *,
  replay: jax.Array | None = None,
  replay_threshold: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
  """Chooses K experts for each token of x [..., D] and their weights.

  Experts are chosen by biased scores and weighted by unbiased ones,
    s = sigmoid(x W + c) or softmax(x W + c),  w = route_scale * s[experts] / sum(s[experts]),
  (DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.1.2), where c is there only in a policy
  with `biases` and, unlike the selection bias, is trained. No gradient reaches the selection
  bias or passes through the choice. With softmax scores the weights equal a softmax over the
  chosen.

  Returns:
    (weights float32 [..., K], experts int32 [..., K]).
  """
  logits = x.astype(jnp.float32) @ weights["router"]
  if cfg.biases:
    logits = logits + weights["router_logit_bias"]
  scores = jax.nn.sigmoid(logits) if cfg.router == "sigmoid" else jax.nn.softmax(logits)
  selection = jax.lax.stop_gradient(scores + weights["router_bias"])
  if cfg.router_groups > 1:
    native = _best_groups(selection, cfg)
  else:
    native = selection
  _, experts = jax.lax.top_k(native, cfg.experts_per_token)
  if replay is not None:
    experts = replayed_experts(selection, experts, replay, replay_threshold)
  chosen = jnp.take_along_axis(scores, experts, axis=-1)
  weight = chosen / (jnp.sum(chosen, axis=-1, keepdims=True) + 1e-20)
  return weight * cfg.route_scale, experts


def _best_groups(selection: jax.Array, cfg: PolicyConfig) -> jax.Array:
  """Scores [..., E], -inf outside each token's best groups, judged by two experts of each."""
  grouped = selection.reshape(*selection.shape[:-1], cfg.router_groups, -1)
  two_best, _ = jax.lax.top_k(grouped, min(2, grouped.shape[-1]))
  _, kept = jax.lax.top_k(two_best.sum(axis=-1), cfg.router_topk_groups)
  keep = jax.nn.one_hot(kept, cfg.router_groups, dtype=jnp.bool).any(axis=-2)
  return jnp.where(keep[..., None], grouped, -jnp.inf).reshape(selection.shape)


def replayed_experts(
  selection: jax.Array, own: jax.Array, replay: jax.Array, threshold: float
) -> jax.Array:
  """The experts to use when a sampler recorded `replay` (rollout routing replay).

  threshold 0 replays every recorded choice. With threshold c > 0 a recorded expert is kept where
  its selection score is at least c times the worst of the router's own K, and the router's best
  other choices fill the rest: the plausibility filter of Composer 2
  (https://arxiv.org/abs/2603.24477, section 6.2), whose formula is unpublished; this one is ours.

  Args:
    selection: float32 [..., E], biased scores.
    own: int32 [..., K], the router's choice, best first.
    replay: int32 [..., K]; a token with an entry outside [0, E) uses its own choice.
    threshold: c in [0, 1].

  Returns:
    int32 [..., K].
  """
  valid = (replay >= 0) & (replay < selection.shape[-1])
  recorded = valid.all(axis=-1, keepdims=True)
  replay = jnp.where(valid, replay, 0).astype(own.dtype)
  if threshold == 0:
    return jnp.where(recorded, replay, own)
  worst = jnp.take_along_axis(selection, own, axis=-1).min(axis=-1, keepdims=True)
  # A bias can make scores negative, where c * worst > worst: the router's own are always plausible.
  enough = jnp.minimum(threshold * worst, worst)
  keep = recorded & (jnp.take_along_axis(selection, replay, axis=-1) >= enough)
  taken = ((own[..., :, None] == replay[..., None, :]) & keep[..., None, :]).any(axis=-1)
  choices = own.shape[-1]
  order = jnp.arange(choices)
  last = 2 * choices
  rank = jnp.concatenate(
    [jnp.where(keep, order, last), jnp.where(taken, last, choices + order)], axis=-1
  )
  first = jnp.argsort(rank, axis=-1)[..., :choices]
  return jnp.take_along_axis(jnp.concatenate([replay, own], axis=-1), first, axis=-1)


def balanced_bias(bias: jax.Array, expert_load: jax.Array, rate: float) -> jax.Array:
  """Moves selection biases towards equal load, without a loss: b + rate * sign(mean load - load).

  For supervised training (DeepSeek-V3, section 2.1.2); in reinforcement learning the bias stays as
  it is, else sampler and learner would choose different experts.

  Args:
    bias: float32 [L, E].
    expert_load: float32 [L, E], Output.expert_load of the step.
    rate: 1e-3 in DeepSeek-V3.
  """
  mean = jnp.mean(expert_load, axis=-1, keepdims=True)
  return bias + rate * jnp.sign(mean - expert_load)
