"""The device programs of the engine: a prefill step, and a loop of decode steps.

Each is a pure function. Rows that have no work carry num_new 0: what they compute goes to the
scratch page and is not read.

A decode program makes up to `num_steps` steps, and ends earlier once as few rows go on as the host
allows: then it pays to hand out what ended and to take in what waits. Draws depend on seeds and
positions alone, so where programs begin and end changes no token.

Alphabet: B rows, Q new tokens, d drafts, D width, L mixture layers, K experts per token, V vocab,
Pm pages of a row's table, T tokens that a program can sample in a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_agents.policy import kernel_choice, mtp, sharding, transformer
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention import slot_cache
from jaxrl_agents.policy.attention.cache import PagedCache
from jaxrl_agents.policy.attention.layer import Cache
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import draw, speculate
from jaxrl_agents.types import SamplingLimits

Array: TypeAlias = Any
"""np.ndarray on the host, jax.Array under jit."""

DECODE_STEPS = 16
"""Steps of a decode program at most, unless an engine is made with another number."""

STOPS = 8
"""Stop tokens of a row that the device knows of. A row with more goes on past the others, and the
host cuts it off there."""


@struct.dataclass
class Rows:
  """The sequences of a program.

  Attributes:
    tokens: int32 [B, Q + 1] to prefill, the token after the piece last; int32 [B, d + 1] to decode,
      the ids that the last step sampled.
    num_tokens: int32 [B], how many of them are real; when prefilling, without the token after.
    lengths: int32 [B], positions of each row already cached.
    active: int32 [B], 1 for a row with work, else 0.
    page_table: int32 [B, Pm].
    seeds: uint32 [B].
    temperature: float32 [B].
    top_p: float32 [B].
    stops: int32 [B, STOPS], ids that end a row; -1 for none.
    budget: int32 [B], ids after which a row ends.
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


@struct.dataclass
class State:
  """What stays on the device between programs; donated to every one.

  Attributes:
    cache: keys and values of all sequences.
    hidden: [slots, d + 1, D], the trunk's hidden state at the positions whose next tokens are the
      ids that the slot sampled last: what the MTP module drafts from. d + 1 = 0 without drafts.
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
    newest: int32 [B, d + 1], what the last step of each row sampled, and
    num_newest: int32 [B], how many.
    row_steps: int32 [], steps of all rows together.
    steps: int32 [], passes of the main model.
  """

  tokens: Array
  logprobs: Array
  count: Array
  routing: Array
  newest: Array
  num_newest: Array
  row_steps: Array
  steps: Array


@struct.dataclass
class Chosen:
  """What one decode step sampled in each row.

  Attributes:
    tokens: int32 [B, d + 1].
    logprobs: float32 [B, d + 1].
    num_accepted: int32 [B]; the first num_accepted + 1 tokens are valid.
    routing: int32 [B, d + 1, L, K].
  """

  tokens: jax.Array
  logprobs: jax.Array
  num_accepted: jax.Array
  routing: jax.Array


def used_config(cfg: PolicyConfig, draft_tokens: int) -> PolicyConfig:
  """Sizes of what is cached and computed: modules that draft nothing are left out."""
  return cfg if draft_tokens else dataclasses.replace(cfg, mtp_depth=0)


def init(
  cfg: PolicyConfig,
  hidden: tuple[int, int],
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
    hidden: slots, and places of each, see State.
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
    return State(empty, sharding.replicated(jnp.zeros((*hidden, cfg.embed_dim), dtype)), slots)

  return make()


def laid_out(state: State, sampled: Sampled, cfg: PolicyConfig) -> tuple[State, Sampled]:
  """A step's results on the ambient mesh: as the next step takes them, and whole for the host."""
  state = State(
    cache_lib.constrain(state.cache, cfg), sharding.replicated(state.hidden), state.slots
  )
  return state, sharding.replicated(sampled)


def empty_rows(num_rows: int, num_tokens: int, max_pages: int) -> Rows:
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
  )


def set_limits(rows: Rows, row: int, limits: SamplingLimits) -> None:
  """Writes how a row is sampled into rows made by `empty_rows`."""
  rows.seeds[row] = limits.seed % 2**32
  rows.temperature[row] = limits.temperature
  rows.top_p[row] = limits.top_p
  stops = limits.stop_tokens[:STOPS]
  rows.stops[row] = (*stops, *(-1,) * (STOPS - len(stops)))


