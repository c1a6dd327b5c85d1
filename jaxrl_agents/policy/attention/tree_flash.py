"""Attention of rows with trees by kernels of our own: what `causal.attend` computes.

Kernels of jax know sequences by an id, which says nothing of two that share their beginning. Ours
know what `causal` does: the place after the last token below each key. Which tiles they compute is
planned before (`tree_tiles`), the rest is FlashAttention-2 (https://arxiv.org/abs/2307.08691) with
one kernel for the output and two for gradients, of queries and of keys.

Alphabet: B rows, T time of the queries, S time of the keys, G kv heads, R query heads of a kv head,
N = G R, H head dim.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxrl_agents.policy.attention import causal, tree_flash_gpu, tree_flash_tpu, tree_tiles
from jaxrl_agents.policy.attention.tree_tiles import Given, Places
from jaxrl_agents.policy.kernel_choice import Kind

_KERNELS: dict[str, Any] = {"tpu": tree_flash_tpu, "gpu": tree_flash_gpu}


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  ends: jax.Array,
  depths: jax.Array,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
  start: jax.Array | None = None,
  *,
  kernels: Kind,
  interpret: bool = False,
) -> jax.Array:
  """softmax(q k^T / sqrt(H)) v over the keys on the path from the root to the query.

  Args:
    q: [B, G, R, T, H], T a multiple of 128.
    k: [B, G, S, H], S a multiple of 128.
    v: [B, G, S, H'].
    ends, depths, sinks, window, start: as `causal.attend`.
    kernels: of which kind of accelerator, "tpu" or "gpu".
    interpret: they run step by step, on any machine.

  Returns:
    [B, G, R, T, H'].
  """
  rows, groups, repeats, length, width = q.shape
  start = jnp.int32(0) if start is None else start
  query_depths = jax.lax.dynamic_slice_in_dim(depths, start, length, axis=1)
  places = Places(ends, start, window, depths, query_depths)
  if sinks is None:
    sinks = jnp.full((groups, repeats), causal.MASKED, jnp.float32)
  filled_up = _KERNELS[kernels].head_width
  fill = lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, filled_up(x.shape[-1]) - x.shape[-1])])
  scaled = fill(q * width**-0.5).reshape(rows, groups * repeats, length, -1)
  out = _attend(scaled, fill(k), fill(v), sinks, places, kernels, interpret)
  return out.reshape(*q.shape[:4], -1)[..., : v.shape[-1]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(q, k, v, sinks, places, kernels, interpret):
  return _forward(q, k, v, sinks, places, kernels, interpret)[0]


def _forward(q, k, v, sinks, places, kernels, interpret):
  over_keys, _ = tree_tiles.plans(places, *_KERNELS[kernels].sides(q, k))
  flat = sinks.astype(jnp.float32).reshape(-1)
  run = functools.partial(_KERNELS[kernels].forward, interpret=interpret)
  out, log_total = checkpoint_name(run(q, k, v, flat, places, over_keys), causal.KEPT)
  return out, (q, k, v, sinks, places, out, log_total)


def _backward(kernels, interpret, saved, d_out):
  q, k, v, sinks, places, out, log_total = saved
  module = _KERNELS[kernels]
  over_keys, over_queries = tree_tiles.plans(places, *module.sides(q, k))
  mean = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)
  given = Given(q, k, v, d_out, log_total, mean, places)
  d_q = module.backward_of_queries(given, over_keys, interpret=interpret)
  d_k, d_v = module.backward_of_keys(given, over_queries, interpret=interpret)
  by_group = lambda x: x.reshape(x.shape[0], *sinks.shape, *x.shape[2:])
  d_sinks = causal.backward_of_sinks(
    sinks, by_group(out), by_group(log_total)[..., None], by_group(d_out)
  )
  return d_q, d_k, d_v, d_sinks, None


_attend.defvjp(_forward, _backward)
