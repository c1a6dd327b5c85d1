"""The paged cache of keys and values: one array for all layers, addressed by page and slot.

An entry is that of one token in one layer: key and value of each head in turn, [2 G, H], or [2 G H]
of heads narrower than a TPU's lanes, which it would fill up and turn around for each layer; or
MLA's latent and rotated key, [C], filled up with zeros to whole lanes where they are wider than
that, else a TPU turns the cache around twice a step.

On a mesh the cache has as many parts as the rows of a step: each device has the pages of the rows
that it computes, in order of parts, and of those its own heads; of MLA's latents, whole. Pages are
numbered within a part.

Page 0 of a part is scratch: tokens that are only padding of a step's static shape are written
there. A sequence's page table lists the pages that hold its tokens in order; unused entries are 0.

Alphabet: B rows, Q queries (new tokens), K cached tokens, P pages, S slots of a page, C cache
width, G kv heads, H head dim, Pm pages of a row's table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.kernel_choice import LANES, latent_entry

SCRATCH_PAGE = 0


@struct.dataclass
class PagedCache:
  """Attributes: pages [L + M, P, S, *entry], the trunk's layers first, then the modules'; P counts
  those of all parts.
  """

  pages: jax.Array


@struct.dataclass
class Step:
  """Where the new tokens of one step go and what they see; the same for every layer.

  Attributes:
    page_table: int32 [B, Pm], of the row's part.
    positions: int32 [B, Q], place of each new token in its sequence.
    page: int32 [B, Q], page that it is written to; SCRATCH_PAGE for padding.
    slot: int32 [B, Q], slot of that page.
  """

  page_table: jax.Array
  positions: jax.Array
  page: jax.Array
  slot: jax.Array


MOST_ROWS = 8
"""So many rows are read at once anyway: a second way to read them would have to be compiled."""

_START_BYTES = 200_000
"""What a core of a CPU reads in the time that a round of a loop takes to start."""


def read_by_row(few: jax.Array, of: jax.Array | int, part_bytes: int) -> jax.Array:
  """Whether it takes a CPU less time to read `few` parts of a cache one by one than `of` at once,
  which include them; each has `part_bytes`."""
  return few * float(part_bytes + _START_BYTES) < of * float(part_bytes)


def for_rows(function: Callable[..., Any], is_taken: jax.Array, carry: Any, *arrays: Any) -> Any:
  """`carry` after `function(carry, *arrays)` of each row that is taken (bool [B]) by itself, which
  sees and returns trees of [1, ...]; the other rows of `carry` stay as they are.
  """
  order = jnp.argsort(~is_taken)

  def with_row(i, carry):
    of_row = lambda x: jax.lax.dynamic_slice_in_dim(x, order[i], 1)
    new = function(*jax.tree.map(of_row, (carry, *arrays)))
    put = lambda x, row: jax.lax.dynamic_update_slice_in_dim(x, row, order[i], 0)
    return jax.tree.map(put, carry, new)

  return jax.lax.fori_loop(0, jnp.sum(is_taken), with_row, carry)


def init(
  cfg: PolicyConfig, num_pages: int, page_tokens: int, *, dtype: Any = jnp.float32
) -> PagedCache:
  """An empty cache of `num_pages` pages, of all parts and with their scratch pages."""
  shape = (cfg.num_cache_layers, num_pages, page_tokens, *entry_shape(cfg))
  return constrain(PagedCache(pages=jnp.zeros(shape, dtype)), cfg)


def entry_shape(cfg: PolicyConfig) -> tuple[int, ...]:
  """[2 G, H], [2 G H] or [C], see above."""
  if cfg.attention == "mla":
    return (latent_entry(cfg),)
  if cfg.head_dim % LANES:
    return (2 * cfg.num_kv_heads * cfg.head_dim,)
  return 2 * cfg.num_kv_heads, cfg.head_dim


def axes(cfg: PolicyConfig) -> tuple[str | None, ...]:
  """Logical axes of the pages."""
  entry = (None,) if cfg.attention == "mla" else ("kv_heads", None)
  return (None, "batch", None, *entry[: len(entry_shape(cfg))])


def constrain(cache: PagedCache, cfg: PolicyConfig) -> PagedCache:
  """The cache laid over the ambient mesh; as it is without one."""
  return PagedCache(sharding.constrain(cache.pages, *axes(cfg)))


def split(entries: jax.Array, cfg: PolicyConfig) -> tuple[jax.Array, jax.Array]:
  """Cached entries [B, K, *entry] as keys [B, K, G, H] and values [B, K, G, H'].

  MLA's latent, with the rotated key behind it, is key and, without that, value of one group.
  """
  if cfg.attention == "mla":
    return entries[:, :, None], entries[:, :, None, : cfg.kv_lora_rank]
  heads = entries.reshape(*entries.shape[:2], -1, 2, cfg.head_dim)
  return heads[:, :, :, 0], heads[:, :, :, 1]


def plan_step(
  cache: PagedCache, page_table: jax.Array, lengths: jax.Array, num_new: jax.Array, num_queries: int
) -> Step:
  """Addresses of a step's new tokens.

  Args:
    cache: only its sizes are read.
    page_table: int32 [B, Pm].
    lengths: int32 [B], tokens of each row already in the cache.
    num_new: int32 [B], how many of the num_queries tokens of each row are real.
    num_queries: Q.
  """
  page_tokens = cache.pages.shape[2]
  offsets = jnp.arange(num_queries, dtype=jnp.int32)
  positions = lengths[:, None] + offsets
  valid = offsets < num_new[:, None]
  place = jnp.minimum(positions // page_tokens, page_table.shape[1] - 1)
  page = jnp.where(valid, jnp.take_along_axis(page_table, place, axis=1), SCRATCH_PAGE)
  return Step(page_table=page_table, positions=positions, page=page, slot=positions % page_tokens)


def write(pages: jax.Array, layer: jax.Array | int, step: Step, entries: jax.Array) -> jax.Array:
  """Pages of a part with `entries` [B, Q, *entry] written; in place if not read again."""
  return pages.at[layer, step.page, step.slot].set(entries.astype(pages.dtype))
