"""The device programs of the engine: one prefill step, one decode step, each a pure function.

Rows that have no work carry num_new 0: what they compute goes to the scratch page and is not read.

Alphabet: B rows, Q new tokens, d drafts, D width, L mixture layers, K experts per token, V vocab,
Pm pages of a row's table.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_agents.policy import mtp, sharding, transformer
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention.cache import PagedCache
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import draw, speculate
from jaxrl_agents.types import SamplingLimits

Array: TypeAlias = Any
"""np.ndarray on the host, jax.Array under jit."""


@struct.dataclass
class Rows:
  """The sequences of one step.

  Attributes:
    tokens: int32 [B, Q + 1] to prefill, the token after the chunk last; int32 [B, d + 1] to decode,
      the ids that the last step sampled.
    num_tokens: int32 [B], how many of them are real; when prefilling, without the token after.
    lengths: int32 [B], positions of each row already cached.
    active: int32 [B], 1 for a row with work, else 0.
    page_table: int32 [B, Pm].
    seeds: uint32 [B].
    temperature: float32 [B].
    top_p: float32 [B].
  """

  tokens: Array
  num_tokens: Array
  lengths: Array
  active: Array
  page_table: Array
  seeds: Array
  temperature: Array
  top_p: Array


@struct.dataclass
class State:
  """What stays on the device between steps; donated to every step.

  Attributes:
    cache: keys and values of all sequences.
    hidden: [slots, d + 1, D], the trunk's hidden state at the positions whose next tokens are the
      ids that the slot sampled last: what the MTP module drafts from. d + 1 = 0 without drafts.
  """

  cache: PagedCache
  hidden: jax.Array


@struct.dataclass
class Sampled:
  """What the host fetches after a step.

  Attributes:
    tokens: int32 [B, d + 1] (d = 0 when prefilling).
    logprobs: float32 [B, d + 1], of the main model.
    num_accepted: int32 [B]; the first num_accepted + 1 tokens are valid.
    routing: uint16 [B, Q, L, K], experts of the positions that the step computed.
  """

  tokens: Array
  logprobs: Array
  num_accepted: Array
  routing: Array


def init(
  cfg: PolicyConfig, hidden: tuple[int, int], *, num_pages: int, page_tokens: int, dtype: Any
) -> State:
  """An empty state; `hidden` counts slots and places of each, see State and cache.init."""

  @jax.jit
  def make() -> State:
    empty = cache_lib.init(cfg, num_pages, page_tokens, dtype=dtype)
    return State(empty, sharding.replicated(jnp.zeros((*hidden, cfg.embed_dim), dtype)))

  return make()


def laid_out(state: State, sampled: Sampled, cfg: PolicyConfig) -> tuple[State, Sampled]:
  """A step's results on the ambient mesh: as the next step takes them, and whole for the host."""
  state = State(cache_lib.constrain(state.cache, cfg), sharding.replicated(state.hidden))
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
  )


def set_limits(rows: Rows, row: int, limits: SamplingLimits) -> None:
  """Writes how a row is sampled into rows made by `empty_rows`."""
  rows.seeds[row] = limits.seed % 2**32
  rows.temperature[row] = limits.temperature
  rows.top_p[row] = limits.top_p


def prefill(
  params: dict[str, Any], state: State, rows: Rows, slots: jax.Array, *, cfg: PolicyConfig
) -> tuple[State, Sampled]:
  """Computes a chunk of each row and samples the token after it.

  Args:
    params: as sharding.served gives them.
    state: donated.
    rows: as in Rows.
    slots: int32 [B], where the row's last hidden state is kept for drafting; out of range if the
      prompt goes on after this chunk.
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
  return State(cache, hidden), Sampled(
    tokens=tokens[:, None],
    logprobs=logprobs[:, None],
    num_accepted=jnp.zeros_like(tokens),
    routing=output.routing.astype(jnp.uint16),
  )


def decode(
  params: dict[str, Any], state: State, rows: Rows, slots: jax.Array, *, cfg: PolicyConfig
) -> tuple[State, Sampled]:
  """Samples one token per row, or up to d + 1 by drafting d and verifying them in one pass.

  Args:
    params: as sharding.served gives them.
    state: donated.
    rows: as in Rows.
    slots: int32 [B], of each row's hidden states; out of range for a row without work.
    cfg: sizes.
  """
  if not state.hidden.shape[1]:
    cache, sampled = _decode_one(params, state.cache, rows, cfg)
    return State(cache, state.hidden), sampled
  hidden = state.hidden.at[slots].get(mode="clip")
  drafts, q, cache = _draft(params, dataclasses.replace(state, hidden=hidden), rows, cfg)
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
  sampled = _verify(transformer.logits(params, output.hidden, cfg), drafts, q, rows)
  hidden = state.hidden.at[slots].set(output.hidden, mode="drop")
  return State(cache, hidden), dataclasses.replace(
    sampled, routing=output.routing.astype(jnp.uint16)
  )


def _decode_one(params, cache, rows: Rows, cfg: PolicyConfig):
  """One forward pass over the newest id of each row."""
  output, cache = transformer.decode(
    params,
    rows.tokens,
    cfg,
    cache,
    page_table=rows.page_table,
    lengths=rows.lengths,
    num_new=rows.active,
  )
  uniform = draw.uniforms(rows.seeds, rows.lengths + 1, draw.FINAL)
  scores = transformer.logits(params, output.hidden[:, 0], cfg)
  tokens, logprobs = draw.sample(scores, uniform, rows.temperature, rows.top_p)
  return cache, Sampled(
    tokens=tokens[:, None],
    logprobs=logprobs[:, None],
    num_accepted=jnp.zeros_like(tokens),
    routing=output.routing.astype(jnp.uint16),
  )


def _draft(params, state: State, rows: Rows, cfg: PolicyConfig):
  """Drafts d tokens with the first MTP module, applied to its own output after the first.

  The module's cache is first brought up to the newest id with the trunk's true hidden states, which
  overwrites what earlier drafts left there.

  Returns:
    (drafts int32 [B, d], their distributions float32 [B, d, V], cache).
  """
  num_drafts = state.hidden.shape[1] - 1
  hidden, cache = mtp.mtp_decode(
    params,
    state.hidden,
    rows.tokens,
    cfg,
    state.cache,
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


def _verify(scores: jax.Array, drafts: jax.Array, q: jax.Array, rows: Rows) -> Sampled:
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
  return Sampled(tokens=tokens, logprobs=logprobs, num_accepted=num_accepted, routing=tokens)


def _at(values: jax.Array, place: jax.Array) -> jax.Array:
  """values[b, place[b]] for each row b: [B, ...] of values [B, Q, ...]."""
  return values[jnp.arange(values.shape[0]), place]
