"""Drawing one token per row from logits, and the uniforms that make each draw reproducible.

A draw inverts the cumulative distribution at one uniform per row (`jax.random.categorical` needs a
Gumbel per vocabulary entry). The uniform depends on the request's seed and the position only, so a
reply does not depend on what else is in the batch or on what was drafted (up to float noise in the
logits).

Alphabet: B rows, V vocab, n blocks of the vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_BLOCK = 64


def uniforms(seeds: jax.Array, positions: jax.Array) -> jax.Array:
  """Uniforms in [0, 1), float32 [...]: pure functions of (seed, position).

  Args:
    seeds: uint32 [...], of each request.
    positions: int32 [...], place in the sequence of the token that is drawn.
  """

  def one(seed, position):
    # The 0 keeps the draws of earlier versions.
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), position), 0)
    return jax.random.uniform(key, dtype=jnp.float32)

  flat = jax.vmap(one)(seeds.reshape(-1), positions.reshape(-1))
  return flat.reshape(seeds.shape)


def weigh(
  logits: jax.Array, temperature: jax.Array, top_p: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Unnormalised probabilities exp((z - max z) / temperature), 0 outside the nucleus.

  Where the temperature is 0 (greedy) they are those of temperature 1, and top_p is not applied.

  Args:
    logits: float32 [B, V].
    temperature: float32 [B].
    top_p: float32 [B]; 1 keeps everything.

  Returns:
    (weights float32 [B, V], most likely token int32 [B]).
  """
  highest = jnp.max(logits, axis=-1, keepdims=True)
  greedy = temperature <= 0
  scale = jnp.where(greedy, 1.0, 1.0 / jnp.where(greedy, 1.0, temperature))
  weights = jnp.exp((logits - highest) * scale[:, None])
  top_p = jnp.where(greedy, 1.0, top_p)
  weights = jax.lax.cond(jnp.any(top_p < 1.0), nucleus, lambda w, _: w, weights, top_p)
  return weights, _first(logits == highest)


def nucleus(weights: jax.Array, top_p: jax.Array) -> jax.Array:
  """Zeroes all but the smallest set of most likely tokens that holds at least `top_p` of the
  weight.

  https://arxiv.org/abs/1904.09751. The threshold is found by bisecting the bits of a float32, which
  order like the non-negative numbers that they encode: no sort. Equals of the least likely kept
  token are kept too.

  Args:
    weights: float32 [B, V], in [0, 1] with a 1 in every row.
    top_p: float32 [B].
  """
  bits = jax.lax.bitcast_convert_type(weights, jnp.int32)
  wanted = top_p * jnp.sum(weights, axis=-1)

  def halve(_, bounds):
    low, high = bounds
    middle = (low + high) // 2
    held = jnp.sum(jnp.where(bits >= middle[:, None], weights, 0.0), axis=-1)
    enough = held >= wanted
    return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

  bits_of_one = 0x3F800000
  low = jnp.zeros_like(wanted, jnp.int32)
  high = jnp.full_like(low, bits_of_one + 1)
  threshold, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
  keep = (bits >= threshold[:, None]) | (top_p >= 1.0)[:, None]
  return jnp.where(keep, weights, 0.0)


def invert(weights: jax.Array, uniform: jax.Array) -> jax.Array:
  """The token at which the cumulative weight passes `uniform` of its total.

  Two levels, blocks and then the tokens of one block, so that sums run over few numbers.

  Args:
    weights: float32 [B, V], non-negative, not all 0 in a row.
    uniform: float32 [B], in [0, 1).

  Returns:
    int32 [B], a token of positive weight.
  """
  rows, vocab = weights.shape
  padded = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK)))
  blocks = padded.reshape(rows, -1, _BLOCK)  # [B, n, 64]
  upto_block = jnp.cumsum(jnp.sum(blocks, axis=-1), axis=-1)
  target = uniform[:, None] * upto_block[:, -1:]
  block = _first_above(upto_block, target)
  before = jnp.where(
    block > 0, jnp.take_along_axis(upto_block, jnp.maximum(block - 1, 0), axis=-1), 0.0
  )
  inside = jnp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]  # [B, 64]
  token = block * _BLOCK + _first_above(jnp.cumsum(inside, axis=-1), target - before)
  # Rounding of the sums can point at a neighbour of weight 0.
  valid = jnp.take_along_axis(padded, token, axis=-1) > 0
  likeliest = lambda: _first(weights == jnp.max(weights, axis=-1, keepdims=True))
  token = token[:, 0].astype(jnp.int32)
  return jax.lax.cond(
    jnp.all(valid), lambda: token, lambda: jnp.where(valid[:, 0], token, likeliest())
  )


def sample(
  logits: jax.Array, uniform: jax.Array, temperature: jax.Array, top_p: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Draws a token per row and its log-probability.

  Args:
    logits: float32 [B, V].
    uniform: float32 [B], in [0, 1).
    temperature: float32 [B]; 0 takes the most likely token and records its log-probability at 1.
    top_p: float32 [B]; below 1 the log-probability is of the truncated, renormalised distribution.

  Returns:
    (tokens int32 [B], logprobs float32 [B], natural logarithm).
  """
  weights, best = weigh(logits, temperature, top_p)
  tokens = jnp.where(temperature <= 0, best, invert(weights, uniform))
  return tokens, logprobs(weights, tokens)


def logprobs(weights: jax.Array, tokens: jax.Array) -> jax.Array:
  """log(weights[token] / sum of weights), float32 [B], of weights [B, V] and tokens int32 [B]."""
  chosen = jnp.take_along_axis(weights, tokens[:, None], axis=-1)[:, 0]
  return jnp.log(chosen) - jnp.log(jnp.sum(weights, axis=-1))


def _first(found: jax.Array) -> jax.Array:
  """Index of the first True in each row of [B, V]: int32 [B]. XLA:CPU takes longer for argmax."""
  places = jnp.arange(found.shape[-1], dtype=jnp.int32)
  return jnp.min(jnp.where(found, places, found.shape[-1] - 1), axis=-1)


def _first_above(cumulative: jax.Array, target: jax.Array) -> jax.Array:
  """Index of the first entry of each row above `target` [B, 1]; the last if rounding left none."""
  passed = jnp.sum(cumulative <= target, axis=-1, keepdims=True)
  return jnp.minimum(passed, cumulative.shape[-1] - 1)
