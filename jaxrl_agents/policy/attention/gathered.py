"""Attention to rows whose pages were gathered before the first of several steps, for CPUs.

Gathering pages and turning entries into keys and values costs a CPU more than attending to them.
Here that is done once for all steps of a program: what rows have cached becomes keys and values in
the order that products read, in chunks of time, and the entries of new tokens go to a small buffer
behind them, from which `written_back` puts them into their pages. Chunks in which no row has
anything are skipped.

Alphabet: B rows, Q queries (new tokens), K keys of a chunk, N places of the buffer, G kv heads, R
query heads of a kv head, H head dim, Pm pages of a row's table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention.causal import MASKED, start_of_softmax
from jaxrl_agents.policy.config import PolicyConfig

KEYS = 256
"""Keys of a chunk, about."""

Split: TypeAlias = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


@struct.dataclass
class LayerCache:
  """What rows have cached in one layer.

  Attributes:
    keys: of each chunk, [B, G, H, K].
    values: of each chunk, [B, G, K, H'].
    new: [B, N, *entry], entries from position `start` on.
    start: int32 [B], positions of each row that the chunks hold.
  """

  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]
  new: jax.Array
  start: jax.Array


@struct.dataclass
class GatheredCache:
  """Attributes: layers, the trunk's first, then the modules'; see cache.PagedCache."""

  layers: tuple[LayerCache, ...]


@struct.dataclass
class Step:
  """Where the new tokens of one step stand.

  Attributes:
    positions: int32 [B, Q], place of each new token in its sequence.
    is_new: bool [B, Q], False for padding.
  """

  positions: jax.Array
  is_new: jax.Array


def gather(
  cache: cache_lib.PagedCache,
  page_table: jax.Array,
  starts: tuple[jax.Array, jax.Array],
  room: int,
  cfg: PolicyConfig,
) -> GatheredCache:
  """The cache of some rows.

  Args:
    cache: of all sequences.
    page_table: int32 [B, Pm].
    starts: int32 [B], positions that are cached and stay as they are: of the trunk's layers, and of
      the modules'.
    room: N, the most positions from its start on that a row will need.
    cfg: sizes.
  """
  columns, page_tokens = page_table.shape[1], cache.pages.shape[2]
  chunks = max(1, -(-columns * page_tokens // KEYS))
  width = -(-columns // chunks)
  table = jnp.pad(page_table, ((0, 0), (0, chunks * width - columns)))

  def of_layer(layer: int) -> LayerCache:
    start = starts[layer >= cfg.num_layers]
    longest = jnp.max(start)

    def of_chunk(i: int) -> tuple[jax.Array, jax.Array]:
      def read():
        pages = cache.pages[layer, table[:, i * width : (i + 1) * width]]
        keys, values = split(pages.reshape(len(table), width * page_tokens, *pages.shape[3:]), cfg)
        return keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)

      nothing = lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(read))
      return jax.lax.cond(longest > i * width * page_tokens, read, nothing)

    keys, values = zip(*map(of_chunk, range(chunks)), strict=True)
    new = jnp.zeros((len(table), room, *cache.pages.shape[3:]), cache.pages.dtype)
    return LayerCache(keys, values, new, start)

  return GatheredCache(tuple(map(of_layer, range(cfg.num_cache_layers))))


def written_back(
  gathered: GatheredCache,
  cache: cache_lib.PagedCache,
  page_table: jax.Array,
  lengths: jax.Array,
) -> cache_lib.PagedCache:
  """The cache with each row's new entries of positions up to `lengths` (int32 [B]) in its pages."""
  pages = cache.pages
  for layer, held in enumerate(gathered.layers):
    step = cache_lib.plan_step(
      cache, page_table, held.start, lengths - held.start, held.new.shape[1]
    )
    pages = cache_lib.write(pages, layer, step, held.new)
  return dataclasses.replace(cache, pages=pages)


def split(entries: jax.Array, cfg: PolicyConfig) -> tuple[jax.Array, jax.Array]:
  """Cached entries [B, K, *entry] as keys [B, K, G, H] and values [B, K, G, H'].

  MLA's latent, with the rotated key behind it, is key and, without that, value of one group.
  """
  if cfg.attention == "mla":
    return entries[:, :, None], entries[:, :, None, : cfg.kv_lora_rank]
  heads = entries.reshape(*entries.shape[:2], -1, 2, cfg.head_dim)
  return heads[:, :, :, 0], heads[:, :, :, 1]


def plan_step(lengths: jax.Array, num_new: jax.Array, num_queries: int) -> Step:
  """Places of a step's new tokens, see cache.plan_step."""
  offsets = jnp.arange(num_queries, dtype=jnp.int32)
  return Step(lengths[:, None] + offsets, offsets < num_new[:, None])


def attend(
  q: jax.Array,
  entries: jax.Array,
  held: LayerCache,
  step: Step,
  cfg: PolicyConfig,
  scale: float,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
) -> tuple[jax.Array, LayerCache]:
  """softmax(scale q k^T) v over what each row has cached up to each query's own position.

  Args:
    q: [B, Q, G, R, H].
    entries: of the new tokens, [B, Q, *entry].
    held: what the layer has cached.
    step: places of the new tokens.
    cfg: sizes.
    scale: of the scores.
    sinks: [G, R], see causal.attend; or None.
    window: int32 [], see causal.attend; or None.

  Returns:
    ([B, Q, G, R, H'], held with the new entries).
  """
  rows, queries, groups, repeats, width = q.shape
  place = jnp.where(step.is_new, step.positions - held.start[:, None], held.new.shape[1])
  new = held.new.at[jnp.arange(rows)[:, None], place].set(
    entries.astype(held.new.dtype), mode="drop"
  )
  flat = (q * scale).transpose(0, 2, 1, 3, 4).reshape(rows, groups, queries * repeats, width)

  def seen(first, count, end):
    """Of keys from position `first` [B, 1, 1], which each query sees, up to `end` [B, 1 or Q, 1]:
    bool [B, 1, 1 or Q R, count]."""
    keys = first + jnp.arange(count)
    mask = keys < end
    if window is not None:
      mask = mask & (keys > step.positions[:, :, None] - window)
    return (jnp.repeat(mask, repeats, axis=1) if mask.shape[1] > 1 else mask)[:, None]

  def with_keys(softmax, keys, values, mask):
    """Goes on with keys [B, G, H, K] and values [B, G, K, H']."""
    top, total, mixed = softmax
    scores = jnp.matmul(flat, keys.astype(q.dtype), preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores, MASKED)
    new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
    weights, kept = jnp.exp(scores - new_top), jnp.exp(top - new_top)
    total = total * kept + jnp.sum(weights, axis=-1, keepdims=True)
    more = jnp.matmul(
      weights.astype(q.dtype), values.astype(q.dtype), preferred_element_type=jnp.float32
    )
    return new_top, total, mixed * kept + more

  if sinks is not None:
    sinks = jnp.tile(sinks, queries)[..., None]
  value_width = held.values[0].shape[-1]
  softmax = start_of_softmax(sinks, (*flat.shape[:-1], 1))
  softmax = *softmax, jnp.zeros((*flat.shape[:-1], value_width), jnp.float32)
  longest = jnp.max(held.start)
  for i, (keys, values) in enumerate(zip(held.keys, held.values, strict=True)):
    count = keys.shape[-1]
    mask = seen(jnp.full((rows, 1, 1), i * count), count, held.start[:, None, None])
    softmax = jax.lax.cond(
      longest > i * count,
      lambda softmax, keys, values, mask: with_keys(softmax, keys, values, mask),
      lambda softmax, *_: softmax,
      softmax,
      keys,
      values,
      mask,
    )
  keys, values = split(new, cfg)
  mask = seen(held.start[:, None, None], new.shape[1], step.positions[:, :, None] + 1)
  keys, values = keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)
  _, total, mixed = with_keys(softmax, keys, values, mask)
  out = (mixed / total).astype(q.dtype).reshape(rows, groups, queries, repeats, value_width)
  return out.transpose(0, 2, 1, 3, 4), dataclasses.replace(held, new=new)
