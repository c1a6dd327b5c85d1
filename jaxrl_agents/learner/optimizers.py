"""Gradient transformations beyond those of optax: 8-bit moments, Muon, QK-clip, float32 master.

Each is an `optax.GradientTransformation`; learner.state combines them. State with the shape of a
parameter is kept in that shape, and so is sharded as the parameter is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.params import Matrix

BLOCK = 64
"""Most numbers that share a scale. It is small so that devices that split an axis hold whole
blocks.
"""

MIN_BLOCK = 16
"""If no divisor of an axis is at least this large, the whole axis shares a scale."""

MUON_RMS = 0.2
"""Root mean square of an update of Muon. It equals that of Adam, so that both use the same learning
rates.
"""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""a, b and c of X <- a X + (b A + c A A) X with A = X X^T, which drives singular values to 1."""

NEWTON_SCHULZ_STEPS = 5


class Quantised(NamedTuple):
  """Numbers in eight bits. The trees that hold them have the structure of the parameters.

  Attributes:
    codes: int8 (signed) or uint8, with the shape of the numbers.
    scales: float32, the largest magnitude of each block of the last axis: [..., blocks].
  """

  codes: Any
  scales: Any


class Adam8bitState(NamedTuple):
  """Steps so far, int32 [], and trees of both moments (see `Quantised`)."""

  count: jax.Array  # type: ignore[assignment]  # optax names it so
  mu: Quantised
  nu: Quantised


class MuonState(NamedTuple):
  """The momentum, float32, like the parameters."""

  mu: Any


class MasterState(NamedTuple):
  """Parameters in float32, None in place of those that are float32 already; inner state."""

  master: Any
  inner: Any


def scale_by_adam8bit(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
  """Adam whose moments are stored in eight bits, with a scale for each block of 64 numbers.

  (Dettmers et al., https://arxiv.org/abs/2110.02861.) Instead of their table, the codes are evenly
  spaced roots: sign(m) sqrt(|m| / scale) of the first moment m, and (v / scale)^(1/4) of the second
  moment v. They reach four and nine decades below the largest number of a block; a linear code
  would round most of v to 0 and divide by it. The step itself uses the moments before they are
  rounded.
  """

  def init(params):
    zeros = lambda dtype: jax.tree.map(lambda p: jnp.zeros(p.shape, dtype), params)
    scales = lambda: jax.tree.map(lambda p: jnp.zeros(_blocks(p.shape), jnp.float32), params)
    moments = Quantised(zeros(jnp.int8), scales()), Quantised(zeros(jnp.uint8), scales())
    return Adam8bitState(jnp.zeros((), jnp.int32), *moments)

  def update(updates, state, params=None):
    del params
    count = optax.safe_increment(state.count)
    old = jax.tree.map(signed_numbers, *state.mu), jax.tree.map(positive_numbers, *state.nu)
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, old[0], updates)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, old[1], updates)
    mu_gain, nu_gain = 1 / (1 - b1**count), 1 / (1 - b2**count)
    step = lambda m, v: m * mu_gain / (jnp.sqrt(v * nu_gain) + eps)
    state = Adam8bitState(count, _quantised(signed_codes, mu), _quantised(positive_codes, nu))
    return jax.tree.map(step, mu, nu), state

  return optax.GradientTransformation(init, update)


def block_size(length: int) -> int:
  """The largest divisor of `length` up to BLOCK; `length` itself if that is below MIN_BLOCK."""
  size = max(d for d in range(1, min(length, BLOCK) + 1) if length % d == 0)
  return size if size >= MIN_BLOCK else length


def signed_codes(x: jax.Array) -> Quantised:
  """round(127 sign(x) sqrt(|x| / scale)) of float32 [..., H], int8."""
  blocks = _in_blocks(x)
  scales = jnp.max(jnp.abs(blocks), axis=-1)
  roots = jnp.sqrt(jnp.abs(blocks) / _divisor(scales))
  codes = jnp.round(127 * jnp.sign(blocks) * roots).astype(jnp.int8)
  return Quantised(codes.reshape(x.shape), scales)


def signed_numbers(codes: jax.Array, scales: jax.Array) -> jax.Array:
  """The float32 numbers of `signed_codes`."""
  roots = _in_blocks(codes).astype(jnp.float32) / 127
  return (jnp.sign(roots) * roots * roots * scales[..., None]).reshape(codes.shape)


