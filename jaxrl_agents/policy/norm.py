"""RMSNorm, computed in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
  """x / sqrt(mean(x^2) + eps) * scale over the last axis (https://arxiv.org/abs/1910.07467)."""
  wide = x.astype(jnp.float32)
  inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
  return (wide * inverse).astype(x.dtype) * scale
