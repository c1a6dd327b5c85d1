"""Attention to keys and values in the order that products read, for CPUs.

Reading pages and turning their entries into keys and values costs a CPU more than attending to
them. So when a prompt has been computed, what is cached of it is copied to a slot of its own
(`SlotCache`), from which decode steps read; its pages are what other sequences find its prefix in.
The entries of new tokens go to a small buffer, and at the end of a program of several steps to the
slots (`with_new`) and to the pages (`written_back`).

Keys and values of slots stand in chunks of time, and in blocks of slots, so that a program of few
rows reads the first block as it is. A step reads a chunk of all rows of a block in one product, or
row by row where many rows have nothing in it: what limits a step is how much it reads.

Alphabet: B rows, Q queries (new tokens), K keys of a chunk, N places of the buffer, G kv heads, R
query heads of a kv head, H head dim, Pm pages of a row's table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention.causal import MASKED, start_of_softmax
from jaxrl_agents.policy.config import PolicyConfig

KEYS = 256
"""Keys of a chunk, about."""


@struct.dataclass
class Chunks:
  """Attributes: keys, of each chunk [B, G, H, K]; values, of each chunk [B, G, K, H']."""

  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]

  @property
  def num_rows(self) -> int:
    """B."""
    return self.keys[0].shape[0]


@struct.dataclass
class SlotCache:
  """Attributes: layers, of each layer the chunks of each block of slots."""

  layers: tuple[tuple[Chunks, ...], ...]


@struct.dataclass
class BufferedLayer:
  """What rows have cached in one layer.

  Attributes:
    blocks: the chunks of the rows, block by block.
    new: [B, N, *entry], entries from position `start` on.
    start: int32 [B], positions of each row that the chunks hold.
  """

  blocks: tuple[Chunks, ...]
  new: jax.Array
  start: jax.Array


@struct.dataclass
class BufferedSlots:
  """The first slots, and a buffer for the new tokens of a program.

  Attributes:
    layers: the trunk's first, then the modules'; see cache.PagedCache.
  """

  layers: tuple[BufferedLayer, ...]


@struct.dataclass
class Step:
  """Where the new tokens of one step stand.

  Attributes:
    positions: int32 [B, Q], place of each new token in its sequence.
    is_new: bool [B, Q], False for padding.
  """

  positions: jax.Array
  is_new: jax.Array


def empty_slots(
  cache: cache_lib.PagedCache, columns: int, blocks: Sequence[int], cfg: PolicyConfig
) -> SlotCache:
  """Slots that hold nothing.

  Args:
    cache: that slots are filled from.
    columns: of a page table.
    blocks: slots of each block.
    cfg: sizes.
  """
  _, _, page_tokens, *entry = cache.pages.shape
  one = jax.ShapeDtypeStruct((1, columns * page_tokens, *entry), cache.pages.dtype)
  shapes = jax.eval_shape(lambda entries: _chunks(entries, cfg), one)
  of_block = lambda slots: jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), shapes)
  return SlotCache(tuple(tuple(map(of_block, blocks)) for _ in range(cfg.num_cache_layers)))


def of_slots(
  slots: SlotCache,
  cache: cache_lib.PagedCache,
  starts: jax.Array,
  room: int,
  cfg: PolicyConfig,
) -> BufferedSlots:
  """What the first slots hold, as many as there are starts: whole blocks.

  Args:
    slots: of all sequences that decode.
    cache: whose entries `room` is made for.
    starts: int32 [B], positions that are cached and stay as they are; of module k (from 0), k
      fewer.
    room: N, the most positions from its start on that a row will need.
    cfg: sizes.
  """

  def first(blocks: tuple[Chunks, ...]) -> tuple[Chunks, ...]:
    return tuple(block for block, rows in _with_rows(blocks) if rows.stop <= len(starts))

  new = jnp.zeros((len(starts), room, *cache.pages.shape[3:]), cache.pages.dtype)
  start = lambda layer: jnp.maximum(starts - max(layer - cfg.num_layers, 0), 0)
  return BufferedSlots(
    tuple(
      BufferedLayer(first(blocks), new, start(layer)) for layer, blocks in enumerate(slots.layers)
    )
  )


def _with_rows(blocks: tuple[Chunks, ...]) -> Iterator[tuple[Chunks, slice]]:
  """Each block with the place of its rows among those of all blocks."""
  first = 0
  for block in blocks:
    yield block, slice(first, first + block.num_rows)
    first += block.num_rows