def prefill(
  params: dict[str, Any], state: State, rows: Rows, slots: jax.Array, *, cfg: PolicyConfig
) -> tuple[State, Sampled]:
  """Computes a piece of a prompt in each row and samples the token after it.

  Rows may hold pieces of one prompt, one after another: each sees those before it.

  Args:
    params: as sharding.served gives them.
    state: donated.
    rows: as in Rows.
    slots: int32 [B], where the row will decode; out of range if the prompt goes on after this
      piece.
    cfg: sizes.
  """
  num_new = rows.num_tokens * rows.active
  output, cache = transformer.decode(
    params,
    rows.tokens[:, :-1],
    cfg,
    state.cache,
    page_table=rows.page_table,
    lengths=rows.lengths,
    num_new=num_new,
  )
  last = _at(output.hidden, jnp.maximum(num_new - 1, 0))
  uniform = draw.uniforms(rows.seeds, rows.lengths + num_new, draw.FINAL)
  tokens, logprobs = draw.sample(
    transformer.logits(params, last, cfg), uniform, rows.temperature, rows.top_p
  )
  hidden = state.hidden
  if hidden.shape[1]:
    # The last position of a prompt waits for the token that is sampled after it.
    goes_on = slots >= hidden.shape[0]
    _, cache = mtp.mtp_decode(
      params,
      output.hidden,
      rows.tokens[:, 1:],
      cfg,
      cache,
      page_table=rows.page_table,
      lengths=rows.lengths,
      num_new=jnp.maximum(num_new - jnp.where(goes_on, 0, 1), 0),
    )
    hidden = hidden.at[slots, 0].set(last, mode="drop")
  held = state.slots
  assert isinstance(cache, PagedCache)  # a prefill reads pages
  if held is not None:
    held = slot_cache.filled(held, cache, rows.page_table, slots, cfg)
  one = jnp.ones_like(tokens)
  return State(cache, hidden, held), Sampled(
    tokens=tokens[:, None],
    logprobs=logprobs[:, None],
    count=one,
    routing=output.routing.astype(jnp.uint16),
    newest=tokens[:, None],
    num_newest=one,
    row_steps=jnp.sum(rows.active),
    steps=jnp.int32(1),
  )


@struct.dataclass
class _Progress:
  """A decode program between two steps: `rows` as they are now, and what was sampled so far."""

  rows: Rows
  cache: Cache
  hidden: jax.Array
  sampled: Sampled


def decode(
  params: dict[str, Any],
  state: State,
  rows: Rows,
  slots: jax.Array,
  num_steps: jax.Array,
  idle_below: jax.Array,
  *,
  cfg: PolicyConfig,
  max_steps: int,
) -> tuple[State, Sampled]:
  """Samples one token per row and step, or up to d + 1 by drafting d and verifying them in one
  pass.

  Args:
    params: as sharding.served gives them.
    state: donated.
    rows: as in Rows; their page tables have room for all steps.
    slots: int32 [B], of each row's hidden states; out of range for a row without work.
    num_steps: int32 [], at most so many steps.
    idle_below: int32 [], the program ends once fewer rows than this go on; at least 1.
    cfg: sizes.
    max_steps: static bound of num_steps.
  """
  places = rows.tokens.shape[1]
  drafting = places > 1
  cache: Cache = state.cache
  if state.slots is not None:
    # The modules' entries of the newest ids are made anew in the first step.
    starts = rows.lengths, rows.lengths - rows.num_tokens if drafting else rows.lengths
    room = (max_steps + drafting) * places
    cache = slot_cache.of_slots(state.slots, state.cache, starts, room, cfg)
  begin = _Progress(
    rows,
    cache,
    state.hidden.at[slots].get(mode="clip"),
    _nothing_sampled(rows, max_steps * places, cfg),
  )

  def goes_on(at: _Progress) -> jax.Array:
    return (at.sampled.steps < num_steps) & (jnp.sum(at.rows.active) >= idle_below)

  def step(at: _Progress) -> _Progress:
    one = _drafted_step if drafting else _plain_step
    chosen, cache, hidden = one(params, at, cfg)
    return _advanced(at, chosen, cache, hidden)

  end = jax.lax.while_loop(goes_on, step, begin)
  cache, held = end.cache, state.slots
  if isinstance(cache, slot_cache.BufferedSlots):
    assert held is not None
    lengths = jnp.where(rows.active > 0, end.rows.lengths, 0)  # 0: nothing is written
    held = slot_cache.advanced(held, cache, lengths, cfg)
    cache = slot_cache.written_back(cache, state.cache, rows.page_table, lengths)
  hidden = state.hidden.at[slots].set(end.hidden, mode="drop") if drafting else state.hidden
  return State(cache, hidden, held), end.sampled


