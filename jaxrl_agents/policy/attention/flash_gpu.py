"""Causal attention of whole rows on GPU: the Triton kernel of `jax.experimental.pallas.ops.gpu`.

Alphabet: B rows, T time, G kv heads, R query heads of a kv head, H head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK_FORWARD = 64
BLOCK_BACKWARD = 32


def attend(
  q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *, interpret: bool = False
) -> jax.Array:
  """What `causal.attend` computes without sinks and windows, differentiable.

  Its heads are all of one width and have keys of their own: the narrower ones are padded, keys
  repeated.

  Args:
    q: [B, G, R, T, H].
    k: [B, G, T, H].
    v: [B, G, T, H'].
    segment_ids: int32 [B, T].
    interpret: run it step by step, on any machine.

  Returns:
    [B, G, R, T, H'].
  """
  from jax.experimental.pallas.ops.gpu import attention as kernel

  rows, groups, repeats, length, width = q.shape
  wide = max(width, v.shape[-1])
  padded = lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, wide - x.shape[-1])])
  own = lambda x: jnp.repeat(padded(x).transpose(0, 2, 1, 3), repeats, axis=2)
  out = kernel.mha(
    padded(q).reshape(rows, groups * repeats, length, wide).transpose(0, 2, 1, 3),
    own(k),
    own(v),
    segment_ids,
    sm_scale=width**-0.5,
    causal=True,
    block_sizes=kernel.BlockSizes(
      block_q=BLOCK_FORWARD,
      block_k=BLOCK_FORWARD,
      block_q_dkv=BLOCK_BACKWARD,
      block_kv_dkv=BLOCK_BACKWARD,
      block_q_dq=BLOCK_BACKWARD,
      block_kv_dq=BLOCK_BACKWARD,
    ),
    interpret=interpret,
  )
  out = out[..., : v.shape[-1]].transpose(0, 2, 1, 3)
  return out.reshape(rows, groups, repeats, length, v.shape[-1])