def _chunks(entries: jax.Array, cfg: PolicyConfig) -> Chunks:
  """The chunks of entries [B, tokens, *entry]."""
  tokens = entries.shape[1]
  count = max(1, tokens // KEYS)
  size = -(-tokens // count)
  more = [(0, 0)] * entries.ndim
  more[1] = 0, count * size - tokens
  keys, values = cache_lib.split(jnp.pad(entries, more), cfg)
  keys, values = keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)
  return Chunks(
    tuple(jnp.split(keys, count, axis=3)),
    tuple(jnp.split(values, count, axis=2)),
  )


def written_back(
  used: BufferedSlots,
  cache: cache_lib.PagedCache,
  page_table: jax.Array,
  lengths: jax.Array,
) -> cache_lib.PagedCache:
  """The pages with each row's new entries of positions up to `lengths` (int32 [B])."""
  layers = used.layers
  of_layer = lambda held: cache_lib.plan_step(
    cache, page_table, held.start, lengths - held.start, held.new.shape[1]
  )
  steps = jax.tree.map(lambda *x: jnp.stack(x), *map(of_layer, layers))
  index = jnp.arange(len(layers))[:, None, None]
  return cache_lib.PagedCache(
    cache_lib.write(cache.pages, index, steps, jnp.stack([held.new for held in layers]))
  )


def with_new(held: BufferedLayer, lengths: jax.Array, cfg: PolicyConfig) -> tuple[Chunks, ...]:
  """The blocks with each row's new entries of positions up to `lengths` (int32 [B])."""
  return tuple(
    _block_with_new(block, held.new[rows], held.start[rows], lengths[rows], cfg)
    for block, rows in _with_rows(held.blocks)
  )


def _block_with_new(block: Chunks, new, start, lengths, cfg: PolicyConfig) -> Chunks:
  rows, size = jnp.arange(new.shape[0])[:, None], block.keys[0].shape[-1]
  positions = start[:, None] + jnp.arange(new.shape[1])
  new_keys, new_values = cache_lib.split(new, cfg)
  keys, values = [], []
  for i, (old_keys, old_values) in enumerate(zip(block.keys, block.values, strict=True)):
    place = positions - i * size
    is_here = (positions < lengths[:, None]) & (place >= 0)
    place = jnp.where(is_here, place, size)  # out of range: not written
    keys.append(old_keys.at[rows, :, :, place].set(new_keys, mode="drop"))
    values.append(old_values.at[rows, :, place].set(new_values, mode="drop"))
  return Chunks(tuple(keys), tuple(values))


def filled(
  slots: SlotCache,
  cache: cache_lib.PagedCache,
  page_table: jax.Array,
  places: jax.Array,
  cfg: PolicyConfig,
) -> SlotCache:
  """The slots with what the pages of rows hold.

  Args:
    slots: of all sequences that decode.
    cache: of all sequences.
    page_table: int32 [B, Pm].
    places: int32 [B], the slot of each row; out of range for none.
    cfg: sizes.
  """
  num_slots = sum(block.num_rows for block in slots.layers[0])
  is_placed = places < num_slots
  order = jnp.argsort(~is_placed, stable=True)

  def with_row(i, layers):
    row = order[i]
    entries = cache.pages[:, page_table[row]]
    entries = entries.reshape(len(entries), 1, -1, *entries.shape[3:])

    def of_block(block: Chunks, rows: slice, chunks: Chunks) -> Chunks:
      is_here = (places[row] >= rows.start) & (places[row] < rows.stop)
      place = jnp.where(is_here, places[row] - rows.start, block.num_rows)[None]
      return jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), block, chunks)

    def of_layer(blocks: tuple[Chunks, ...], chunks: Chunks) -> tuple[Chunks, ...]:
      return tuple(of_block(block, rows, chunks) for block, rows in _with_rows(blocks))

    return tuple(map(of_layer, layers, (_chunks(x, cfg) for x in entries)))

  return SlotCache(jax.lax.fori_loop(0, jnp.sum(is_placed), with_row, slots.layers))


def advanced(slots: SlotCache, used: BufferedSlots, lengths: jax.Array, cfg) -> SlotCache:
  """The slots after the steps of a program of `of_slots`."""

  def of_layer(blocks: tuple[Chunks, ...], held: BufferedLayer) -> tuple[Chunks, ...]:
    return with_new(held, lengths, cfg) + blocks[len(held.blocks) :]

  return SlotCache(tuple(map(of_layer, slots.layers, used.layers)))