def move(state: State, old: jax.Array, new: jax.Array) -> State:
  """The state (donated) with slots `old` moved to the slots `new` of the first block, int32 [B];
  out of range for none. See slot_cache.moved."""
  assert state.slots is not None
  hidden = state.hidden.at[new].set(state.hidden.at[old].get(mode="clip"), mode="drop")
  return State(state.cache, hidden, slot_cache.moved(state.slots, old, new))


def _nothing_sampled(rows: Rows, most: int, cfg: PolicyConfig) -> Sampled:
  count = rows.tokens.shape[0]
  experts = cfg.num_moe_layers, cfg.experts_per_token
  return Sampled(
    tokens=jnp.zeros((count, most), jnp.int32),
    logprobs=jnp.zeros((count, most), jnp.float32),
    count=jnp.zeros(count, jnp.int32),
    routing=jnp.zeros((count, most, *experts), jnp.uint16),
    newest=jnp.asarray(rows.tokens),
    num_newest=jnp.asarray(rows.num_tokens),
    row_steps=jnp.int32(0),
    steps=jnp.int32(0),
  )


def _advanced(at: _Progress, chosen: Chosen, cache: Cache, hidden: jax.Array) -> _Progress:
  """The progress after a step: what rows with work sampled is kept, and rows that end rest."""
  rows, before = at.rows, at.sampled
  places = chosen.tokens.shape[1]
  works = rows.active > 0
  new = jnp.where(works, chosen.num_accepted + 1, 0)
  is_new = jnp.arange(places) < new[:, None]
  # Out of range where nothing is new.
  place = jnp.where(is_new, before.count[:, None] + jnp.arange(places), before.tokens.shape[1])
  index = jnp.arange(len(new))[:, None]
  put = lambda whole, part: whole.at[index, place].set(part.astype(whole.dtype), mode="drop")
  stops = (chosen.tokens[:, :, None] == rows.stops[:, None, :]).any(axis=-1) & is_new
  budget = rows.budget - new
  ended = stops.any(axis=-1) | (budget <= 0)
  newest = jnp.where(works[:, None], chosen.tokens, rows.tokens)
  num_newest = jnp.where(works, new, rows.num_tokens)
  return _Progress(
    dataclasses.replace(
      rows,
      tokens=newest,
      num_tokens=num_newest,
      lengths=rows.lengths + new,
      active=jnp.where(ended, 0, rows.active),
      budget=budget,
    ),
    cache,
    hidden,
    Sampled(
      tokens=put(before.tokens, chosen.tokens),
      logprobs=put(before.logprobs, chosen.logprobs),
      count=before.count + new,
      routing=put(before.routing, chosen.routing),
      newest=newest,
      num_newest=num_newest,
      row_steps=before.row_steps + jnp.sum(rows.active),
      steps=before.steps + 1,
    ),
  )


def _plain_step(params, at: _Progress, cfg: PolicyConfig):
  """One forward pass over the newest id of each row: (chosen, cache, hidden)."""
  rows = at.rows
  output, cache = transformer.decode(
    params,
    rows.tokens,
    cfg,
    at.cache,
    page_table=rows.page_table,
    lengths=rows.lengths,
    num_new=rows.active,
  )
  uniform = draw.uniforms(rows.seeds, rows.lengths + 1, draw.FINAL)
  scores = transformer.logits(params, output.hidden[:, 0], cfg)
  tokens, logprobs = draw.sample(scores, uniform, rows.temperature, rows.top_p)
  chosen = Chosen(tokens[:, None], logprobs[:, None], jnp.zeros_like(tokens), output.routing)
  return chosen, cache, at.hidden


