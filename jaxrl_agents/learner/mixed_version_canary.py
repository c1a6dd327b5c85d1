"""The canary of tokens that were sampled from keys and values of several versions of the weights.

A sequence that is running when weights change keeps its cache (`fleet.cache=keep`). The engine
computes position p in the pass that samples the token after it, so

    version of position p  =  version of the token at p + 1, from the last of the prompt on
                              Segment.began before that

and the log-probability of a token is that of its own version on top of a cache which all earlier
ones have left. Such a cache is built again here, a version after the other, by the cached pass of
the policy. It gives the recorded log-probabilities only if the sampler held these weights, swapped
them between these tokens, and kept what the older ones had written.

Alphabet: B rows, Q tokens of a row in a pass, T tokens of a sequence, L mixture layers, K experts.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import sharding, transformer
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import NOT_ROUTED, Segment

_PAGE_TOKENS = 32
_QUERIES = 128
"""Q, where rows are as long."""


@dataclasses.dataclass(frozen=True)
class Mixed:
  """The beginning of a segment, up to the end of a call during which weights changed.

  Attributes:
    segment: of it.
    compared: bool [T], tokens with loss that saw keys of several versions.
    computed: int32 [T - 1], the version of each position's keys and values.
  """

  segment: Segment
  compared: np.ndarray
  computed: np.ndarray

  @property
  def versions(self) -> tuple[int, ...]:
    """The versions that computed the cache, ascending."""
    return tuple(np.unique(self.computed).tolist())


def mixed(segment: Segment) -> Mixed | None:
  """What of a segment was sampled from several versions, and from a cache that is known.

  That is in one call at most: the prompt of a later one was computed by later weights than the
  experts of its beginning were recorded under.
  """
  if segment.kept is None:
    return None
  (places,) = np.nonzero(segment.kept & segment.loss_mask & (segment.versions != segment.began))
  if not len(places):
    return None
  (breaks,) = np.nonzero(~segment.kept)
  first = int(breaks[breaks < places[0]].max(initial=-1)) + 1
  end = int(breaks[breaks > places[-1]].min(initial=len(segment.tokens)))
  versions = segment.versions[first:end]
  if (versions < 0).any():  # the loss of old tokens was taken, and their versions with it
    return None
  computed = np.concatenate([np.full(first - 1, segment.began), versions]).astype(np.int32)
  compared = np.zeros(end, bool)
  compared[places] = True
  return Mixed(segment, compared, computed)


def gaps(
  rollouts: Sequence[Rollout],
  published: Callable[[int], Any],
  *,
  cfg: PolicyConfig,
  temperature: float,
  rows: int,
  row_tokens: int,
) -> tuple[np.ndarray, tuple[int, ...]]:
  """|log pi - log mu| of the mixed tokens of up to `rows` sequences, those with most of such tokens
  among all with the same versions.

  Args:
    rollouts: of a batch.
    published: (version) -> its parameters, adapters merged, or None if they are not kept.
    cfg: sizes.
    temperature: of the sampler.
    rows: B; on a mesh a multiple of the parts that rows are split into.
    row_tokens: no sequence is longer.

  Returns:
    (float32 [N], the versions; none if no sequence can be compared).
  """
  by_versions: dict[tuple[int, ...], list[Mixed]] = collections.defaultdict(list)
  for rollout in rollouts:
    for each in filter(None, map(mixed, rollout.segments)):
      by_versions[each.versions].append(each)
  count = lambda each: int(each.compared.sum())
  best = {
    versions: sorted(found, key=count, reverse=True)[:rows]
    for versions, found in by_versions.items()
  }
  for versions, chosen in sorted(best.items(), key=lambda each: -sum(map(count, each[1]))):
    scored = _scored(chosen, versions, published, cfg, temperature, rows, row_tokens)
    if scored is not None:
      apart = [
        np.abs(logprobs - each.segment.logprobs[: len(logprobs)])[each.compared]
        for logprobs, each in zip(scored, chosen, strict=True)
      ]
      return np.concatenate(apart), versions
  return np.zeros(0, np.float32), ()


def _scored(
  chosen: Sequence[Mixed],
  versions: Sequence[int],
  published: Callable[[int], Any],
  cfg: PolicyConfig,
  temperature: float,
  rows: int,
  row_tokens: int,
) -> list[np.ndarray] | None:
  """Log-probabilities of the tokens of each sequence, float32 [T], 0 for the first; None if a
  version is not kept.
  """
  table, pages = _pages(rows, row_tokens)
  queries = min(_QUERIES, row_tokens)
  logprobs = [np.zeros(len(each.compared), np.float32) for each in chosen]
  done = np.zeros(rows, np.int32)
  cache = None
  for version in versions:
    if (params := published(version)) is None:
      return None
    if cache is None:
      cache = _empty(cfg, pages, params["embed"].dtype)
    while True:
      new = np.zeros(rows, np.int32)
      for row, each in enumerate(chosen):
        left = each.computed[done[row] : done[row] + queries] == version
        new[row] = len(left) if left.all() else np.argmin(left)
      if not new.any():
        break
      tokens, experts = _inputs(chosen, done, new, rows, queries, cfg)
      found, cache = _pass(params, cache, tokens, experts, table, done, new, cfg, temperature)
      for row, scores in enumerate(np.asarray(found)[: len(chosen)]):
        logprobs[row][done[row] + 1 : done[row] + new[row] + 1] = scores[: new[row]]
      done = done + new
    del params  # before the next are read
  return logprobs


def _inputs(
  chosen: Sequence[Mixed],
  done: np.ndarray,
  new: np.ndarray,
  rows: int,
  queries: int,
  cfg: PolicyConfig,
) -> tuple[np.ndarray, np.ndarray | None]:
  """The next tokens of each row, each with the one after the last, int32 [B, Q + 1], and their
  experts, int32 [B, Q, L, K].
  """
  tokens = np.zeros((rows, queries + 1), np.int32)
  experts = np.full(
    (rows, queries, cfg.num_moe_layers, cfg.experts_per_token), NOT_ROUTED, np.int32
  )
  for row, each in enumerate(chosen):
    start, count = done[row], new[row]
    tokens[row, : count + 1] = each.segment.tokens[start : start + count + 1]
    if each.segment.routing is not None:
      experts[row, :count] = each.segment.routing[start : start + count]
  return tokens, experts if cfg.num_moe_layers else None


def _pages(rows: int, row_tokens: int) -> tuple[np.ndarray, int]:
  """(the pages of each row int32 [B, Pm], pages of all parts): numbered within a part from 1 on."""
  parts = sharding.ambient_ways("batch")
  of_row, in_part = -(-row_tokens // _PAGE_TOKENS), rows // parts
  first = 1 + np.arange(rows) % in_part * of_row
  return (first[:, None] + np.arange(of_row)).astype(np.int32), parts * (1 + in_part * of_row)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _empty(cfg: PolicyConfig, pages: int, dtype: Any) -> cache_lib.PagedCache:
  return cache_lib.init(cfg, pages, _PAGE_TOKENS, dtype=dtype)


@functools.partial(jax.jit, static_argnames=("cfg", "temperature"), donate_argnums=1)
def _pass(params, cache, tokens, experts, table, lengths, new, cfg, temperature):
  """(log-probability of the token after each of the new ones, float32 [B, Q]; the cache)."""
  output, cache = transformer.decode(
    params,
    tokens[:, :-1],
    cfg,
    cache,
    page_table=table,
    lengths=lengths,
    num_new=new,
    routing=experts,
  )
  logprobs, _ = transformer.token_logprobs(params, output.hidden, tokens[:, 1:], cfg, temperature)
  return sharding.replicated(logprobs), cache
