"""Moves items to slots and back, with gathers both ways: scatters are slow on every device.

And blocks of slots, one after another.

Alphabet: M items, k slots of an item, S slots, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Slots(NamedTuple):
  """Which item stands in each slot, and where each item's slots are.

  item: int32 [S], M for none. slot: int32 [M, k], S for none.
  """

  item: jax.Array
  slot: jax.Array


@jax.custom_vjp
def spread(x: jax.Array, slots: Slots) -> jax.Array:
  """Items x [M, D] in their slots, [S, D]; slots of no item hold anything that is finite.

  Transposed it is `collect`.
  """
  # Zeros there would be a second pass over the result.
  return x.at[slots.item].get(mode="clip")


@jax.custom_vjp
def collect(rows: jax.Array, slots: Slots) -> jax.Array:
  """The sum of each item's slots of rows [S, D], in float32: [M, D]. Transposed it is `spread`.

  Slots of no item are not read: they may hold anything.
  """
  # One by one: a sum along an axis of its own takes a TPU seven times as long.
  of_item = (rows.at[slot].get(mode="fill", fill_value=0) for slot in slots.slot.T)
  zero = jnp.zeros((), jnp.float32)
  return sum((row.astype(jnp.float32) for row in of_item), start=zero).astype(rows.dtype)


spread.defvjp(
  lambda x, slots: (spread(x, slots), slots), lambda slots, d: (collect(d, slots), None)
)
collect.defvjp(
  lambda x, slots: (collect(x, slots), slots), lambda slots, d: (spread(d, slots), None)
)


def block_of(x: jax.Array, i: jax.Array, size: int) -> jax.Array:
  """Slots i * size and on of x [S, ...], [size, ...]."""
  return jax.lax.dynamic_slice_in_dim(x, i * size, size)


def put_block(x: jax.Array, block: jax.Array, i: jax.Array) -> jax.Array:
  """x [S, ...] with its i-th block replaced."""
  return jax.lax.dynamic_update_slice_in_dim(x, block, i * block.shape[0], axis=0)
