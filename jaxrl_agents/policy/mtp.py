"""Multi-token prediction: modules after the trunk that predict the token after the next, and so on.

Module k (from 1) at position i merges the hidden state that module k-1 left there (the trunk's, for
k = 1) with the embedding of token i + k and predicts token i + k + 1 through the shared head:
  h^k_i = norm(block_k(W_k [norm(h^{k-1}_i) ; norm(embed(t_{i+k}))]))
(DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2).

Alphabet: B rows, T time, Q new tokens, D width, M modules, L trunk layers.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding, transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.norm import rms_norm


def mtp(
  params: dict[str, Any],
  hidden: jax.Array,
  next_tokens: jax.Array,
  cfg: PolicyConfig,
  *,
  rows: layer.Rows | None = None,
) -> jax.Array:
  """Hidden states of all modules over rows of tokens, for training.

  Entry [k - 1, b, i] predicts token i + k + 1 of row b: what the trunk's own hidden state at i + k
  predicts. It means nothing where the path to i + k does not run through i, i + 1, ...: see
  `is_path`.

  Args:
    params: the shared embedding and "mtp" are read.
    hidden: [B, T, D], Output.hidden of the trunk. Detach it, and params, to train only the modules.
    next_tokens: int32 [B, T], token i + 1 at place i.
    cfg: sizes.
    rows: what the rows hold; None: one sequence each.

  Returns:
    [M, B, T, D], after each module's final norm: the input of transformer.logits.
  """
  rows = layer.one_sequence(next_tokens) if rows is None else rows
  rope = layer.rope_of(rows.depths, cfg)
  attend = functools.partial(layer.attend_rows, cfg=cfg, rope=rope, rows=rows)
  depths = []
  for depth, module in enumerate(_modules(params)):
    tokens = shift_left(next_tokens, depth)
    merged = _merge(module, hidden, transformer.embed(params, tokens), cfg)
    x, _ = transformer.block(module["block"], merged, cfg, attend, valid=rows.valid)
    hidden = rms_norm(x, module["final_norm"], cfg.norm_eps)
    depths.append(hidden)
  return jnp.stack(depths)


def mtp_decode(
  params: dict[str, Any],
  hidden: jax.Array,
  next_tokens: jax.Array,
  cfg: PolicyConfig,
  cache: layer.Cache,
  *,
  page_table: jax.Array,
  lengths: jax.Array,
  num_new: jax.Array,
  depth: int = 0,
) -> tuple[jax.Array, layer.Cache]:
  """One module over new positions of cached sequences: drafts, and fills the module's cache.

  Place q of a row is position lengths + q of its sequence: `hidden` there and the token that
  follows it. The result at the last real place predicts the token after that one. To draft more
  tokens than there are modules, apply the last one again at the next position (lengths + 1), giving
  its own result as `hidden` and the drafted token; what that leaves in the cache is overwritten
  once the true hidden state of the position is known. A deeper module (depth > 0) stays at the same
  position.

  Args:
    params: the shared embedding and "mtp" are read.
    hidden: [B, Q, D], the trunk's Output.hidden or a previous result.
    next_tokens: int32 [B, Q].
    cfg: sizes.
    cache: module `depth` uses layer L + depth of its pages.
    page_table: int32 [B, Pm].
    lengths: int32 [B], positions that the module's cache already holds.
    num_new: int32 [B], how many of the Q places are real.
    depth: which module, from 0.

  Returns:
    ([B, Q, D] after the module's final norm, cache).
  """
  module = _modules(params)[depth]
  step = layer.plan_step(cache, page_table, lengths, num_new, next_tokens.shape[1])
  attend = functools.partial(
    layer.attend_cached,
    cfg=cfg,
    rope=layer.rope_of(step.positions, cfg),
    cache=cache,
    layer=cfg.num_layers + depth,
    step=step,
  )
  embedded = params["embed"][next_tokens][..., : cfg.embed_dim]
  merged = _merge(module, hidden, embedded, cfg)
  valid = jnp.arange(next_tokens.shape[1]) < num_new[:, None]
  (x, cache), _ = transformer.block(
    module["block"], merged, cfg, attend, valid=valid, rules=sharding.SERVE_RULES
  )
  return rms_norm(x, module["final_norm"], cfg.norm_eps), cache


def shift_left(values: jax.Array, places: int) -> jax.Array:
  """values [B, T] with entry i + places at i; zeros where there is none."""
  if places == 0:
    return values
  return jnp.pad(values[:, places:], ((0, 0), (0, min(places, values.shape[1]))))


def is_path(rows: layer.Rows, sources: jax.Array, steps: int) -> jax.Array:
  """Whether the `steps` places before each of `sources` are the path to it: bool [B, E].

  Args:
    rows: what the rows hold.
    sources: int32 [B, E], places in the rows.
    steps: how many places back.
  """
  of = lambda x, places: jnp.take_along_axis(x, jnp.maximum(places, 0), axis=1)
  first = sources - steps
  is_below = of(rows.ends, first) > sources
  return (first >= 0) & is_below & (of(rows.depths, sources) - of(rows.depths, first) == steps)


def _modules(params: dict[str, Any]) -> tuple[dict[str, Any], ...]:
  return params_lib.unstack({"mtp": params["mtp"]})["mtp"]


def _merge(module, hidden, embedded, cfg: PolicyConfig) -> jax.Array:
  """W [norm(hidden) ; norm(embedded tokens)]: [B, T, D]."""
  embedded = rms_norm(embedded, module["embed_norm"], cfg.norm_eps)
  hidden = rms_norm(hidden, module["hidden_norm"], cfg.norm_eps)
  return jnp.concatenate([hidden, embedded], axis=-1) @ module["merge"]
