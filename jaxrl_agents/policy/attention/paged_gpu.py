"""Attention of a few new tokens to the paged cache on GPU: a Pallas kernel for Triton.

A step of decoding has few rows and heads, and a GPU many cores: what a row has cached is cut into
parts of equal length, each for a program of its own, and what they found is put together after
(Flash-Decoding, https://pytorch.org/blog/flash-decoding). A program reads keys and values where
they lie, page by page, each once for all queries that share them.

Alphabet: B rows, Q queries (new tokens), K keys of a round, G kv heads, R query heads of a kv head,
N = Q R, H head dim, L layers, P pages, S slots of a page, C width of a key, V of a value.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention.causal import MASKED

FEWEST_QUERIES = 16
"""Queries of a program, of all heads that share a key: at least so many, as a product needs."""

MOST_QUERIES, WIDE_QUERIES = 64, 32
KEYS, WIDE_KEYS = 64, 32
WIDE = 256
"""Most queries of a program and keys of a round; the second ones where keys are wider than WIDE.
Triton needs no more registers and shared memory than an A100 has; nothing was tuned on a device.
"""

PROGRAMS, PART_KEYS = 264, 256
"""Two programs for each core of an H100; parts are not made shorter than PART_KEYS for more."""


def attend(
  q: jax.Array,
  pages: jax.Array,
  layer: jax.Array | int,
  step: cache_lib.Step,
  scale: float,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
  *,
  latent_width: int | None = None,
  interpret: bool = False,
) -> jax.Array:
  """What `paged.attend` computes, on one device; padding gives anything finite.

  Args:
    q: [B, Q, G, R, C].
    pages: [L, P, S, 2 G, C] or [L, P, S, 2 G C], key and value of each head in turn; or latents.
    layer, step, scale, sinks, window: as `paged.attend`.
    latent_width: V of pages [L, P, S, C] that hold what all heads share: a key, whose beginning is
      the value. V and C - V are powers of two; None: as the others, and C is one.
    interpret: run it step by step, on any machine.

  Returns:
    [B, Q, G, R, V].
  """
  rows, queries, groups, repeats, width = q.shape
  entries = pages.reshape(*pages.shape[:3], -1, width)
  number = queries * repeats
  most = WIDE_QUERIES if width > WIDE else MOST_QUERIES
  block = min(max(FEWEST_QUERIES, pl.next_power_of_2(number)), most)
  more = -number % block
  flat = (q * scale).transpose(0, 2, 1, 3, 4).reshape(rows, groups, number, width)
  flat = jnp.pad(flat, ((0, 0), (0, 0), (0, more), (0, 0)))
  places = jnp.pad(jnp.repeat(step.positions, repeats, axis=1), ((0, 0), (0, more)))
  found = _of_parts(
    flat,
    entries,
    jnp.asarray(layer, jnp.int32),
    step.page_table,
    places,
    _ranges(step, window),
    window,
    block=block,
    value_width=latent_width or width,
    interpret=interpret,
  )
  if sinks is not None:
    sinks = jnp.pad(jnp.tile(sinks, queries), ((0, 0), (0, more)))
  out = _together(*found, sinks)[:, :, :number].astype(q.dtype)
  return out.reshape(rows, groups, queries, repeats, -1).transpose(0, 2, 1, 3, 4)


def _ranges(step: cache_lib.Step, window: jax.Array | None) -> jax.Array:
  """The first key that a new token of each row sees, and the one after the last: int32 [B, 2]."""
  real = step.page != cache_lib.SCRATCH_PAGE
  last = jnp.max(jnp.where(real, step.positions + 1, 0), axis=1)
  nearest = jnp.min(jnp.where(real, step.positions, jnp.iinfo(jnp.int32).max), axis=1)
  first = jnp.zeros_like(last) if window is None else jnp.maximum(nearest - window + 1, 0)
  return jnp.stack([jnp.minimum(first, last), last], axis=1).astype(jnp.int32)


def _of_parts(
  q, entries, layer, table, places, ranges, window, *, block, value_width, interpret
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """For each part: sums of values by weight, largest scores, and sums of weights.

  Args:
    q: [B, G, N, C], N a multiple of `block`.
    entries: [L, P, S, 2 G, C], or of latents [L, P, S, 1, C].
    places: int32 [B, N], positions of the queries.
    ranges: int32 [B, 2], keys that are read, the second one not included.

  Returns:
    (float32 [parts, B, G, N, V], float32 [parts, B, G, N], the same).
  """
  rows, groups, number, width = q.shape
  slots, latents = entries.shape[2], entries.shape[3] == 1
  blocks, keys = number // block, WIDE_KEYS if width > WIDE else KEYS
  most = -(-table.shape[1] * slots // PART_KEYS)
  parts = min(max(1, -(-PROGRAMS // (rows * groups * blocks))), most)
  limits = jnp.stack([layer, jnp.int32(0) if window is None else window.astype(jnp.int32)])

  def kernel(limits, ranges, table, places, q, entries, mixed, top, total):
    head, part, row = (pl.program_id(axis) for axis in range(3))
    group = jax.lax.div(head, blocks)
    first, last = ranges[row, 0], ranges[row, 1]
    share = jax.lax.div(last - first + parts - 1, parts)
    begin = first + part * share
    end = jnp.minimum(begin + share, last)
    place = places[...]
    cuts = [(0, value_width), (value_width, width)] if latents else [(0, width)]
    queries = [q[:, pl.ds(a, b - a)] for a, b in cuts if b > a]

    def with_keys(n, carry):
      top, total, mixed = carry
      key = begin + n * keys + jnp.arange(keys)
      inside = jnp.minimum(key, end - 1)
      page, slot = table[jax.lax.div(inside, slots)], jax.lax.rem(inside, slots)
      read = lambda entry, a, b: entries[limits[0], page, slot, entry, pl.ds(a, b - a)].astype(
        q.dtype
      )
      found = [read(0 if latents else 2 * group, a, b) for a, b in cuts if b > a]
      scores = sum(_dot(mine, theirs, 1) for mine, theirs in zip(queries, found, strict=True))
      values = found[0] if latents else read(2 * group + 1, 0, width)
      seen = (key[None] <= place[:, None]) & (key[None] < end)
      if window is not None:
        seen &= key[None] > place[:, None] - limits[1]
      scores = jnp.where(seen, scores, MASKED)
      new_top = jnp.maximum(top, jnp.max(scores, axis=1))
      kept = jnp.exp(top - new_top)
      weights = jnp.where(seen, jnp.exp(scores - new_top[:, None]), 0.0)
      mixed = mixed * kept[:, None] + _dot(weights.astype(q.dtype), values, 0)
      return new_top, total * kept + jnp.sum(weights, axis=1), mixed

    carry = (
      jnp.full((block,), MASKED, jnp.float32),
      jnp.zeros((block,), jnp.float32),
      jnp.zeros((block, value_width), jnp.float32),
    )
    rounds = jax.lax.div(jnp.maximum(end - begin, 0) + keys - 1, keys)
    top[...], total[...], mixed[...] = jax.lax.fori_loop(0, rounds, with_keys, carry)

  def spec(shape, of_part):
    ahead = (None,) * (3 if of_part else 2)

    def index(head, part, row):
      place = row, jax.lax.div(head, blocks), jax.lax.rem(head, blocks), *[0] * (len(shape) - 1)
      return (part, *place) if of_part else place

    return pl.BlockSpec((*ahead, *shape), index)

  whole = lambda x: pl.BlockSpec(x.shape, lambda *_: (0,) * x.ndim)
  statistics = jax.ShapeDtypeStruct((parts, rows, groups, number), jnp.float32)
  return _call(
    kernel,
    grid=(groups * blocks, parts, rows),
    in_specs=[
      whole(limits),
      whole(ranges),
      pl.BlockSpec((None, table.shape[1]), lambda head, part, row: (row, 0)),
      pl.BlockSpec((None, block), lambda head, part, row: (row, jax.lax.rem(head, blocks))),
      spec((block, width), False),
      whole(entries),
    ],
    out_specs=[spec((block, value_width), True), *[spec((block,), True)] * 2],
    out_shape=[
      jax.ShapeDtypeStruct((*statistics.shape, value_width), jnp.float32),
      statistics,
      statistics,
    ],
    width=width,
    interpret=interpret,
  )(limits, ranges, table, places, q, entries)


def _together(mixed, top, total, sinks: jax.Array | None) -> jax.Array:
  """The softmax over all parts, and sinks [G, N]: float32 [B, G, N, V]."""
  highest = jnp.max(top, axis=0)
  if sinks is not None:
    sinks = sinks.astype(jnp.float32)
    highest = jnp.maximum(highest, sinks)
  kept = jnp.exp(top - highest)
  whole = jnp.sum(total * kept, axis=0)
  if sinks is not None:
    whole += jnp.exp(sinks - highest)
  values = jnp.sum(mixed * kept[..., None], axis=0)
  return values / jnp.where(whole == 0, 1.0, whole)[..., None]  # 0: a row without work


def _dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
  """a b, or a b^T where `axis`, which of b is summed over, is 1: float32."""
  return jax.lax.dot_general(a, b, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)


def _call(kernel, *, width: int, interpret: bool, **shapes):
  from jax.experimental.pallas import triton

  return pl.pallas_call(
    kernel,
    compiler_params=triton.CompilerParams(num_warps=8 if width > WIDE else 4, num_stages=2),
    interpret=interpret,
    name="paged_attention_parts",
    **shapes,
  )