def moved(slots: SlotCache, old: jax.Array, new: jax.Array) -> SlotCache:
  """The slots with what the slots `old` of the second block hold also in the slots `new` of the
  first (int32 [B]); where `new` is out of range nothing is moved."""

  def of_layer(blocks: tuple[Chunks, ...]) -> tuple[Chunks, ...]:
    first, second = blocks
    from_second = old - first.num_rows
    move = lambda to, of: to.at[new].set(of.at[from_second].get(mode="clip"), mode="drop")
    return jax.tree.map(move, first, second), second

  return SlotCache(tuple(map(of_layer, slots.layers)))


def plan_step(lengths: jax.Array, num_new: jax.Array, num_queries: int) -> Step:
  """Places of a step's new tokens, see cache.plan_step."""
  offsets = jnp.arange(num_queries, dtype=jnp.int32)
  return Step(lengths[:, None] + offsets, offsets < num_new[:, None])


def attend(
  q: jax.Array,
  entries: jax.Array,
  held: BufferedLayer,
  step: Step,
  cfg: PolicyConfig,
  scale: float,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
) -> tuple[jax.Array, BufferedLayer]:
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
  place = jnp.where(step.is_new, step.positions - held.start[:, None], held.new.shape[1])
  new = held.new.at[jnp.arange(q.shape[0])[:, None], place].set(
    entries.astype(held.new.dtype), mode="drop"
  )
  of_blocks = [
    _attend_block(
      q[rows] * scale, block, new[rows], held.start[rows], step.positions[rows], cfg, sinks, window
    )
    for block, rows in _with_rows(held.blocks)
  ]
  return jnp.concatenate(of_blocks), dataclasses.replace(held, new=new)


def _attend_block(q, block: Chunks, new, start, positions, cfg: PolicyConfig, sinks, window):
  rows, queries, groups, repeats, width = q.shape
  flat = q.transpose(0, 2, 1, 3, 4).reshape(rows, groups, queries * repeats, width)

  def seen(first, count, end):
    """Which keys from position `first` [B, 1, 1] on each query sees, of those before `end`
    [B, 1 or Q, 1]: bool [B, 1, 1 or Q R, count]."""
    keys = first + jnp.arange(count)
    mask = keys < end
    if window is not None:
      mask = mask & (keys > positions[:, :, None] - window)
    return (jnp.repeat(mask, repeats, axis=1) if mask.shape[1] > 1 else mask)[:, None]

  def with_keys(softmax, flat, keys, values, mask):
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

  def with_chunk(softmax, keys, values, mask, has_any):
    """Goes on with a chunk, in which only the rows `has_any` (bool [B]) have keys."""
    chunk = flat, keys, values, mask
    at_once = lambda softmax: with_keys(softmax, *chunk)
    if rows <= cache_lib.MOST_ROWS:
      return jax.lax.cond(jnp.any(has_any), at_once, lambda softmax: softmax, softmax)
    by_row = lambda softmax: cache_lib.for_rows(with_keys, has_any, softmax, *chunk)
    count = jnp.sum(has_any)
    few = cache_lib.read_by_row(count, rows, (keys.nbytes + values.nbytes) // rows)
    ways = (lambda softmax: softmax), by_row, at_once
    return jax.lax.switch(jnp.where(count == 0, 0, jnp.where(few, 1, 2)), ways, softmax)

  if sinks is not None:
    sinks = jnp.tile(sinks, queries)[..., None]
  value_width = block.values[0].shape[-1]
  start_of_sums = start_of_softmax(sinks, (*flat.shape[:-1], 1))
  softmax = *start_of_sums, jnp.zeros((*flat.shape[:-1], value_width), jnp.float32)
  for i, (keys, values) in enumerate(zip(block.keys, block.values, strict=True)):
    count = keys.shape[-1]
    mask = seen(jnp.full((rows, 1, 1), i * count), count, start[:, None, None])
    softmax = with_chunk(softmax, keys, values, mask, start > i * count)
  keys, values = cache_lib.split(new, cfg)
  mask = seen(start[:, None, None], new.shape[1], positions[:, :, None] + 1)
  keys, values = keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)
  _, total, mixed = with_keys(softmax, flat, keys, values, mask)
  out = (mixed / total).astype(q.dtype).reshape(rows, groups, queries, repeats, value_width)
  return out.transpose(0, 2, 1, 3, 4)