def positive_codes(x: jax.Array) -> Quantised:
  """round(255 (x / scale)^(1/4)) of float32 [..., H] >= 0, uint8; at least 1 where x > 0."""
  blocks = _in_blocks(x)
  scales = jnp.max(blocks, axis=-1)
  codes = jnp.round(255 * jnp.sqrt(jnp.sqrt(blocks / _divisor(scales))))
  codes = jnp.maximum(codes, blocks > 0).astype(jnp.uint8)
  return Quantised(codes.reshape(x.shape), scales)


def positive_numbers(codes: jax.Array, scales: jax.Array) -> jax.Array:
  """The float32 numbers of `positive_codes`."""
  squares = jnp.square(_in_blocks(codes).astype(jnp.float32) / 255)
  return (squares * squares * scales[..., None]).reshape(codes.shape)


def _quantised(function, numbers) -> Quantised:
  """Trees of codes and of scales of a tree of numbers."""
  leaves, tree = jax.tree.flatten(numbers)
  parts = [function(x) for x in leaves]
  return Quantised(*(jax.tree.unflatten(tree, [part[i] for part in parts]) for i in range(2)))


def _blocks(shape: tuple[int, ...]) -> tuple[int, ...]:
  return (*shape[:-1], shape[-1] // block_size(shape[-1]))


def _in_blocks(x: jax.Array) -> jax.Array:
  return x.reshape(*_blocks(x.shape), -1)


def _divisor(scales: jax.Array) -> jax.Array:
  return jnp.where(scales > 0, scales, 1.0)[..., None]


def scale_by_muon(matrices: Any, beta: float = 0.95) -> optax.GradientTransformation:
  """Nesterov momentum, made orthogonal: 0.2 sqrt(max(inputs, outputs)) U V^T of M = U S V^T.

  (Muon, https://kellerjordan.github.io/posts/muon; the factor is that of
  https://arxiv.org/abs/2502.16982, section 2.2.) Five Newton-Schulz steps approximate U V^T. Each
  matrix of a stack is treated by itself, and arrays keep their shardings.

  Args:
    matrices: tree of params.Matrix with the structure of the parameters; only trained ones need
      one.
    beta: decay of the momentum.
  """

  def init(params):
    return MuonState(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))

  def update(updates, state, params=None):
    del params
    mu = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, state.mu, updates)
    ahead = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, mu, updates)
    there = lambda matrix, x: x if _absent(x) else orthogonal(x, matrix)
    is_leaf = lambda node: node is None or isinstance(node, Matrix)
    return jax.tree.map(there, matrices, ahead, is_leaf=is_leaf), MuonState(mu)

  return optax.GradientTransformation(init, update)


def orthogonal(x: jax.Array, matrix: Matrix) -> jax.Array:
  """0.2 sqrt(max(inputs, outputs)) U V^T of each matrix U S V^T in x, float32 [...]."""
  inputs, outputs = (tuple(axis % x.ndim for axis in axes) for axes in matrix)
  stack = tuple(axis for axis in range(x.ndim) if axis not in (*inputs, *outputs))
  order = (*stack, *inputs, *outputs)
  moved = x.transpose(order)
  sizes = [math.prod(x.shape[axis] for axis in axes) for axes in (inputs, outputs)]
  flat = moved.reshape(*moved.shape[: len(stack)], *sizes)
  found = MUON_RMS * max(sizes) ** 0.5 * _newton_schulz(flat)
  inverse = sorted(range(x.ndim), key=order.__getitem__)
  return found.reshape(moved.shape).transpose(inverse)


def _newton_schulz(x: jax.Array) -> jax.Array:
  """Approximately U V^T of x [..., R, C]: the singular values end between 0.7 and 1.2."""
  if x.shape[-2] > x.shape[-1]:
    return _newton_schulz(x.swapaxes(-1, -2)).swapaxes(-1, -2)
  a, b, c = NEWTON_SCHULZ
  x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-8)
  for _ in range(NEWTON_SCHULZ_STEPS):
    gram = x @ x.swapaxes(-1, -2)
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x


