"""The experts of one device: all of them on all tokens, on tokens in slots of experts, or on tokens
sorted into blocks.

Alphabet: N tokens, D width, E experts, K experts per token, F ffw, S slots of all blocks.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_agents.policy.experts.gather_slots import block_of, put_block

MAX_BLOCK_TOKENS = 128
"""An expert's last block is half empty. On CPU products of 256 rows are 6 % faster, but 2,304
tokens with 8 experts of width 256 took 17 % less time in blocks of 128.
"""
MIN_BLOCK_TOKENS = 16
DENSE_TOKENS = 64
SLOT_TOKENS = 128
SLOT_STEP = 8
SLOT_SHARES = 1.25, 1.75, 2.5
"""Slots of an expert that `slots` has products for: multiples of the mean load, in whole steps."""


class Clamp(NamedTuple):
  """Limit and alpha of gpt-oss's gated activation, see `gate`: those of PolicyConfig's swiglu."""

  limit: float
  alpha: float


def dense(
  experts: dict[str, Any],
  x: jax.Array,
  weight: jax.Array,
  choice: jax.Array,
  clamp: Clamp | None = None,
) -> jax.Array:
  """Every expert on every token, weighted 0 where not chosen: for a handful of tokens.

  The weights of all experts are read once, which is all that such a step costs.

  Args:
    experts: gate_up [E, D, 2, F] or [E, D, 2 F], down [E, F, D]; gate_up_bias [E, 2, F] or [E, 2 F]
      and down_bias [E, D] where experts have biases.
    x: [N, D].
    weight: [N, K].
    choice: int32 [N, K]; E for no expert (padding).
    clamp: of the activation; None: silu(gate) * up.

  Returns:
    [N, D].
  """
  num_experts = experts["down"].shape[0]
  # A copy of the tokens for each expert: of "nd,edf->enf" XLA:CPU transposes all weights each time.
  y = _of_experts(experts, jnp.broadcast_to(x, (num_experts, *x.shape)), clamp)
  combine = (jax.nn.one_hot(choice, num_experts, dtype=x.dtype) * weight[..., None]).sum(axis=1)
  return (y * combine.T[:, :, None]).sum(axis=0)


def slots(
  experts: dict[str, Any],
  x: jax.Array,
  weight: jax.Array,
  choice: jax.Array,
  clamp: Clamp | None = None,
) -> jax.Array:
  """Each expert on its own tokens, in as many slots as the expert with most of them needs.

  For some dozens of tokens on a CPU, where products cost more than reading weights. There is a
  product for each of a few numbers of slots; where even the largest is too small, every expert
  computes every token. Arguments and result as `dense`.
  """
  (num_tokens, choices), num_experts = choice.shape, experts["down"].shape[0]
  mean = num_tokens * choices / num_experts
  sizes = [SLOT_STEP * math.ceil(share * mean / SLOT_STEP) for share in SLOT_SHARES]
  sizes = sorted({size for size in sizes if size < num_tokens})
  flat = choice.reshape(-1)
  pair = jnp.arange(len(flat))
  same_before = (flat[:, None] == flat[None, :]) & (pair[None, :] < pair[:, None])
  rank = jnp.sum(same_before, axis=1)  # of a pair among those of its expert
  most = jnp.max(jnp.where(flat < num_experts, rank, -1)) + 1

  def with_slots(size: int) -> jax.Array:
    none = num_experts * size
    slot = jnp.where(flat < num_experts, flat * size + rank, none)
    token = jnp.zeros(none, jnp.int32).at[slot].set(pair // choices, mode="drop")
    y = _of_experts(experts, x[token].reshape(num_experts, size, -1), clamp)
    picked = y.reshape(none, -1).at[slot].get(mode="fill", fill_value=0)
    return (picked.reshape(*choice.shape, -1) * weight[..., None]).sum(axis=1)

  of_size = [functools.partial(with_slots, size) for size in sizes]
  everything = lambda: dense(experts, x, weight, choice, clamp)
  fitting = sum((most > size).astype(jnp.int32) for size in sizes)
  return jax.lax.switch(fitting, [*of_size, everything]) if sizes else everything()


def _of_experts(experts: dict[str, Any], x: jax.Array, clamp: Clamp | None) -> jax.Array:
  """Every expert on tokens of its own: [E, S, D] of x [E, S, D]."""
  num_experts, width, embed = experts["down"].shape
  gate_up = experts["gate_up"].reshape(num_experts, embed, 2 * width)
  inner = jnp.einsum("esd,edf->esf", x, gate_up)
  if "gate_up_bias" in experts:
    inner = inner + experts["gate_up_bias"].reshape(num_experts, 1, 2 * width)
  y = jnp.einsum("esf,efd->esd", gate(inner, clamp), experts["down"])
  return y + experts["down_bias"][:, None] if "down_bias" in experts else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def blocks(
  experts: dict[str, Any],
  x: jax.Array,
  weight: jax.Array,
  choice: jax.Array,
  clamp: Clamp | None = None,
) -> jax.Array:
  """Tokens sorted by expert, each expert's padded to whole blocks; one product a block.

  Only the blocks in use are computed: their number depends on the routing, the shapes do not. The
  backward pass adds each block's weight gradient in place. Arguments and result as `dense`.
  """
  return _forward(experts, x, weight, choice, clamp)[0]


class _Plan(NamedTuple):
  """Where (token, choice) pairs stand: slot_of [N * K], token_of [S + 1], expert_of [S / block].

  Slot S is a row of zeros, for pairs without an expert; `used` counts the blocks that hold tokens.
  """

  slot_of: jax.Array
  token_of: jax.Array
  expert_of: jax.Array
  used: jax.Array


def _plan(choice: jax.Array, num_experts: int) -> tuple[_Plan, int]:
  """The plan of int32 [N, K] choices, and the tokens of a block."""
  num_pairs, choices = choice.size, choice.shape[1]
  mean = max(1, num_pairs // num_experts)
  block = min(MAX_BLOCK_TOKENS, max(MIN_BLOCK_TOKENS, 1 << (mean - 1).bit_length()))
  num_blocks = -(-num_pairs // block) + num_experts - 1
  flat = choice.reshape(-1)
  order = jnp.argsort(flat)
  expert = flat[order]
  sizes = jnp.bincount(flat, length=num_experts + 1)[:num_experts]
  ends = jnp.cumsum(-(-sizes // block))
  first_slot = (ends - -(-sizes // block)) * block
  first_pair = jnp.cumsum(sizes) - sizes
  inside = jnp.minimum(expert, num_experts - 1)
  slot = first_slot[inside] + jnp.arange(num_pairs) - first_pair[inside]
  slot = jnp.where(expert < num_experts, slot, num_blocks * block)
  token_of = jnp.zeros((num_blocks * block + 1,), jnp.int32).at[slot].set(order // choices)
  expert_of = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")
  return _Plan(
    slot_of=jnp.zeros_like(flat).at[order].set(slot),
    token_of=token_of,
    expert_of=jnp.minimum(expert_of, num_experts - 1),
    used=ends[-1],
  ), block


def _forward(experts, x, weight, choice, clamp):
  num_experts, width, embed = experts["down"].shape
  gate_up = experts["gate_up"].reshape(num_experts, embed, 2 * width)
  plan, block = _plan(choice, num_experts)
  slots = plan.token_of.shape[0]

  def body(i, carry):
    hidden, out = carry
    expert = plan.expert_of[i]
    inner = x[block_of(plan.token_of, i, block)] @ gate_up[expert]
    if "gate_up_bias" in experts:
      inner = inner + experts["gate_up_bias"][expert].reshape(-1)
    y = gate(inner, clamp) @ experts["down"][expert]
    if "down_bias" in experts:
      y = y + experts["down_bias"][expert]
    return put_block(hidden, inner, i), put_block(out, y, i)

  empty = jnp.zeros((slots, 2 * width), x.dtype), jnp.zeros((slots, embed), x.dtype)
  hidden, out = jax.lax.fori_loop(0, plan.used, body, empty)
  picked = out[plan.slot_of].reshape(*choice.shape, embed)
  y = (picked * weight[..., None]).sum(axis=1)
  return y, (experts, x, weight, choice, plan, hidden)


def _backward(clamp, saved, d_y):
  experts, x, weight, choice, plan, hidden = saved
  num_experts, width, embed = experts["down"].shape
  gate_up = experts["gate_up"].reshape(num_experts, embed, 2 * width)
  down = experts["down"]
  block = (plan.token_of.shape[0] - 1) // plan.expert_of.shape[0]
  slot_weight = jnp.zeros(plan.token_of.shape, x.dtype).at[plan.slot_of].set(weight.reshape(-1))

  def body(i, carry):
    d_gate_up, d_down, d_x, d_weight, d_biases = carry
    expert, tokens = plan.expert_of[i], block_of(plan.token_of, i, block)
    scale = block_of(slot_weight, i, block)[:, None]
    inner, d_out = block_of(hidden, i, block), d_y[tokens]
    mixed, gate_vjp = jax.vjp(functools.partial(gate, clamp=clamp), inner)
    d_mixed = d_out @ down[expert].T
    d_scale = jnp.sum(d_mixed * mixed, axis=-1)
    if "down_bias" in experts:
      d_scale = d_scale + d_out @ experts["down_bias"][expert]
    d_weight = put_block(d_weight, d_scale, i)
    (d_inner,) = gate_vjp(d_mixed * scale)
    d_down = d_down.at[expert].add(_product((mixed * scale).T, d_out))
    d_gate_up = d_gate_up.at[expert].add(_product(x[tokens].T, d_inner))
    d_biases = _with_biases(d_biases, expert, d_inner, d_out * scale)
    return d_gate_up, d_down, put_block(d_x, d_inner @ gate_up[expert].T, i), d_weight, d_biases

  slots = plan.token_of.shape[0]
  # Blocks of an expert are summed in float32, whatever the dtype of the parameters.
  zeros = functools.partial(jnp.zeros_like, dtype=jnp.float32)
  empty = (
    zeros(gate_up),
    zeros(down),
    jnp.zeros((slots, embed), x.dtype),
    jnp.zeros((slots,), x.dtype),
    {name: zeros(array) for name, array in experts.items() if name.endswith("_bias")},
  )
  d_gate_up, d_down, d_x, d_weight, d_biases = jax.lax.fori_loop(0, plan.used, body, empty)
  d_x = d_x[plan.slot_of].reshape(*choice.shape, embed).sum(axis=1)
  d_gate_up = d_gate_up.reshape(experts["gate_up"].shape)
  d_experts = {"gate_up": d_gate_up, "down": d_down, **d_biases}
  d_experts = {name: found.astype(experts[name].dtype) for name, found in d_experts.items()}
  return d_experts, d_x, d_weight[plan.slot_of].reshape(choice.shape), None


blocks.defvjp(_forward, _backward)


def _product(a, b):
  return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _with_biases(d_biases, expert, d_inner, d_out):
  """Gradients of biases, where there are any, with those of a block of `expert` added."""
  if not d_biases:
    return d_biases
  shape = d_biases["gate_up_bias"].shape[1:]
  total = functools.partial(jnp.sum, axis=0, dtype=jnp.float32)
  return {
    "gate_up_bias": d_biases["gate_up_bias"].at[expert].add(total(d_inner).reshape(shape)),
    "down_bias": d_biases["down_bias"].at[expert].add(total(d_out)),
  }


def gate(hidden: jax.Array, clamp: Clamp | None) -> jax.Array:
  """silu(first half) * second half of the last axis.

  Clamped: gate * sigmoid(alpha * gate) * (up + 1) with gate <= limit and |up| <= limit (gpt-oss,
  https://arxiv.org/abs/2508.10925, section 2.2).
  """
  gate, up = jnp.split(hidden, 2, axis=-1)
  if clamp is None:
    return jax.nn.silu(gate) * up
  gate, up = jnp.minimum(gate, clamp.limit), jnp.clip(up, -clamp.limit, clamp.limit)
  return gate * jax.nn.sigmoid(clamp.alpha * gate) * (up + 1)
