"""What goes to the device programs of the engine (`steps`), what stays there, and what comes back.

Alphabet: B rows, Q new tokens, D width, L mixture layers, K experts per token, M modules that
draft, Pm pages of a row's table, C places of a context, T tokens that a program can sample in a
row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_agents.policy import kernel_choice, sharding
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention import slot_cache
from jaxrl_agents.policy.attention.cache import PagedCache
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import SamplingLimits

Array: TypeAlias = Any
"""np.ndarray on the host, jax.Array under jit."""

STOPS = 8
"""Stop tokens of a row that the device knows of. A row with more goes on past the others, and the
host cuts it off there."""


@struct.dataclass
class Rows:
  """The sequences of a program.

  Attributes:
    tokens: int32 [B, Q + max(M, 1)] to prefill, the piece and the ids after it, as far as they are
      known, then -1; int32 [B, 1] to decode, the newest id.
    num_tokens: int32 [B], ids of the piece.
    lengths: int32 [B], positions of each row already cached.
    active: int32 [B], 1 for a row with work, else 0.
    page_table: int32 [B, Pm].
    seeds: uint32 [B].
    temperature: float32 [B].
    top_p: float32 [B].
    stops: int32 [B, STOPS], ids that end a row; -1 for none.
    budget: int32 [B], ids after which a row ends.
    context: int32 [B, C], all ids of a row by position where prompt lookup drafts, else C = 0.
  """

  tokens: Array
  num_tokens: Array
  lengths: Array
  active: Array
  page_table: Array
  seeds: Array
  temperature: Array
  top_p: Array
  stops: Array
  budget: Array
  context: Array


@struct.dataclass
class State:
  """What stays on the device between programs; donated to every one.

  Attributes:
    cache: keys and values of all sequences.
    hidden: [slots, M, D], of each module the result at its newest position, which drafts go on
      from. Module k (from 0) stands k positions before the newest that the trunk has computed.
    slots: keys and values of the sequences that decode, where programs do not read them from the
      pages (kernel_choice.decodes_in_slots): then row i of a decode program is slot i.
  """

  cache: PagedCache
  hidden: jax.Array
  slots: slot_cache.SlotCache | None = None


@struct.dataclass
class Sampled:
  """What the host fetches after a program.

  Attributes:
    tokens: int32 [B, T] (T = 1 when prefilling).
    logprobs: float32 [B, T], of the main model.
    count: int32 [B], how many of them are sampled.
    routing: uint16 [B, T, L, K], experts of the positions before them; [B, Q, L, K], those of the
      piece, when prefilling.
    row_steps: int32 [], steps of all rows together.
    steps: int32 [], passes of the main model.
    drafted_rows: int32 [KINDS], rows that verified drafts of each kind (drafts.KINDS), over steps.
    accepted: int32 [KINDS], accepted drafts.
  """

  tokens: Array
  logprobs: Array
  count: Array
  routing: Array
  row_steps: Array
  steps: Array
  drafted_rows: Array
  accepted: Array


def used_config(cfg: PolicyConfig, draft_tokens: int) -> PolicyConfig:
  """Sizes of what is cached and computed: modules that draft nothing are left out."""
  return dataclasses.replace(cfg, mtp_depth=min(cfg.mtp_depth, draft_tokens))


def init(
  cfg: PolicyConfig,
  num_slots: int,
  *,
  num_pages: int,
  page_tokens: int,
  max_pages: int,
  blocks: Sequence[int],
  dtype: Any,
) -> State:
  """An empty state.

  Args:
    cfg: sizes.
    num_slots: sequences that decode at once.
    num_pages, page_tokens: see cache.init.
    max_pages: of a sequence.
    blocks: slots of each block, see slot_cache.empty_slots.
    dtype: of all.
  """

  @jax.jit
  def make() -> State:
    empty = cache_lib.init(cfg, num_pages, page_tokens, dtype=dtype)
    slots = None
    if kernel_choice.decodes_in_slots():
      slots = slot_cache.empty_slots(empty, max_pages, blocks, cfg)
    hidden = jnp.zeros((num_slots, cfg.mtp_depth, cfg.embed_dim), dtype)
    return State(empty, sharding.replicated(hidden), slots)

  return make()


def laid_out(state: State, sampled: Sampled, cfg: PolicyConfig) -> tuple[State, Sampled]:
  """A step's results on the ambient mesh: as the next step takes them, and whole for the host."""
  state = State(
    cache_lib.constrain(state.cache, cfg), sharding.replicated(state.hidden), state.slots
  )
  return state, sharding.replicated(sampled)


def empty_rows(num_rows: int, num_tokens: int, max_pages: int, context: int = 0) -> Rows:
  """Rows without work, in numpy, for the host to fill in: tokens [num_rows, num_tokens]."""
  return Rows(
    tokens=np.zeros((num_rows, num_tokens), np.int32),
    num_tokens=np.ones(num_rows, np.int32),
    lengths=np.ones(num_rows, np.int32),
    active=np.zeros(num_rows, np.int32),
    page_table=np.zeros((num_rows, max_pages), np.int32),
    seeds=np.zeros(num_rows, np.uint32),
    temperature=np.ones(num_rows, np.float32),
    top_p=np.ones(num_rows, np.float32),
    stops=np.full((num_rows, STOPS), -1, np.int32),
    budget=np.ones(num_rows, np.int32),
    context=np.zeros((num_rows, context), np.int32),
  )


def set_limits(rows: Rows, row: int, limits: SamplingLimits) -> None:
  """Writes how a row is sampled into rows made by `empty_rows`."""
  rows.seeds[row] = limits.seed % 2**32
  rows.temperature[row] = limits.temperature
  rows.top_p[row] = limits.top_p
  stops = limits.stop_tokens[:STOPS]
  rows.stops[row] = (*stops, *(-1,) * (STOPS - len(stops)))