def qk_clip(cfg: PolicyConfig, bound: float) -> optax.GradientTransformationExtraArgs:
  """Shrinks queries and keys of heads whose largest attention score exceeded `bound`.

  With gamma = min(1, bound / score) of a head (MuonClip, Kimi K2, https://arxiv.org/abs/2507.20534,
  section 2.1), the weights after the step are multiplied as follows, so that no head changes
  another:
    MLA: the unrotated parts of queries and of keys by sqrt(gamma), rotated queries by gamma;
    heads with their own keys: queries and keys by sqrt(gamma);
    heads that share keys: queries by gamma.

  It comes last in a chain. Its `update` takes `attention_peaks`, float32 [L, N], the largest score
  of each layer and head of the trunk in the batch of the step.

  Raises:
    ValueError: heads are normed after their projection, which cancels every factor.
  """
  if cfg.attention == "gqa" and cfg.qk_norm:
    raise ValueError("QK-clip has no effect on heads that are normed; turn it or qk_norm off")
  if bound <= 0:
    raise ValueError(f"bound={bound} of QK-clip must be positive; 100 in Kimi K2")

  def update(updates, state, params, *, attention_peaks, **more):
    del more
    gamma = jnp.minimum(1.0, bound / jnp.maximum(attention_peaks, bound))
    first_moe = cfg.num_dense_layers
    parts = {"dense_layers": gamma[:first_moe], "moe_layers": gamma[first_moe:]}
    updates = dict(updates)
    for stack in parts.keys() & updates.keys():
      factors = head_factors(parts[stack], cfg)
      group, old = dict(updates[stack]["attention"]), params[stack]["attention"]
      for name in factors.keys() & group.keys():
        if isinstance(group[name], optax.MaskedNode):  # not trained
          continue
        group[name] = (old[name] + group[name]) * factors[name] - old[name]
      updates[stack] = updates[stack] | {"attention": group}
    return updates, state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def head_factors(gamma: jax.Array, cfg: PolicyConfig) -> dict[str, jax.Array]:
  """{attention parameter: factors that broadcast to it} of gamma [L, N] of stacked layers."""
  root = jnp.sqrt(gamma)
  if cfg.attention == "mla":
    wide = lambda x, width: jnp.repeat(x[:, None, :, None], width, axis=-1)
    nope, rope, value = cfg.qk_nope_dim, cfg.qk_rope_dim, cfg.v_head_dim
    keys = [wide(root, nope), jnp.ones((*wide(root, 1).shape[:-1], value))]
    queries = jnp.concatenate([wide(root, nope), wide(gamma, rope)], axis=-1)
    name = "q_up" if cfg.q_lora_rank else "q"
    return {name: queries, "kv_up": jnp.concatenate(keys, axis=-1)}
  alone = cfg.num_heads == cfg.num_kv_heads
  queries = (root if alone else gamma).reshape(gamma.shape[0], cfg.num_kv_heads, -1)
  one = jnp.ones((*queries.shape[:2], 1))
  rows = jnp.concatenate([queries, root[..., None] if alone else one, one], axis=-1)
  factors = {"qkv": rows[:, None, :, :, None]}
  return factors | {"qkv_bias": rows[..., None]} if cfg.biases else factors


def float32_master(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
  """Applies `inner` to float32 copies of the parameters, which are kept; the parameters are the
  rounded copies.

  Steps far below the precision of bfloat16 add up in the copies. An update is the difference
  between the new rounded value and the old parameter, in float32, so that `optax.apply_updates`
  gives the new rounded value. The exception is a number that shrinks by more than 2^16 in one step:
  it loses 2^-24 of the old value.
  """
  inner = optax.with_extra_args_support(inner)

  def init(params):
    narrow = lambda p: optax.MaskedNode() if p.dtype == jnp.float32 else p.astype(jnp.float32)
    master = jax.tree.map(narrow, params)
    return MasterState(master, inner.init(_wide(master, params)))

  def update(updates, state, params, **more):
    wide = _wide(state.master, params)
    updates = jax.tree.map(lambda g: g.astype(jnp.float32), updates)
    updates, inner_state = inner.update(updates, state.inner, wide, **more)
    new = optax.apply_updates(wide, updates)
    master = jax.tree.map(lambda m, n: m if _absent(m) else n, state.master, new, is_leaf=_absent)
    rounded = lambda n, p, u: u if p.dtype == n.dtype else n.astype(p.dtype).astype(n.dtype) - p
    return jax.tree.map(rounded, new, params, updates), MasterState(master, inner_state)

  return optax.GradientTransformationExtraArgs(init, update)


def _absent(node: Any) -> bool:
  return isinstance(node, optax.MaskedNode)


def _wide(master: Any, params: Any) -> Any:
  """Master copies, or the parameters themselves where there is no copy."""
  return jax.tree.map(lambda m, p: p if _absent(m) else m, master, params, is_leaf=_absent)
