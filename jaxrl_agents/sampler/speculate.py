"""Lossless speculative decoding: which drafts stand, and what replaces the first that does not.

A draft x ~ q is accepted with probability min(1, p(x) / q(x)); the first rejected one is replaced
by a draw from norm(max(p - q, 0)); if all stand, a bonus token is drawn from the last p. What comes
out is distributed as p (Leviathan et al., https://arxiv.org/abs/2211.17192; Chen et al.,
https://arxiv.org/abs/2302.01318). Greedy decoding is the case of one-hot p and q.

Alphabet: B rows, d drafts, V vocab.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_agents.sampler import draw


def distribution(weights: jax.Array, best: jax.Array, temperature: jax.Array) -> jax.Array:
  """Probabilities, float32 [B, V]: normalised weights, or one-hot at `best` where greedy.

  Args:
    weights: float32 [B, V], from sample.weigh.
    best: int32 [B], the most likely tokens.
    temperature: float32 [B].
  """
  normalised = weights / jnp.sum(weights, axis=-1, keepdims=True)
  one_hot = jax.nn.one_hot(best, weights.shape[-1], dtype=weights.dtype)
  return jnp.where((temperature <= 0)[:, None], one_hot, normalised)


def accept(
  drafts: jax.Array,
  q: jax.Array,
  p: jax.Array,
  *,
  accept_uniforms: jax.Array,
  final_uniforms: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Accepts a prefix of the drafts and draws the token after it.

  Args:
    drafts: int32 [B, d], each drawn from its q.
    q: float32 [B, d, V], probabilities that the drafts were drawn from.
    p: float32 [B, d + 1, V], probabilities of the main model, each given the drafts before it.
    accept_uniforms: float32 [B, d], in [0, 1).
    final_uniforms: float32 [B, d + 1], in [0, 1): for a draw at each place.

  Returns:
    (tokens int32 [B, d + 1], of which the first num_accepted + 1 are valid; num_accepted int32
    [B]).
  """
  rows, num_drafts = drafts.shape
  p_draft = jnp.take_along_axis(p[:, :num_drafts], drafts[..., None], axis=-1)[..., 0]
  q_draft = jnp.take_along_axis(q, drafts[..., None], axis=-1)[..., 0]
  stands = accept_uniforms * q_draft < p_draft
  num_accepted = jnp.sum(jnp.cumprod(stands, axis=-1), axis=-1)
  place = num_accepted[:, None, None]
  p_place = jnp.take_along_axis(p, place, axis=1)[:, 0]
  q_padded = jnp.pad(q, ((0, 0), (0, 1), (0, 0)))
  residual = jnp.maximum(p_place - jnp.take_along_axis(q_padded, place, axis=1)[:, 0], 0.0)
  # p = q to the last bit leaves no residual; it is then never needed but by rounding.
  residual = jnp.where(jnp.sum(residual, axis=-1, keepdims=True) > 0, residual, p_place)
  uniform = jnp.take_along_axis(final_uniforms, num_accepted[:, None], axis=1)[:, 0]
  final = draw.invert(residual, uniform)
  padded = jnp.pad(drafts, ((0, 0), (0, 1)))
  at_place = jnp.arange(num_drafts + 1) == num_accepted[:, None]
  return jnp.where(at_place, final[:, None], padded), num_accepted.astype(jnp.int32)
