"""Attention to the paged cache, a few pages at a time.

What a row has cached is never gathered whole: the loop goes over the columns of the page table, as
far as the longest row of the step, and keeps the running maximum and sums of a softmax
(FlashAttention-2, https://arxiv.org/abs/2307.08691, algorithm 1): what a round reads stays in the
cache of a core, where a gathered copy would be written to memory and read again. On a CPU each row
has a loop of its own where rows differ much in length.

Alphabet: B rows, Q queries (new tokens), K keys of a few pages, G kv heads, R query heads of a kv
head, N = Q R, H head dim, C cache width, Pm pages of a row's table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_agents.policy import kernel_choice
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention.causal import MASKED, start_of_softmax

PAGES, CPU_KEYS, ROW_KEYS = 2, 128, 256
"""Columns of the page table that one round reads at least, and keys that it reads on CPU, of all
rows and of a row by itself.
"""

KEYS, SCORES = 1_024, 1 << 18
"""Keys of a round on an accelerator, and scores of a row and head, whichever are fewer: the rounds
of a decode step take as long as starting them, those of a prefill hold the scores of all queries.
"""

PACKED_QUERIES = 16
"""Queries of a row up to which `attend_packed` is used."""


def pages_of_round(queries: int, page_tokens: int, columns: int, rows: int = 2) -> int:
  """How many columns of a page table one round of a step of so many rows, with so many queries
  each, reads."""
  if kernel_choice.platform() == "cpu":
    keys = CPU_KEYS if rows > 1 else ROW_KEYS
  else:
    keys = min(KEYS, SCORES // queries)
  return min(max(PAGES, keys // page_tokens), columns)


def attend(
  q: jax.Array,
  pages: jax.Array,
  layer: jax.Array | int,
  step: cache_lib.Step,
  split: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
  scale: float,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
) -> jax.Array:
  """softmax(scale q k^T) v over what each row has cached up to each query's own position.

  Args:
    q: [B, Q, G, R, H].
    pages: of the cache, the step's own entries written.
    layer: whose entries to read.
    step: page tables and positions.
    split: cached entries [B, K, *entry] as keys [B, K, G, H] and values [B, K, G, H'].
    scale: of the scores.
    sinks: [G, R], see causal.attend; or None.
    window: int32 [], see causal.attend; or None.

  Returns:
    [B, Q, G, R, H'].
  """
  rows, queries, groups, repeats, width = q.shape
  flat = (q * scale).transpose(0, 2, 1, 3, 4).reshape(rows, groups, queries * repeats, width)
  mix = functools.partial(
    _mixed, pages=pages, layer=layer, split=split, sinks=sinks, window=window, repeats=repeats
  )
  if kernel_choice.platform() == "cpu" and rows > cache_lib.MOST_ROWS:
    keys = _keys_of_round(step, pages)
    works = jnp.any(step.page != cache_lib.SCRATCH_PAGE, axis=1)
    rounds = jnp.where(works, jnp.max(step.positions, axis=1) // keys + 1, 0)
    entries_bytes = keys * pages[0, 0, 0].nbytes
    few = cache_lib.read_by_row(jnp.sum(rounds), rows * jnp.max(rounds), entries_bytes)
    out = jax.lax.cond(few, functools.partial(_row_by_row, mix, works), mix, flat, step)
  else:
    out = mix(flat, step)
  out = out.astype(q.dtype).reshape(rows, groups, queries, repeats, -1)
  return out.transpose(0, 2, 1, 3, 4)


def _row_by_row(mix, works: jax.Array, flat: jax.Array, step: cache_lib.Step) -> jax.Array:
  """`mix` of each row that works (bool [B]) by itself; 0 for the others."""
  one = jax.eval_shape(mix, flat, step)
  nothing = jnp.zeros(one.shape, one.dtype)
  return cache_lib.for_rows(lambda _, *row: mix(*row), works, nothing, flat, step)


def _keys_of_round(step: cache_lib.Step, pages: jax.Array) -> int:
  (rows, queries), page_tokens = step.positions.shape, pages.shape[2]
  return pages_of_round(queries, page_tokens, step.page_table.shape[1], rows) * page_tokens


def _mixed(
  flat: jax.Array,
  step: cache_lib.Step,
  *,
  pages: jax.Array,
  layer: jax.Array | int,
  split: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
  sinks: jax.Array | None,
  window: jax.Array | None,
  repeats: int,
) -> jax.Array:
  """`attend` of scaled queries [B, G, N, H], float32 [B, G, N, H']."""
  rows, queries = step.positions.shape
  num_keys = _keys_of_round(step, pages)
  num_pages = num_keys // pages.shape[2]
  table = jnp.pad(step.page_table, ((0, 0), (0, -step.page_table.shape[1] % num_pages)))
  first, rounds = _rounds(step, num_keys, window)

  def of_pages(i, carry):
    top, total, mixed = carry
    columns = jax.lax.dynamic_slice_in_dim(table, i * num_pages, num_pages, axis=1)
    entries = pages[layer, columns].reshape(rows, num_keys, *pages.shape[3:]).astype(flat.dtype)
    keys, values = split(entries)
    scores = jnp.einsum("bkgh,bgnh->bgnk", keys, flat, preferred_element_type=jnp.float32)
    seen = i * num_keys + jnp.arange(num_keys) <= step.positions[:, :, None]
    if window is not None:
      near = i * num_keys + jnp.arange(num_keys) > step.positions[:, :, None] - window
      seen = seen & near
    scores = jnp.where(jnp.repeat(seen, repeats, axis=1)[:, None], scores, MASKED)
    new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
    weights, kept = jnp.exp(scores - new_top), jnp.exp(top - new_top)
    more = jnp.einsum(
      "bgnk,bkgh->bgnh", weights.astype(flat.dtype), values, preferred_element_type=jnp.float32
    )
    total = total * kept + jnp.sum(weights, axis=-1, keepdims=True)
    return new_top, total, mixed * kept + more

  entry = jax.ShapeDtypeStruct((rows, num_keys, *pages.shape[3:]), flat.dtype)
  value_width = jax.eval_shape(split, entry)[1].shape[-1]
  if sinks is not None:
    sinks = jnp.tile(sinks, queries)[..., None]
  softmax = start_of_softmax(sinks, (*flat.shape[:-1], 1))
  start = *softmax, jnp.zeros((*flat.shape[:-1], value_width), jnp.float32)
  _, total, mixed = jax.lax.fori_loop(first, rounds, of_pages, start)
  return mixed / total


def attend_packed(
  q: jax.Array,
  pages: jax.Array,
  layer: jax.Array | int,
  step: cache_lib.Step,
  scale: float,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
) -> jax.Array:
  """`attend` to entries [2 G H] as they lie, for few queries of narrow heads on an accelerator.

  Taking an entry apart into heads narrower than lanes costs a TPU many times what reading it does.
  Here each query is as wide as an entry, 0 but for the place of its own head's key, and of what
  all values add up to its own head's is taken: many products with 0, which are cheap for so few.

  Args:
    pages: [L, P, S, 2 G H].
    q, layer, step, scale, sinks, window: as `attend`.

  Returns:
    [B, Q, G, R, H].
  """
  rows, queries, groups, repeats, width = q.shape
  own = jnp.eye(groups, dtype=q.dtype)
  keys = jnp.einsum("bqgrh,ge->bqgreh", q, own)
  wide = jnp.stack([keys, jnp.zeros_like(keys)], axis=-2)
  wide = wide.reshape(rows, queries, 1, groups * repeats, -1)
  whole = lambda entries: (entries[:, :, None], entries[:, :, None])
  sinks = None if sinks is None else sinks.reshape(1, -1)
  mixed = attend(wide, pages, layer, step, whole, scale, sinks, window)
  mixed = mixed.reshape(rows, queries, groups, repeats, groups, 2, width)[..., 1, :]
  return jnp.einsum("bqgreh,ge->bqgrh", mixed, own)


def _rounds(step: cache_lib.Step, num_keys: int, window: jax.Array | None):
  """The first round that any new token sees something of, and the one after the last."""
  padding = step.page == cache_lib.SCRATCH_PAGE
  last = jnp.max(jnp.where(padding, 0, step.positions)) // num_keys
  if window is None:
    return 0, last + 1
  nearest = jnp.min(jnp.where(padding, jnp.iinfo(jnp.int32).max, step.positions))
  # At least one round, so that padding divides by no zero.
  return jnp.clip((nearest - window + 1) // num_keys, 0, last), last + 1
