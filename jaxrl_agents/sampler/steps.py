"""The device programs of the engine: a prefill step, and a loop of decode steps.

Each is a pure function. Rows that have no work carry num_new 0: what they compute goes to the
scratch page and is not read.

A decode program makes up to `num_steps` steps, and ends earlier once as few rows go on as the host
allows: then it pays to hand out what ended and to take in what waits. A step verifies drafts where
that is expected to give more tokens in the time. Draws depend on seeds and positions alone, so
neither drafts nor where programs begin and end change a token, but for rounding.

Alphabet: B rows, Q new tokens, d drafts of a step at most, D width, L mixture layers, K experts per
token, M modules that draft, V vocab, T tokens that a program can sample in a row.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agents.policy import mtp, transformer
from jaxrl_agents.policy.attention import slot_cache
from jaxrl_agents.policy.attention.cache import PagedCache
from jaxrl_agents.policy.attention.layer import Cache
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import drafts as drafts_lib
from jaxrl_agents.sampler import draw
from jaxrl_agents.sampler.program_state import Rows, Sampled, State

DECODE_STEPS = 16
"""Steps of a decode program at most, unless an engine is made with another number."""


@dataclasses.dataclass(frozen=True)
class Drafters:
  """Who drafts, and how many tokens of a step; 0 where it does not.

  Attributes:
    modules: drafts of the prediction modules.
    lookup: drafts of prompt lookup, which go before the modules' where it finds something.
  """

  modules: int = 0
  lookup: int = 0

  @property
  def most(self) -> int:
    """Drafts of a step."""
    return max(self.modules, self.lookup)


@struct.dataclass
class Worth:
  """What drafts have been found to be worth.

  Attributes:
    gains: float32 [KINDS], accepted drafts when a row verifies some of each kind.
    cost: float32 [], time of a step with drafts over that of a step without.
  """

  gains: Any
  cost: Any


def most_tokens(drafters: Drafters, max_steps: int) -> int:
  """T of a decode program: a token for each step, and room for some accepted drafts."""
  return max_steps + 2 * drafters.most


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
  num_places = rows.tokens.shape[1] - max(state.hidden.shape[1], 1)
  output, cache = transformer.decode(
    params,
    rows.tokens[:, :num_places],
    cfg,
    state.cache,
    page_table=rows.page_table,
    lengths=rows.lengths,
    num_new=num_new,
  )
  last = _at(output.hidden, jnp.maximum(num_new - 1, 0))
  uniform = draw.uniforms(rows.seeds, rows.lengths + num_new)
  tokens, logprobs = draw.sample(
    transformer.logits(params, last, cfg), uniform, rows.temperature, rows.top_p
  )
  hidden, newest, feed = state.hidden, [], output.hidden
  following = jnp.where(rows.tokens < 0, tokens[:, None], rows.tokens)[:, 1:]
  for depth in range(hidden.shape[1]):
    # The last `depth` positions of a prompt wait for ids that are not sampled yet.
    feed, cache = mtp.mtp_decode(
      params,
      feed,
      following[:, depth : depth + num_places],
      cfg,
      cache,
      page_table=rows.page_table,
      lengths=rows.lengths,
      num_new=num_new,
      depth=depth,
    )
    newest.append(_at(feed, jnp.maximum(num_new - 1 - depth, 0)))
  if newest:
    hidden = hidden.at[slots].set(jnp.stack(newest, axis=1).astype(hidden.dtype), mode="drop")
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
    row_steps=jnp.sum(rows.active),
    steps=jnp.int32(1),
    drafted_rows=jnp.zeros(drafts_lib.KINDS, jnp.int32),
    accepted=jnp.zeros(drafts_lib.KINDS, jnp.int32),
  )


@struct.dataclass
class _Progress:
  """A decode program between two steps: `rows` as they are now, what was sampled so far, and what
  prompt lookup drafts for the next step, if it does."""

  rows: Rows
  cache: Cache
  hidden: jax.Array
  sampled: Sampled
  found: drafts_lib.Found | None


def decode(
  params: dict[str, Any],
  state: State,
  rows: Rows,
  slots: jax.Array,
  num_steps: jax.Array,
  idle_below: jax.Array,
  worth: Worth,
  *,
  cfg: PolicyConfig,
  drafters: Drafters,
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
    worth: of drafts; a cost below 0 has every step draft.
    cfg: sizes.
    drafters: who drafts.
    max_steps: static bound of num_steps.
  """
  places, most = drafters.most + 1, most_tokens(drafters, max_steps)
  cache: Cache = state.cache
  if state.slots is not None:
    # The modules compute some positions again, and drafts reach beyond the last.
    room = most + drafters.most + state.hidden.shape[1]
    cache = slot_cache.of_slots(state.slots, state.cache, rows.lengths, room, cfg)
  begin = _Progress(
    rows,
    cache,
    state.hidden.at[slots].get(mode="clip"),
    _nothing_sampled(rows, most, cfg),
    _found(rows, drafters),
  )

  def goes_on(at: _Progress) -> jax.Array:
    has_room = jnp.max(at.sampled.count) + places <= most
    enough = jnp.sum(at.rows.active) >= idle_below
    return (at.sampled.steps < num_steps) & enough & has_room

  def pays(at: _Progress) -> jax.Array:
    drafted = at.rows.active > 0
    if not drafters.modules:
      assert at.found is not None
      drafted &= at.found.kind > 0
    kind = jnp.zeros_like(at.rows.active) if at.found is None else at.found.kind
    gain = jnp.sum(jnp.where(drafted, worth.gains[kind], 0.0))
    active = jnp.sum(at.rows.active)
    return active + gain > worth.cost * active

  def step(at: _Progress, *, by: Drafters) -> _Progress:
    return _step(params, at, cfg, by, drafters)

  plain = functools.partial(step, by=Drafters())
  if places == 1:
    end = jax.lax.while_loop(goes_on, plain, begin)
  else:
    drafted = functools.partial(step, by=drafters)

    def alternate(at: _Progress) -> _Progress:
      # Loops in place of a conditional, which might copy the cache.
      at = jax.lax.while_loop(lambda at: goes_on(at) & ~pays(at), plain, at)
      return jax.lax.while_loop(lambda at: goes_on(at) & pays(at), drafted, at)

    end = jax.lax.while_loop(goes_on, alternate, begin)
  cache, held = end.cache, state.slots
  if isinstance(cache, slot_cache.BufferedSlots):
    assert held is not None
    lengths = jnp.where(rows.active > 0, end.rows.lengths, 0)  # 0: nothing is written
    held = slot_cache.advanced(held, cache, lengths, cfg)
    cache = slot_cache.written_back(cache, state.cache, rows.page_table, lengths)
  hidden = state.hidden
  if hidden.shape[1]:
    hidden = hidden.at[slots].set(end.hidden, mode="drop")
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
    row_steps=jnp.int32(0),
    steps=jnp.int32(0),
    drafted_rows=jnp.zeros(drafts_lib.KINDS, jnp.int32),
    accepted=jnp.zeros(drafts_lib.KINDS, jnp.int32),
  )


