"""The experts of one device on an accelerator: pairs sorted by expert, one grouped product for all.

The kernels are those of `jax.experimental.pallas.ops.tpu.megablox` (MegaBlocks,
https://arxiv.org/abs/2211.15841) on TPU, and our own on GPU (`grouped_gpu`), where XLA multiplies
ragged products slowly. Pairs without an expert come last and are not computed.

Alphabet: N tokens, D width, E experts, K experts per token, F ffw, S pairs (rounded up).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_agents.policy.experts import gather_slots as slots_lib
from jaxrl_agents.policy.experts import grouped_gpu
from jaxrl_agents.policy.experts import local as plain
from jaxrl_agents.policy.kernel_choice import Kind, whole_lanes

TILE_ROWS = 512
TILE_SIDE = 1024
"""Rows, inputs and outputs of a tile on TPU: two of each and a sum take 14 of 16 MiB of VMEM."""


class _Plan(NamedTuple):
  """Pairs in the order of their experts.

  pairs: of tokens, where each pair stands. weights: of pairs. expert: int32 [S], E for none.
  sizes: int32 [E].
  """

  pairs: slots_lib.Slots
  weights: slots_lib.Slots
  expert: jax.Array
  sizes: jax.Array


def apply(
  experts: dict[str, Any],
  x: jax.Array,
  weight: jax.Array,
  choice: jax.Array,
  clamp: plain.Clamp | None = None,
  *,
  kernels: Kind,
  interpret: bool = False,
) -> jax.Array:
  """Computes the same as `local.dense`, whose arguments and result it shares.

  Args:
    experts, x, weight, choice, clamp: as in `local.dense`.
    kernels: the kind of accelerator whose kernels are used.
    interpret: whether the kernels run step by step, which works on any machine.
  """
  num_experts, width, embed = experts["down"].shape
  plan = _plan(choice, num_experts)
  rows = slots_lib.spread(x, plan.pairs)
  row_weight = slots_lib.spread(weight.reshape(-1, 1), plan.weights)
  gate_up = experts["gate_up"].reshape(num_experts, embed, 2 * width)
  bias = experts.get("gate_up_bias")
  bias = None if bias is None else bias.reshape(num_experts, 2 * width)
  product = functools.partial(_product, plan=plan, kernels=kernels, interpret=interpret)
  inner = product(rows, gate_up, bias)
  y = product(plain.gate(inner, clamp), experts["down"], experts.get("down_bias"))
  return slots_lib.collect(y * row_weight, plan.pairs)


def _plan(choice: jax.Array, num_experts: int) -> _Plan:
  tokens, choices = choice.shape
  pairs = tokens * choices
  tile = min(TILE_ROWS, whole_lanes(pairs))
  more = -pairs % tile
  flat = choice.reshape(-1)
  order = jnp.argsort(flat, stable=True)
  expert = jnp.pad(flat[order], (0, more), constant_values=num_experts)
  order = jnp.pad(order, (0, more))
  real = expert < num_experts
  # A sort again: the place of each pair in the order.
  place = jnp.argsort(order[:pairs])
  slot = jnp.where(flat < num_experts, place, pairs + more)
  return _Plan(
    slots_lib.Slots(jnp.where(real, order // choices, tokens), slot.reshape(tokens, choices)),
    slots_lib.Slots(jnp.where(real, order, pairs), slot[:, None]),
    expert,
    jnp.bincount(flat, length=num_experts + 1)[:num_experts].astype(jnp.int32),
  )


def _product(rows, matrices, bias, *, plan: _Plan, kernels: Kind, interpret: bool) -> jax.Array:
  """rows [S, a] times the matrix [E, a, b] of their expert, plus its bias [E, b]; 0 without one."""
  if kernels == "tpu":
    y = _megablox(rows, matrices, plan.sizes, interpret)
  else:
    y = grouped_gpu.product(rows, matrices, plan.sizes, interpret)
  real = plan.expert < matrices.shape[0]
  if bias is not None:
    y = y + jax.nn.one_hot(plan.expert, matrices.shape[0], dtype=y.dtype) @ bias
  return jnp.where(real[:, None], y, 0)  # rows that are not computed hold anything


def _megablox(rows, matrices, sizes, interpret: bool):
  # Here: the module looks for a TPU, of which other machines need know nothing.
  from jax.experimental.pallas.ops.tpu.megablox import gmm

  # The backward pass takes the same tiles for the transposed product.
  side = min(TILE_SIDE, *map(whole_lanes, matrices.shape[1:]))
  tile = min(TILE_ROWS, len(rows)), side, side
  return gmm(rows, matrices, sizes, rows.dtype, tile, interpret=interpret)
