"""Attention to the paged cache on TPU: the kernel of `jax.experimental.pallas.ops.tpu`.

It reads a row's pages one after the other, for all of its new queries at once. All layers' pages
are given to it as one row of pages, so that no layer's are copied out.

Alphabet: B rows, Q queries (new tokens), G kv heads, R query heads of a kv head, H head dim, L
layers, P pages, S slots of a page.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_agents.policy.attention import cache as cache_lib

BLOCK_KEYS = 512
BLOCK_QUERIES = 32
"""Cached tokens and queries that are read at once. The kernel's own table needs a TPU."""


def attend(
  q: jax.Array, pages: jax.Array, layer: jax.Array | int, step: cache_lib.Step, scale: float
) -> jax.Array:
  """What `paged.attend` computes of keys and values, without sinks and windows, on one device.

  Rows that hold padding are computed as if it were tokens; what that gives is not read.

  Args:
    q: [B, Q, G, R, H].
    pages: [L, P, S, 2 G, H], key and value of each head in turn.
    layer: whose entries to read.
    step: page tables and positions.
    scale: of the scores.

  Returns:
    [B, Q, G, R, H].
  """
  from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

  out = ragged_paged_attention(
    *arguments(q, pages, jnp.asarray(layer, jnp.int32), step.page_table, step.positions[:, 0]),
    sm_scale=scale,
    num_kv_pages_per_block=min(step.page_table.shape[1], max(1, BLOCK_KEYS // pages.shape[2])),
    num_queries_per_block=BLOCK_QUERIES,
  )
  return out.reshape(q.shape).astype(q.dtype)


def arguments(
  q: jax.Array, pages: jax.Array, layer: jax.Array, page_table: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, ...]:
  """What the kernel takes: queries, pages, lengths with the new tokens, tables, first queries, B.

  Args:
    q: [B, Q, G, R, H].
    pages: [L, P, S, 2 G, H].
    layer: int32 [].
    page_table: int32 [B, Pm].
    lengths: int32 [B], tokens of each row before the new ones.
  """
  rows, queries, groups, repeats, width = q.shape
  layers, count, *entry = pages.shape
  return (
    q.reshape(rows * queries, groups * repeats, width),
    pages.reshape(layers * count, *entry),
    lengths + queries,
    page_table + layer * count,
    jnp.arange(rows + 1, dtype=jnp.int32) * queries,
    jnp.full(1, rows, jnp.int32),
  )