def _found(rows: Rows, drafters: Drafters) -> drafts_lib.Found | None:
  if not drafters.lookup:
    return None
  return drafts_lib.lookup(rows.context, rows.lengths, drafters.lookup)


def _step(
  params: dict[str, Any], at: _Progress, cfg: PolicyConfig, by: Drafters, drafters: Drafters
) -> _Progress:
  """One pass of the main model over the newest id of each row and its drafts.

  Args:
    params: as sharding.served gives them.
    at: before the step.
    cfg: sizes.
    by: who drafts in this step.
    drafters: who drafts in the program.
  """
  rows, before, cache = at.rows, at.sampled, at.cache
  drafts, kind, offered, cache = _drafts(params, at, cfg, by)
  places = 1 + by.most
  output, cache = transformer.decode(
    params,
    jnp.concatenate([rows.tokens, drafts], axis=1),
    cfg,
    cache,
    page_table=rows.page_table,
    lengths=rows.lengths,
    num_new=rows.active * (1 + offered),
  )
  tokens, logprobs = _sample(params, output.hidden, rows, cfg)
  matches = (drafts == tokens[:, :-1]) & (jnp.arange(by.most) < offered[:, None])
  accepted = jnp.sum(jnp.cumprod(matches, axis=1), axis=1)
  works = rows.active > 0
  new = jnp.where(works, accepted + 1, 0)
  hidden = at.hidden
  if hidden.shape[1]:
    hidden, cache = drafts_lib.catch_up(
      params, output.hidden, tokens, hidden, rows, new, cache, cfg
    )
  is_new = jnp.arange(places) < new[:, None]
  index = jnp.arange(len(new))[:, None]

  def put(whole: jax.Array, start: jax.Array, part: jax.Array) -> jax.Array:
    # Out of range where nothing is new.
    place = jnp.where(is_new, start[:, None] + jnp.arange(places), whole.shape[1])
    return whole.at[index, place].set(part.astype(whole.dtype), mode="drop")

  stops = (tokens[:, :, None] == rows.stops[:, None, :]).any(axis=-1) & is_new
  budget = rows.budget - new
  ended = stops.any(axis=-1) | (budget <= 0)
  # Of the drafts that match, those that the reply has room for and that no stop token precedes.
  unstopped = jnp.sum(jnp.cumsum(stops, axis=1) - stops == 0, axis=1)
  kept = jnp.minimum(accepted, jnp.minimum(unstopped, rows.budget))
  newest = _at(tokens, jnp.maximum(new - 1, 0))[:, None]
  rows = dataclasses.replace(
    rows,
    tokens=jnp.where(works[:, None], newest, rows.tokens),
    lengths=rows.lengths + new,
    active=jnp.where(ended, 0, rows.active),
    budget=budget,
    context=put(rows.context, rows.lengths + 1, tokens) if drafters.lookup else rows.context,
  )
  of_kind = (kind[:, None] == jnp.arange(drafts_lib.KINDS)) & (works & (offered > 0))[:, None]
  sampled = Sampled(
    tokens=put(before.tokens, before.count, tokens),
    logprobs=put(before.logprobs, before.count, logprobs),
    count=before.count + new,
    routing=put(before.routing, before.count, output.routing),
    row_steps=before.row_steps + jnp.sum(works),
    steps=before.steps + 1,
    drafted_rows=before.drafted_rows + jnp.sum(of_kind, axis=0),
    accepted=before.accepted + jnp.sum(of_kind * kept[:, None], axis=0),
  )
  return _Progress(rows, cache, hidden, sampled, _found(rows, drafters))


