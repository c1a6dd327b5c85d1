"""Causal attention of whole rows on TPU: the splash kernel of `jax.experimental.pallas.ops.tpu`.

It skips tiles that its mask rules out, by a plan that is made before anything runs: causal, or
causal and no further back than a window. Segments are masked inside tiles. Sinks, and values of
another width than keys, are its own (https://github.com/jax-ml/jax, ops/tpu/splash_attention).

Alphabet: B rows, T time of the queries, S time of the keys, G kv heads, R query heads of a kv head,
H head dim.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax

from jaxrl_agents.policy.attention import causal

BLOCK_QUERIES = 512
BLOCK_KEYS = 1024


class Masks(NamedTuple):
  """The kernel with the plan of each mask: all keys up to the query, and those near it (or None).

  Trees of arrays: on a mesh `specs` says how they are split with time and heads.
  """

  full: Any
  near: Any | None


def masks(
  length: int,
  window_tokens: int,
  *,
  time_ways: int = 1,
  head_ways: int = 1,
  interpret: bool = False,
) -> Masks:
  """Plans for rows of `length`, over all devices; all heads of a device share one.

  Args:
    length: T, a multiple of 128 on each device.
    window_tokens: what layers with a window see; 0: there are none.
    time_ways: parts that the time of the queries is split into.
    head_ways: parts that heads are split into.
    interpret: the kernel runs step by step, on any machine.
  """
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask_lib

  queries, keys = _block(length // time_ways, BLOCK_QUERIES), _block(length, BLOCK_KEYS)
  part = min(keys, BLOCK_QUERIES)
  sizes = kernel.BlockSizes(
    block_q=queries,
    block_kv=keys,
    block_kv_compute=part,
    block_q_dkv=queries,
    block_kv_dkv=keys,
    block_kv_dkv_compute=part,
    block_q_dq=queries,
    block_kv_dq=keys,
  )

  def planned(mask):
    return kernel.make_splash_mha(
      mask_lib.MultiHeadMask([mask] * head_ways),
      block_sizes=sizes,
      head_shards=head_ways,
      q_seq_shards=time_ways,
      residual_checkpoint_name=causal.KEPT,
      interpret=interpret,
    )

  shape = (length, length)
  near = mask_lib.LocalMask(shape, (window_tokens - 1, 0), 0) if window_tokens else None
  return Masks(planned(mask_lib.CausalMask(shape)), None if near is None else planned(near))


def specs(made: Masks, sharding: jax.sharding.NamedSharding) -> Masks:
  """Partitions of the plans for shard_map; `sharding` splits (heads, time)."""
  full, near = made
  return Masks(full.manual_sharding_spec(sharding), near and near.manual_sharding_spec(sharding))


def attend(
  made: Masks,
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  query_ids: jax.Array,
  key_ids: jax.Array,
  sinks: jax.Array | None,
  window: jax.Array | None,
) -> jax.Array:
  """What `causal.attend` computes, differentiable.

  Args:
    made: plans of this device.
    q: [B, G, R, T, H].
    k: [B, G, S, H].
    v: [B, G, S, H'].
    query_ids: int32 [B, T].
    key_ids: int32 [B, S].
    sinks: [G, R] or None.
    window: int32 [], see causal.attend: that of `made.near`, or at least S; None with no windows.

  Returns:
    [B, G, R, T, H'].
  """
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

  rows, groups, repeats, length, width = q.shape
  q = (q * width**-0.5).reshape(rows, groups * repeats, length, width)
  sinks = None if sinks is None else sinks.reshape(-1)

  def run(plan, *arrays):
    one = lambda q, k, v, of_q, of_k: plan(q, k, v, kernel.SegmentIds(of_q, of_k), sinks)
    return jax.vmap(one)(*arrays)

  arrays = q, k, v, query_ids, key_ids
  if made.near is None:
    out = run(made.full, *arrays)
  else:
    full, near = (functools.partial(run, plan) for plan in made)
    assert window is not None
    out = jax.lax.cond(window < k.shape[2], near, full, *arrays)
  return out.reshape(rows, groups, repeats, length, v.shape[-1])


def _block(length: int, most: int) -> int:
  """The largest power of two from 128 to `most` that divides `length`."""
  return next(size for size in (1024, 512, 256, 128) if size <= most and length % size == 0)
