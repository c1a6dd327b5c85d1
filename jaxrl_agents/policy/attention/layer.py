"""Attention over rows (training) and over the paged cache (decoding): grouped queries and MLA.

The R query heads of a group share a key head. In MLA's decoding form (absorbed) all heads are one
group whose keys and values are the cached latents themselves.

Alphabet: B rows, T time, Q queries, K keys, D width, N heads, G kv heads, R = N / G, H head dim,
C cache width, S latent rank.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agents.policy import kernel_choice as kernels_lib
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention import (
  causal,
  flash_gpu,
  paged,
  paged_gpu,
  ragged_tpu,
  slot_cache,
  splash_tpu,
  tree_flash,
  yarn,
)
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.norm import rms_norm

Cache: TypeAlias = cache_lib.PagedCache | slot_cache.BufferedSlots


@struct.dataclass
class Rows:
  """The trees of tokens in rows, in depth-first order (see `causal`).

  Attributes:
    ends: the place after the last token below each token, int32 [B, T]; 0 in padding.
    depths: tokens on the path before each, int32 [B, T].
    has_forks: whether sequences may share tokens; static: they need a kernel of their own.
  """

  ends: jax.Array
  depths: jax.Array
  has_forks: bool = struct.field(pytree_node=False, default=False)

  @property
  def valid(self) -> jax.Array:
    """False in padding: bool [B, T]."""
    return self.ends > 0


def one_sequence(tokens: jax.Array) -> Rows:
  """Rows [B, T] of one sequence each."""
  length = tokens.shape[1]
  return Rows(
    jnp.full(tokens.shape, length, jnp.int32),
    jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), tokens.shape),
  )


class Rope(NamedTuple):
  """Cosines and sines of the rotary angles, float32 [B, T, rope_dim / 2]."""

  cos: jax.Array
  sin: jax.Array


def rope_table(positions: jax.Array, dim: int, theta: float) -> Rope:
  """Angles position * theta^(-2i / dim) (RoFormer, https://arxiv.org/abs/2104.09864)."""
  frequencies = theta ** (-jnp.arange(dim // 2, dtype=jnp.float32) * 2 / dim)
  angles = positions[..., None].astype(jnp.float32) * frequencies
  return Rope(jnp.cos(angles), jnp.sin(angles))


def rope_of(positions: jax.Array, cfg: PolicyConfig) -> Rope:
  """The angles of a policy at positions [B, T]; stretched by YaRN, times rope_gain, if it is."""
  if cfg.rope_factor == 1:
    return rope_table(positions, cfg.rope_dim, cfg.rope_theta)
  angles = positions[..., None].astype(jnp.float32) * yarn.frequencies(cfg)
  return Rope(cfg.rope_gain * jnp.cos(angles), cfg.rope_gain * jnp.sin(angles))


def rotate(x: jax.Array, rope: Rope) -> jax.Array:
  """Rotates pairs (x_i, x_{i + H/2}) of x [B, T, ..., H]."""
  middle = (1,) * (x.ndim - 3)
  cos = rope.cos.reshape(*rope.cos.shape[:2], *middle, -1).astype(x.dtype)
  sin = rope.sin.reshape(*rope.sin.shape[:2], *middle, -1).astype(x.dtype)
  first, second = jnp.split(x, 2, axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend_rows(
  weights: dict[str, Any],
  x: jax.Array,
  cfg: PolicyConfig,
  *,
  rope: Rope,
  rows: Rows,
  window: jax.Array | None = None,
  with_peaks: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """Causal attention of rows of tokens to themselves, see `causal.attend`.

  Args:
    weights: of one layer, see params.table.
    x: [B, T, D], normalised.
    cfg: sizes.
    rope: of the rows' depths.
    rows: what the rows hold.
    window: int32 [], how many tokens back this layer sees, or None: all.
    with_peaks: compute scores once more, for the largest of each head.

  Returns:
    [B, T, D]; with_peaks also float32 [N].
  """
  project = _mla_rows if cfg.attention == "mla" else _gqa_rows
  q, k, v = project(weights, x, cfg, rope)
  if cfg.score_gain != 1:
    q = q * cfg.score_gain
  mixed, peaks = causal_core(
    q,
    k,
    v,
    rows,
    weights.get("sinks"),
    window,
    kernels=kernels_lib.kind(cfg),
    window_tokens=cfg.window_tokens,
    with_peaks=with_peaks,
  )
  equation = "bgrth,ghd->btd" if cfg.attention == "mla" else "bgrth,grhd->btd"
  y = jnp.einsum(equation, mixed, weights["out"])
  if cfg.biases:
    y = y + weights["out_bias"]
  return y if peaks is None else (y, peaks.reshape(-1))


def attend_cached(
  weights: dict[str, Any],
  x: jax.Array,
  cfg: PolicyConfig,
  *,
  rope: Rope,
  cache: Cache,
  layer: jax.Array | int,
  step: cache_lib.Step | slot_cache.Step,
  window: jax.Array | None = None,
) -> tuple[jax.Array, Cache]:
  """Attention of new tokens x [B, Q, D] to all that their rows have cached, themselves included.

  Returns:
    ([B, Q, D], cache with the new tokens' entries of `layer`).
  """
  if cfg.attention == "mla":
    return _mla_cached(weights, x, cfg, rope, cache, layer, step)
  return _gqa_cached(weights, x, cfg, rope, cache, layer, step, window)


def plan_step(
  cache: Cache,
  page_table: jax.Array,
  lengths: jax.Array,
  num_new: jax.Array,
  num_queries: int,
) -> cache_lib.Step | slot_cache.Step:
  """Addresses of a step's new tokens, see cache.plan_step."""
  if isinstance(cache, slot_cache.BufferedSlots):
    return slot_cache.plan_step(lengths, num_new, num_queries)
  return cache_lib.plan_step(cache, page_table, lengths, num_new, num_queries)


def causal_core(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  rows: Rows,
  sinks: jax.Array | None = None,
  window: jax.Array | None = None,
  *,
  kernels: kernels_lib.Kind = "reference",
  window_tokens: int = 0,
  with_peaks: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
  """Causal attention, see `causal.attend`; by a kernel where there is one.

  On a mesh each device has some rows, some heads, and a part of their time. Where its kv heads
  divide by the parts, devices of a row exchange heads for time, and each attends whole rows: all
  have the same work, though late queries see more keys (DeepSpeed-Ulysses,
  https://arxiv.org/abs/2309.14509). Elsewhere each gathers keys and values of whole rows for its
  own queries, and gives back what their gradients add up to (Llama 3,
  https://arxiv.org/abs/2407.21783, section 3.3.2).

  Args:
    q: [B, G, R, T, H], not yet scaled.
    k: [B, G, T, H].
    v: [B, G, T, H'].
    rows: what the rows hold.
    sinks: [G, R] or None.
    window: int32 [] or None.
    kernels: see kernel_choice.for_rows.
    window_tokens: what `window` is in layers that have one.
    with_peaks: see `attend_rows`.

  Returns:
    ([B, G, R, T, H'], largest scores of all rows float32 [G, R] or None).
  """
  parts, tensor = sharding.ambient_ways("time"), sharding.ambient_ways("heads")
  has_sinks, length = sinks is not None, q.shape[3]
  if by_heads := q.shape[1] // tensor % parts == 0:
    parts = 1
  choice = kernels_lib.for_rows(
    kernels,
    length // parts,
    length,
    sinks=has_sinks,
    windows=window is not None,
    forks=rows.has_forks,
  )
  masks = None
  if choice == "splash":
    near = 0 if window is None else window_tokens
    masks = splash_tpu.masks(length, near, time_ways=parts, head_ways=tensor)

  def of_rows(masks, q, k, v, ends, depths, sinks, window, start=None):
    arrays = q, k, v, ends, depths, sinks, window, start
    mixed = _attend_by(choice, kernels, masks, *arrays, has_forks=rows.has_forks)
    if not with_peaks:
      return mixed, None
    return mixed, causal.largest_scores(q, k, ends, depths, window, start, rows.has_forks)

  arrays = q, k, v, rows.ends, rows.depths, sinks, window
  if jax.sharding.get_abstract_mesh().empty:
    return of_rows(masks, *arrays)
  return _causal_on_mesh(of_rows, masks, arrays, by_heads=by_heads, parts=parts)


def _causal_on_mesh(of_rows, masks, arrays, *, by_heads, parts):
  """`causal_core` on the ambient mesh.

  Args:
    of_rows: what a device computes, with the keys of whole rows: (masks, *arrays, start) ->
      (attention, largest scores or None).
    masks: of splash attention, or None.
    arrays: q, k, v, ends, depths, sinks, window; all devices' parts of them.
    by_heads: whether devices exchange heads for time; otherwise they gather keys and values.
    parts: into which the time of queries is split while they attend.
  """

  def of_device(masks, q, k, v, ends, depths, sinks, window):
    whole = lambda x, axis: jax.lax.all_gather(x, "context", axis=axis, tiled=True)
    swap = lambda x, out, into: jax.lax.all_to_all(x, "context", out, into, tiled=True)
    ends, depths, part = whole(ends, 1), whole(depths, 1), jax.lax.axis_index("context")
    if by_heads:
      q, k, v = swap(q, 1, 3), swap(k, 1, 2), swap(v, 1, 2)
      if sinks is not None:
        sinks = jax.lax.dynamic_slice_in_dim(sinks, part * k.shape[1], k.shape[1])
      mixed, peaks = of_rows(masks, q, k, v, ends, depths, sinks, window)
      mixed = swap(mixed, 3, 1)
      peaks = None if peaks is None else whole(peaks, 0)
    else:
      start = part * q.shape[3]
      k, v = whole(k, 2), whole(v, 2)
      mixed, peaks = of_rows(masks, q, k, v, ends, depths, sinks, window, start)
    if peaks is not None:
      rules = sharding.TRAIN_RULES
      peaks = jax.lax.pmax(peaks, rules["batch"] + rules["time"])
    return mixed, peaks

  place = lambda *axes: sharding.spec(axes, sharding.TRAIN_RULES)
  queries = place("batch", "heads", None, "time", None)
  keys = place("batch", "heads", "time", None)
  plans = None
  if masks is not None:
    split = place("heads", "time" if parts > 1 else None)
    mesh = jax.sharding.get_abstract_mesh()
    plans = splash_tpu.specs(masks, jax.sharding.NamedSharding(mesh, split))
  times = place("batch", "time")
  in_specs = plans, queries, keys, keys, times, times, place("heads"), place()
  out_specs = queries, place("heads")
  return jax.shard_map(of_device, in_specs=in_specs, out_specs=out_specs, check_vma=False)(
    masks, *arrays
  )


def _attend_by(choice, kernels, masks, q, k, v, ends, depths, sinks, window, start, *, has_forks):
  """What `causal.attend` computes, by what `kernel_choice.for_rows` chose."""
  if choice == "splash":  # without forks the ends tell sequences apart, as the kernel's ids
    first = 0 if start is None else start
    ids = jax.lax.dynamic_slice_in_dim(ends, first, q.shape[3], axis=1)
    return splash_tpu.attend(masks, q, k, v, ids, ends, sinks, window)
  if choice == "flash":
    return flash_gpu.attend(q, k, v, ends)
  if choice == "tree_flash":
    return tree_flash.attend(q, k, v, ends, depths, sinks, window, start, kernels=kernels)
  return causal.attend(q, k, v, ends, depths, sinks, window, start, has_forks)


def _gqa_project(weights, x, cfg, rope):
  """Queries [B, T, G, R, H], keys and values [B, T, G, H], rotated."""
  qkv = jnp.einsum("btd,dgrh->btgrh", x, weights["qkv"])
  if cfg.biases:
    qkv = qkv + weights["qkv_bias"]
  q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
  if cfg.qk_norm:
    q = rms_norm(q, weights["q_norm"], cfg.norm_eps)
    k = rms_norm(k, weights["k_norm"], cfg.norm_eps)
  return rotate(q, rope), rotate(k, rope), v


def _gqa_rows(weights, x, cfg, rope):
  q, k, v = _gqa_project(weights, x, cfg, rope)
  return q.transpose(0, 2, 3, 1, 4), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)


def _gqa_cached(weights, x, cfg, rope, cache, layer, step, window):
  rows, queries, _ = x.shape
  q, k, v = _gqa_project(weights, x, cfg, rope)
  # Heads first: cut into equal parts, an entry gives each device the keys and values of its heads.
  entries = jnp.stack([k, v], axis=3).reshape(rows, queries, *cache_lib.entry_shape(cfg))
  scale, sinks = cfg.score_gain * cfg.head_dim**-0.5, weights.get("sinks")
  limits = {"sinks": sinks, "window": window}
  if isinstance(cache, slot_cache.BufferedSlots):
    mixed, cache = _slot_core(q, entries, cache, layer, step, cfg=cfg, scale=scale, **limits)
  else:
    attend, heads = _gqa_attend(cfg, cache, queries, scale), ("kv_heads", None)
    mixed, cache = _paged_core(
      q, entries, cache, layer, step, cfg=cfg, attend=attend, heads=heads, **limits
    )
  y = jnp.einsum("bqgrh,grhd->bqd", mixed, weights["out"])
  return (y + weights["out_bias"] if cfg.biases else y), cache


def _gqa_attend(cfg, cache, queries, scale):
  """What attends to pages, see `_paged_core`."""
  split = functools.partial(cache_lib.split, cfg=cfg)
  ways = sharding.ambient_ways("kv_heads")
  choice = kernels_lib.for_cache(cfg, cache.pages.dtype, ways, queries)
  if choice == "tpu":
    # There are no sinks and windows, see for_cache.
    return lambda q, pages, layer, step, *_: ragged_tpu.attend(q, pages, layer, step, scale)
  if choice == "gpu":
    return lambda q, pages, layer, step, *more: paged_gpu.attend(
      q, pages, layer, step, scale, *more
    )
  if kernels_lib.packed_entries(cfg) and queries <= paged.PACKED_QUERIES:
    return lambda q, pages, layer, step, *more: paged.attend_packed(
      q, pages, layer, step, scale, *more
    )
  return lambda q, pages, layer, step, *more: paged.attend(
    q, pages, layer, step, split, scale, *more
  )


def _slot_core(q, entries, cache, layer, step, *, cfg, scale, sinks=None, window=None):
  """(attention of q to a cache of slots, the cache): new entries are written before.

  Args:
    q: [B, Q, G, R, H].
    entries: of the new tokens, [B, Q, *entry].
    cache, layer, step: as `attend_cached`.
    cfg: sizes.
    scale: of the scores.
    sinks, window: as `paged.attend`.
  """
  layers = list(cache.layers)
  mixed, layers[layer] = slot_cache.attend(
    q, entries, layers[layer], step, cfg, scale, sinks, window
  )
  return mixed, slot_cache.BufferedSlots(tuple(layers))


def _paged_core(q, entries, cache, layer, step, *, cfg, attend, heads, sinks=None, window=None):
  """(attention of q to a cache of pages, the cache): new entries are written before. On a mesh each
  device does so for its own rows and heads, and nothing is exchanged.

  Args:
    q, entries, cache, layer, step, cfg, sinks, window: as `_slot_core`.
    attend: to pages, (q, pages, layer, step, sinks, window) -> [B, Q, G, R, H'].
    heads: logical axes of G and R.
  """

  def of_device(q, entries, pages, layer, step, sinks, window):
    pages = cache_lib.write(pages, layer, step, entries)
    return attend(q, pages, layer, step, sinks, window), pages

  arrays = q, entries, cache.pages, jnp.asarray(layer, jnp.int32), step, sinks, window
  if jax.sharding.get_abstract_mesh().empty:
    mixed, pages = of_device(*arrays)
    return mixed, dataclasses.replace(cache, pages=pages)
  place = lambda *axes: sharding.spec(axes, sharding.SERVE_RULES)
  queries, cached = place("batch", None, *heads), place(*cache_lib.axes(cfg))
  new = place("batch", None, *cache_lib.axes(cfg)[3:])
  in_specs = queries, new, cached, place(), place("batch"), place(heads[0]), place()
  mixed, pages = jax.shard_map(
    of_device, in_specs=in_specs, out_specs=(queries, cached), check_vma=False
  )(*arrays)
  return mixed, dataclasses.replace(cache, pages=pages)


def _mla_queries(weights, x, cfg, rope):
  """Query heads without rotation [B, T, N, nope] and rotated [B, T, N, rope]."""
  if cfg.q_lora_rank:
    latent = rms_norm(x @ weights["q_down"], weights["q_norm"], cfg.latent_norm_eps)
    q = jnp.einsum("bts,snh->btnh", latent, weights["q_up"])
  else:
    q = jnp.einsum("btd,dnh->btnh", x, weights["q"])
  return q[..., : cfg.qk_nope_dim], rotate(q[..., cfg.qk_nope_dim :], rope)


def _mla_latents(weights, x, cfg, rope):
  """What is cached: the latent c [B, T, S] and the rotated key k_pe [B, T, rope] of all heads."""
  down = x @ weights["kv_down"]
  latent = rms_norm(down[..., : cfg.kv_lora_rank], weights["kv_norm"], cfg.latent_norm_eps)
  return latent, rotate(down[..., cfg.kv_lora_rank :], rope)


def _mla_rows(weights, x, cfg, rope):
  """Naive form: every head's keys and values are projected up from the latents."""
  q_nope, q_pe = _mla_queries(weights, x, cfg, rope)
  latent, k_pe = _mla_latents(weights, x, cfg, rope)
  kv = jnp.einsum("bts,snh->btnh", latent, weights["kv_up"])
  k_pe = jnp.broadcast_to(k_pe[:, :, None], (*kv.shape[:3], cfg.qk_rope_dim))
  q = jnp.concatenate([q_nope, q_pe], axis=-1).transpose(0, 2, 1, 3)[:, :, None]
  k = jnp.concatenate([kv[..., : cfg.qk_nope_dim], k_pe], axis=-1).transpose(0, 2, 1, 3)
  return q, k, kv[..., cfg.qk_nope_dim :].transpose(0, 2, 1, 3)


def _mla_cached(weights, x, cfg, rope, cache, layer, step):
  """Absorbed form (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1).

  q_nope . (c W_k) = (q_nope W_k^T) . c, so that queries move into the space of the latents and the
  cache is never projected up: a score is q' . c + q_pe . k_pe, the output (weights . c) W_v.
  """
  q_nope, q_pe = _mla_queries(weights, x, cfg, rope)
  latents = _mla_latents(weights, x, cfg, rope)
  filling = jnp.zeros((*x.shape[:2], cache_lib.entry_shape(cfg)[0] - cfg.cache_width), x.dtype)
  entries = jnp.concatenate([*latents, filling], axis=-1)
  up_k, up_v = jnp.split(weights["kv_up"], [cfg.qk_nope_dim], axis=-1)
  absorbed = jnp.einsum("bqnh,snh->bqns", q_nope, up_k)
  filling = jnp.broadcast_to(filling[:, :, None], (*q_pe.shape[:3], filling.shape[-1]))
  q = jnp.concatenate([absorbed, q_pe, filling], axis=-1)[:, :, None]
  scale = cfg.score_gain * (cfg.qk_nope_dim + cfg.qk_rope_dim) ** -0.5
  if isinstance(cache, slot_cache.BufferedSlots):
    mixed, cache = _slot_core(q, entries, cache, layer, step, cfg=cfg, scale=scale)
  else:
    attend, heads = _mla_attend(cfg, cache, x.shape[1], scale), (None, "heads")
    mixed, cache = _paged_core(q, entries, cache, layer, step, cfg=cfg, attend=attend, heads=heads)
  values = jnp.einsum("bqns,snh->bqnh", mixed[:, :, 0], up_v)
  return jnp.einsum("bqnh,nhd->bqd", values, weights["out"]), cache


def _mla_attend(cfg, cache, queries, scale):
  """What attends to pages, see `_paged_core`."""
  rank, split = cfg.kv_lora_rank, functools.partial(cache_lib.split, cfg=cfg)
  if kernels_lib.for_cache(cfg, cache.pages.dtype, 1, queries) == "gpu":
    return lambda q, pages, layer, step, *_: paged_gpu.attend(
      q, pages, layer, step, scale, latent_width=rank
    )
  return lambda q, pages, layer, step, *_: paged.attend(q, pages, layer, step, split, scale)