def _drafts(params: dict[str, Any], at: _Progress, cfg: PolicyConfig, by: Drafters):
  """(drafts int32 [B, d], their kind int32 [B], how many are real int32 [B], cache)."""
  rows, cache = at.rows, at.cache
  drafts = jnp.zeros((len(rows.active), by.most), jnp.int32)
  kind = offered = jnp.zeros_like(rows.active)
  if by.modules:
    made, cache = drafts_lib.from_modules(params, at.hidden, rows, cache, by.modules, cfg)
    drafts = drafts.at[:, : by.modules].set(made)
    offered = jnp.full_like(offered, by.modules)
  if by.lookup:
    assert at.found is not None
    kind = at.found.kind
    looked_up = drafts.at[:, : by.lookup].set(at.found.drafts)
    drafts = jnp.where((kind > 0)[:, None], looked_up, drafts)
    offered = jnp.where(kind > 0, by.lookup, offered)
  return drafts, kind, offered, cache


def _sample(params, hidden: jax.Array, rows: Rows, cfg: PolicyConfig):
  """A token after each place of hidden [B, P, D], and its log-probability: [B, P] each."""
  batch, places, width = hidden.shape
  positions = rows.lengths[:, None] + 1 + jnp.arange(places)
  uniform = draw.uniforms(jnp.broadcast_to(rows.seeds[:, None], positions.shape), positions)
  tokens, logprobs = draw.sample(
    transformer.logits(params, hidden.reshape(-1, width), cfg),
    uniform.reshape(-1),
    jnp.repeat(rows.temperature, places),
    jnp.repeat(rows.top_p, places),
  )
  return tokens.reshape(batch, places), logprobs.reshape(batch, places)


def _at(values: jax.Array, place: jax.Array) -> jax.Array:
  """values[b, place[b]] for each row b: [B, ...] of values [B, Q, ...]."""
  return values[jnp.arange(values.shape[0]), place]