def _drafted_step(params, at: _Progress, cfg: PolicyConfig):
  """Drafts, and one forward pass over the newest id and the drafts: (chosen, cache, hidden)."""
  rows = at.rows
  drafts, q, cache = _draft(params, at, cfg)
  newest = _at(rows.tokens, rows.num_tokens - 1)[:, None]
  output, cache = transformer.decode(
    params,
    jnp.concatenate([newest, drafts], axis=1),
    cfg,
    cache,
    page_table=rows.page_table,
    lengths=rows.lengths,
    num_new=rows.active * (drafts.shape[1] + 1),
  )
  chosen = _verify(transformer.logits(params, output.hidden, cfg), drafts, q, rows)
  hidden = jnp.where(
    rows.active[:, None, None] > 0, output.hidden.astype(at.hidden.dtype), at.hidden
  )
  return dataclasses.replace(chosen, routing=output.routing), cache, hidden


def _draft(params, at: _Progress, cfg: PolicyConfig):
  """Drafts d tokens with the first MTP module, applied to its own output after the first.

  The module's cache is first brought up to the newest id with the trunk's true hidden states, which
  overwrites what earlier drafts left there.

  Returns:
    (drafts int32 [B, d], their distributions float32 [B, d, V], cache).
  """
  rows = at.rows
  num_drafts = at.hidden.shape[1] - 1
  hidden, cache = mtp.mtp_decode(
    params,
    at.hidden,
    rows.tokens,
    cfg,
    at.cache,
    page_table=rows.page_table,
    lengths=rows.lengths - rows.num_tokens,
    num_new=rows.num_tokens * rows.active,
  )
  hidden = _at(hidden, rows.num_tokens - 1)
  drafts, distributions = [], []
  for i in range(num_drafts):
    weights, best = draw.weigh(
      transformer.logits(params, hidden, cfg), rows.temperature, rows.top_p
    )
    q = speculate.distribution(weights, best, rows.temperature)
    uniform = draw.uniforms(rows.seeds, rows.lengths + 1 + i, draw.DRAFT)
    drafts.append(draw.invert(q, uniform))
    distributions.append(q)
    if i + 1 < num_drafts:
      hidden, cache = mtp.mtp_decode(
        params,
        hidden[:, None],
        drafts[-1][:, None],
        cfg,
        cache,
        page_table=rows.page_table,
        lengths=rows.lengths + i,
        num_new=rows.active,
      )
      hidden = hidden[:, 0]
  return jnp.stack(drafts, axis=1), jnp.stack(distributions, axis=1), cache


def _verify(scores: jax.Array, drafts: jax.Array, q: jax.Array, rows: Rows) -> Chosen:
  """Accepts drafts against the main model's scores [B, d + 1, V]; log-probabilities are the
  main's."""
  batch, places, vocab = scores.shape
  temperature = jnp.repeat(rows.temperature, places)
  top_p = jnp.repeat(rows.top_p, places)
  weights, best = draw.weigh(scores.reshape(-1, vocab), temperature, top_p)
  p = speculate.distribution(weights, best, temperature).reshape(batch, places, vocab)
  positions = rows.lengths[:, None] + 1 + jnp.arange(places)
  seeds = jnp.broadcast_to(rows.seeds[:, None], positions.shape)
  tokens, num_accepted = speculate.accept(
    drafts,
    q,
    p,
    accept_uniforms=draw.uniforms(seeds[:, 1:], positions[:, :-1], draw.ACCEPT),
    final_uniforms=draw.uniforms(seeds, positions, draw.FINAL),
  )
  logprobs = draw.logprobs(weights, tokens.reshape(-1)).reshape(batch, places)
  return Chosen(tokens=tokens, logprobs=logprobs, num_accepted=num_accepted, routing=tokens)


def _at(values: jax.Array, place: jax.Array) -> jax.Array:
  """values[b, place[b]] for each row b: [B, ...] of values [B, Q, ...]."""
  return values[jnp.arange(values.shape[0]), place]
