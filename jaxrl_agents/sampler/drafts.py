"""Drafts of the next tokens: from the prediction modules, and by prompt lookup.

A drafted token is accepted if it is the one sampled at its place anyway. That draw depends on the
request's seed and the position alone, so drafts change how many passes a reply takes, and
nothing else: not its tokens (but for the rounding of a wider pass), whatever was drafted and by
whom (drafter-invariant speculative decoding, https://arxiv.org/abs/2408.07978). The modules sample
their drafts at the same uniforms as the policy samples its tokens, so that alike distributions give
the same token.

Prompt lookup drafts what followed the newest ids where they last stood in the same context:
agents quote what they have read, and repeat the form of their calls
(https://github.com/apoorvumang/prompt-lookup-decoding).

Alphabet: B rows, D width, M modules, V vocab, C places of a row's context.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agents.policy import mtp, transformer
from jaxrl_agents.policy.attention.layer import Cache
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import draw
from jaxrl_agents.sampler.program_state import Rows

MATCHES = 2, 4
"""Newest ids that prompt lookup looks for: at least, and at most."""

KINDS = 2 + MATCHES[1] - MATCHES[0]
"""Kinds of drafts, whose worth is measured apart: the modules' (0), and those of prompt lookup by
how many ids were found."""


@struct.dataclass
class Found:
  """What prompt lookup drafts.

  Attributes:
    drafts: int32 [B, d].
    kind: int32 [B], see KINDS; 0 where too few ids were found.
  """

  drafts: jax.Array
  kind: jax.Array


def lookup(context: jax.Array, lengths: jax.Array, count: int) -> Found:
  """The `count` tokens that followed the newest ids where most of them stood before, there last.

  Where fewer tokens follow than are wanted, they are repeated.

  Args:
    context: int32 [B, C], the ids of each row by position.
    lengths: int32 [B], the position of the newest.
    count: d.
  """
  least, most = MATCHES
  places = jnp.arange(context.shape[1])
  before = places < lengths[:, None]
  run = jnp.zeros_like(context)
  goes_on = before
  for back in range(most):
    newest = jnp.take_along_axis(context, jnp.maximum(lengths - back, 0)[:, None], axis=1)
    earlier = jnp.pad(context, ((0, 0), (back, 0)), constant_values=-1)[:, : context.shape[1]]
    goes_on = goes_on & (earlier == newest) & (lengths >= back)[:, None]
    run = run + goes_on
  # The longest run, of these the last.
  best = jnp.max(run * context.shape[1] + jnp.where(run > 0, places, 0), axis=1)
  found, place = best // context.shape[1], best % context.shape[1]
  follows = place[:, None] + 1 + jnp.arange(count) % jnp.maximum(lengths - place, 1)[:, None]
  drafts = jnp.take_along_axis(context, jnp.minimum(follows, context.shape[1] - 1), axis=1)
  return Found(drafts, jnp.where(found >= least, found - least + 1, 0))


def from_modules(
  params: dict[str, Any],
  hidden: jax.Array,
  rows: Rows,
  cache: Cache,
  count: int,
  cfg: PolicyConfig,
) -> tuple[jax.Array, Cache]:
  """Drafts `count` tokens with the modules, each once, then the last of them again and again.

  Module k (from 0) at position i needs the token at i + k + 1. Its newest true entry is at
  L - 1 - k, where L is the position of the newest id, so it first computes the k positions up to
  L - 1 from drafts.

  Args:
    params: as sharding.served gives them.
    hidden: [B, M, D], see program_state.State.
    rows: as in Rows.
    cache: of all layers; what drafts leave there is overwritten by `catch_up`.
    count: d.
    cfg: sizes.

  Returns:
    (int32 [B, d], cache).
  """
  drafts: list[jax.Array] = []
  outputs = hidden[:, :1]  # the last module's, at the positions up to the newest
  for i in range(count):
    scores = transformer.logits(params, outputs[:, -1], cfg)
    uniform = draw.uniforms(rows.seeds, rows.lengths + 1 + i)
    drafts.append(draw.sample(scores, uniform, rows.temperature, rows.top_p)[0])
    if i + 1 == count:
      break
    if i + 1 < cfg.mtp_depth:  # the next module, at the positions that its predecessor computed
      depth = i + 1
      feed = jnp.concatenate([hidden[:, i : i + 1], outputs if i else outputs[:, :0]], axis=1)
      start, tokens = rows.lengths - depth, drafts
    else:  # the last one again, at the next position
      depth = cfg.mtp_depth - 1
      feed = outputs[:, -1:]
      start, tokens = rows.lengths + i - depth, drafts[-1:]
    outputs, cache = mtp.mtp_decode(
      params,
      feed,
      jnp.stack(tokens, axis=1),
      cfg,
      cache,
      page_table=rows.page_table,
      lengths=jnp.maximum(start, 0),
      num_new=rows.active * len(tokens),
      depth=depth,
    )
  return jnp.stack(drafts, axis=1), cache


def catch_up(
  params: dict[str, Any],
  trunk: jax.Array,
  tokens: jax.Array,
  hidden: jax.Array,
  rows: Rows,
  num_new: jax.Array,
  cache: Cache,
  cfg: PolicyConfig,
) -> tuple[jax.Array, Cache]:
  """Brings the modules up to the newest id.

  Args:
    params: as sharding.served gives them.
    trunk: [B, P, D], the trunk's hidden states of the positions that a step computed, and
    tokens: int32 [B, P], the ids sampled after them.
    hidden: [B, M, D], see program_state.State, before the step.
    rows: before the step.
    num_new: int32 [B], how many places are real; 0 for rows without work.
    cache: of all layers.
    cfg: sizes.

  Returns:
    (hidden after the step, cache).
  """
  newest, feed = [], trunk
  for depth in range(cfg.mtp_depth):
    output, cache = mtp.mtp_decode(
      params,
      feed,
      tokens,
      cfg,
      cache,
      page_table=rows.page_table,
      lengths=jnp.maximum(rows.lengths - depth, 0),
      num_new=num_new,
      depth=depth,
    )
    last = output[jnp.arange(len(output)), jnp.maximum(num_new - 1, 0)]
    newest.append(jnp.where(num_new[:, None] > 0, last.astype(hidden.dtype), hidden[:, depth]))
    feed = jnp.concatenate([hidden[:, depth : depth + 1].astype(output.dtype), output[:, :-1]], 1)
  return jnp.stack(newest, axis=1), cache
