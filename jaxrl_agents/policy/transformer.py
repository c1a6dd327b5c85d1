"""The trunk: embedding, layers, final norm, head; over rows (training) or the paged cache.

`forward` and `decode` run the same layer code and agree to rounding: rejecting a drafted token is
not advancing `lengths`.

Alphabet: B rows, T time, Q new tokens, D width, E experts, K experts per token, L mixture layers,
V vocab, M prediction modules.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_agents.policy import head as head_lib
from jaxrl_agents.policy import lora, sharding
from jaxrl_agents.policy.attention import causal
from jaxrl_agents.policy.attention import layer as attention
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.experts import moe as moe_lib
from jaxrl_agents.policy.norm import rms_norm

Remat = Literal["none", "layer", "attention", "projections"]
REMAT: dict[Remat, Callable[..., bool]] = {
  "none": jax.checkpoint_policies.everything_saveable,
  "layer": jax.checkpoint_policies.nothing_saveable,
  "attention": jax.checkpoint_policies.save_only_these_names(causal.KEPT),
  "projections": jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.save_only_these_names(causal.KEPT),
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  ),
}
"""What is kept of a layer between forward and backward pass; the rest is computed again.

"layer" keeps a layer's input alone, [B, T, D]: the least memory, about a third more work.
"attention" also keeps what came out of attention (and its log-sum-exp), whose work grows with the
square of time: for long rows. "projections" keeps that and the products with weights outside of the
experts, so that what is recomputed there is cheap. "none" recomputes nothing.
"""


@struct.dataclass
class Output:
  """What a pass over tokens yields.

  Attributes:
    hidden: [B, T, D], after the final norm.
    routing: int32 [B, T, L, K], the experts that each token went through; L = 0 for a dense model.
    expert_load: float32 [L, E], (token, choice) pairs of each expert, padding not counted.
    attention_peaks: float32 [layers of the trunk, heads], largest attention scores, where asked
      for.
  """

  hidden: jax.Array
  routing: jax.Array
  expert_load: jax.Array
  attention_peaks: jax.Array | None = None


def forward(
  params: dict[str, Any],
  tokens: jax.Array,
  cfg: PolicyConfig,
  *,
  rows: attention.Rows | None = None,
  routing: jax.Array | None = None,
  replay_threshold: float = 0.0,
  remat: Remat = "none",
  attention_peaks: bool = False,
) -> Output:
  """A full pass over rows of tokens, for training.

  Args:
    params: stacked layers (run by lax.scan) or unstacked ones (a python loop).
    tokens: int32 [B, T].
    cfg: sizes.
    rows: what the rows hold; None: one sequence each.
    routing: int32 [B, T, L, K], experts to replay; entries outside [0, E) choose natively.
    replay_threshold: plausibility filter of the replay, see moe.replayed_experts.
    remat: what the backward pass finds kept of each layer, see `REMAT`.
    attention_peaks: also find the largest attention score of each head.
  """
  valid = None if rows is None else rows.valid
  rows = attention.one_sequence(tokens) if rows is None else rows
  rope = attention.rope_of(rows.depths, cfg)
  replay = None if routing is None else jnp.moveaxis(routing, 2, 0)

  def layer(x, weights, extra):
    replay, window = extra
    attend = functools.partial(
      attention.attend_rows,
      cfg=cfg,
      rope=rope,
      rows=rows,
      window=window,
      with_peaks=attention_peaks,
    )
    x, experts = block(
      weights,
      x,
      cfg,
      attend,
      replay=replay,
      replay_threshold=replay_threshold,
      valid=valid,
    )
    return (x[0], (experts, x[1])) if attention_peaks else (x, (experts, None))

  if remat != "none":
    layer = jax.checkpoint(layer, policy=REMAT[remat])
  elif lora.has_adapters(params):
    keep = jax.checkpoint_policies.save_anything_except_these_names(lora.MERGED)
    layer = jax.checkpoint(layer, policy=keep)
  x = embed(params, tokens)
  used, peaks = None, []
  if cfg.num_dense_layers:
    no_replay = None, windows(cfg, 0, cfg.num_dense_layers)
    x, (_, peak) = _run_layers(layer, x, params["dense_layers"], no_replay)
    peaks.append(peak)
  if cfg.num_moe_layers:
    extra = replay, windows(cfg, cfg.num_dense_layers, cfg.num_layers)
    x, (used, peak) = _run_layers(layer, x, params["moe_layers"], extra)
    peaks.append(peak)
  hidden = rms_norm(x, params["final_norm"], cfg.norm_eps)
  output = _output(hidden, used, valid, cfg)
  if not attention_peaks:
    return output
  return dataclasses.replace(output, attention_peaks=jnp.concatenate(peaks))


def windows(cfg: PolicyConfig, first: int, end: int) -> jax.Array | None:
  """How many tokens back layers [first, end) see, int32 [end - first]; None where all see all."""
  if not cfg.window_tokens:
    return None
  all_tokens = jnp.iinfo(jnp.int32).max
  sizes = [cfg.window_tokens if cfg.has_window(i) else all_tokens for i in range(first, end)]
  return jnp.asarray(sizes, jnp.int32)


def embed(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
  """Embeddings of tokens [B, T]: [B, T, D], split by rows and time, as all that follows.

  The width is gathered first: rows and width lie on the same mesh axes, and left to itself the
  compiler copies the whole result to every device to go from one split to the other.
  """
  table = sharding.constrain(params["embed"], "vocab", None)
  return sharding.constrain(_rows(table, tokens), "batch", "time", None)


@jax.custom_vjp
def _rows(table: jax.Array, tokens: jax.Array) -> jax.Array:
  """The rows of a table. Gradients of one row are summed in float32: in bfloat16 a sum stands still
  once it is 256 times as large as what is added.
  """
  return table[tokens]


def _rows_forward(table, tokens):
  return table[tokens], (table, tokens)


def _rows_backward(kept, d_rows):
  table, tokens = kept
  zeros = sharding.constrain(jnp.zeros(table.shape, jnp.float32), "vocab", None)
  return zeros.at[tokens].add(d_rows.astype(jnp.float32)).astype(table.dtype), None


_rows.defvjp(_rows_forward, _rows_backward)


def decode(
  params: dict[str, Any],
  tokens: jax.Array,
  cfg: PolicyConfig,
  cache: attention.Cache,
  *,
  page_table: jax.Array,
  lengths: jax.Array,
  num_new: jax.Array,
  routing: jax.Array | None = None,
) -> tuple[Output, attention.Cache]:
  """A pass over new tokens of cached sequences: prefill, decode and verification alike.

  Donate the cache: its pages are written in place.

  Args:
    params: unstacked layers (fast on CPU, see sharding.served) or stacked ones.
    tokens: int32 [B, Q].
    cfg: sizes.
    cache: pages [L + M, P, S, C]; or slots of these rows, in order, which take
      unstacked params.
    page_table: int32 [B, Pm], pages of each row in order, see policy.attention.cache; 0 where
      unused. Slots need none.
    lengths: int32 [B], tokens of each row already in the cache.
    num_new: int32 [B], how many of the Q tokens are real; the others go to the scratch page.
    routing: int32 [B, Q, L, K], experts to replay, as in `forward`.

  On a mesh B is a multiple of the parts that rows are split into.
  """
  step = attention.plan_step(cache, page_table, lengths, num_new, tokens.shape[1])
  rope = attention.rope_of(step.positions, cfg)
  valid = jnp.arange(tokens.shape[1]) < num_new[:, None]

  def layer(carry, weights, extra):
    x, cache = carry
    place, window, replay = extra
    attend = functools.partial(
      attention.attend_cached,
      cfg=cfg,
      rope=rope,
      cache=cache,
      layer=place,
      step=step,
      window=window,
    )
    rules = sharding.SERVE_RULES
    return block(weights, x, cfg, attend, replay=replay, valid=valid, rules=rules)

  x = params["embed"][tokens][..., : cfg.embed_dim]
  x = sharding.constrain(x, "batch", None, None, rules=sharding.SERVE_RULES)
  carry = (x, cache)
  used = None
  if cfg.num_dense_layers:
    no_replay = np.arange(cfg.num_dense_layers), windows(cfg, 0, cfg.num_dense_layers), None
    carry, _ = _run_layers(layer, carry, params["dense_layers"], no_replay)
  if cfg.num_moe_layers:
    places = np.arange(cfg.num_dense_layers, cfg.num_layers)
    replay = None if routing is None else jnp.moveaxis(routing, 2, 0)
    extra = places, windows(cfg, cfg.num_dense_layers, cfg.num_layers), replay
    carry, used = _run_layers(layer, carry, params["moe_layers"], extra)
  x, cache = carry
  hidden = rms_norm(x, params["final_norm"], cfg.norm_eps)
  return _output(hidden, used, valid, cfg), cache


def block(
  weights: dict[str, Any],
  x: jax.Array,
  cfg: PolicyConfig,
  attend: Callable,
  *,
  replay: jax.Array | None = None,
  replay_threshold: float = 0.0,
  valid: jax.Array | None = None,
  rules: sharding.Rules = sharding.TRAIN_RULES,
) -> tuple[Any, jax.Array | None]:
  """One layer: x + attention(norm(x)), then x + ffw(norm(x)).

  Args:
    weights: of one layer; has "ffw" (dense) or "moe". Adapters are merged here.
    x: [B, T, D].
    cfg: sizes.
    attend: (attention weights, normalised x) -> y, or -> (y, something beside it, as pages).
    replay: int32 [B, T, K] or None.
    replay_threshold: see moe.replayed_experts.
    valid: bool [B, T], False for padding, which no routed expert computes; None: all are valid.
    rules: how the weights lie on the mesh.

  Returns:
    (x or (x, what is beside it), as attend; experts used int32 [B, T, K], None for a dense layer).
  """
  weights = lora.merged(weights)
  mixed = attend(weights["attention"], rms_norm(x, weights["attention_norm"], cfg.norm_eps))
  mixed, beside = mixed if isinstance(mixed, tuple) else (mixed, None)
  x = x + mixed
  normed = rms_norm(x, weights["ffw_norm"], cfg.norm_eps)
  experts = None
  if "moe" in weights:
    y, experts = moe_lib.moe(
      weights["moe"],
      normed,
      cfg,
      replay=replay,
      replay_threshold=replay_threshold,
      valid=valid,
      rules=rules,
    )
  else:
    y = moe_lib.gated(weights["ffw"], normed)
  x = x + y
  return (x if beside is None else (x, beside)), experts


def _run_layers(layer: Callable, carry: Any, layers: Any, extra: Any) -> tuple[Any, Any]:
  """Threads `carry` through layer(carry, weights, extra of this layer); stacks what they return."""
  if not isinstance(layers, tuple):
    return jax.lax.scan(lambda carry, xs: layer(carry, *xs), carry, (layers, extra))
  outputs = []
  for i, weights in enumerate(layers):
    carry, output = layer(carry, weights, jax.tree.map(operator.itemgetter(i), extra))
    outputs.append(output)
  return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)


def _output(hidden, used, valid, cfg: PolicyConfig) -> Output:
  """Output with `used` int32 [L, B, T, K] (None: dense) brought to the order of a routing array."""
  if used is None:
    empty = jnp.zeros((*hidden.shape[:2], 0, cfg.experts_per_token), jnp.int32)
    return Output(hidden, empty, jnp.zeros((0, cfg.num_experts), jnp.float32))
  valid = jnp.ones(hidden.shape[:2], bool) if valid is None else valid
  counted = jnp.broadcast_to(valid[..., None], used.shape[1:]).reshape(-1).astype(jnp.float32)
  load = jax.vmap(
    lambda experts: jnp.zeros(cfg.num_experts, jnp.float32).at[experts.reshape(-1)].add(counted)
  )(used)
  return Output(hidden, jnp.moveaxis(used, 0, 2), load)


def head_matrix(params: dict[str, Any], cfg: PolicyConfig) -> jax.Array:
  """[D, V]; the transposed embedding where tied, scaled if it is to be."""
  if not cfg.tie_embeddings:
    return params["head"]
  head = params["embed"].T
  return head * cfg.embed_dim**-0.5 if cfg.scale_tied_head else head


def logits(params: dict[str, Any], hidden: jax.Array, cfg: PolicyConfig) -> jax.Array:
  """Scores over the vocabulary of hidden [..., D] (after the final norm): float32 [..., V]."""
  return jnp.matmul(hidden, head_matrix(params, cfg), preferred_element_type=jnp.float32)


def token_logprobs(
  params: dict[str, Any],
  hidden: jax.Array,
  targets: jax.Array,
  cfg: PolicyConfig,
  temperature: float = 1.0,
  *,
  mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Log-probabilities of targets under softmax(logits / temperature), and that softmax's entropy.

  A chunk of tokens at a time, computed again in the backward pass: never [B, T, V] whole.

  Args:
    params: the head (or embedding) is read.
    hidden: [B, T, D], after the final norm.
    targets: int32 [B, T].
    cfg: sizes.
    temperature: divides the logits.
    mask: bool [B, T], the tokens that are asked for, see head.of_tokens; None: all.

  Returns:
    (natural-log probabilities float32 [B, T], entropy in nats float32 [B, T]); 0 outside the mask.
  """

  def of_chunk(head, hidden, targets):
    return head_lib.chunk_logprobs(head, hidden, targets, jnp.float32(1.0 / temperature))

  logprobs, entropy = head_lib.of_tokens(of_chunk, head_matrix(params, cfg), mask, hidden, targets)
  return logprobs, entropy
