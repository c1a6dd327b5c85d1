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
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agents.policy import mtp, transformer
from jaxrl_agents.policy.attention import slot_cache
from jaxrl_agents.policy.attention.cache import PagedCache
from jaxrl_agents.policy.attention.layer import Cache
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import draw, speculate
from jaxrl_agents.sampler.program_state import Rows, Sampled, State

DECODE_STEPS = 16
"""Steps of a decode program at most, unless an engine is made with another number."""


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
