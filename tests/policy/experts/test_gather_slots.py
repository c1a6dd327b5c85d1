"""Items go to slots and back, and no slot without an item is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.experts.gather_slots import Slots, collect, spread

ITEMS, CHOICES, SLOTS, WIDTH = 7, 3, 30, 5


def drawn(seed):
  """Slots in which each item has up to CHOICES places, others none."""
  rng = np.random.default_rng(seed)
  free = rng.permutation(SLOTS)[: ITEMS * CHOICES].reshape(ITEMS, CHOICES)
  slot = np.where(rng.random(free.shape) < 0.7, free, SLOTS)
  item = np.full(SLOTS, ITEMS)
  for i, j in zip(*np.nonzero(slot < SLOTS), strict=True):
    item[slot[i, j]] = i
  return Slots(jnp.asarray(item), jnp.asarray(slot))


@pytest.mark.parametrize("seed", range(5))
def test_spread_and_collect_are_loops_over_items_and_each_others_transpose(seed):
  slots, rng = drawn(seed), np.random.default_rng(seed)
  x = jnp.asarray(rng.normal(size=(ITEMS, WIDTH)), jnp.float32)
  rows = np.array(rng.normal(size=(SLOTS, WIDTH)), np.float32)
  held = np.asarray(slots.item) < ITEMS
  rows[~held] = np.nan
  expected = np.zeros((ITEMS, WIDTH), np.float32)
  for slot, item in enumerate(np.asarray(slots.item)):
    if item < ITEMS:
      expected[item] += rows[slot]
  spread_x, back = jax.vjp(lambda x: spread(x, slots), x)
  np.testing.assert_array_equal(spread_x[held], x[np.asarray(slots.item)[held]])
  assert np.isfinite(spread_x).all()
  np.testing.assert_allclose(collect(jnp.asarray(rows), slots), expected, rtol=1e-6)
  np.testing.assert_allclose(back(jnp.asarray(rows))[0], expected, rtol=1e-6)
  _, back = jax.vjp(lambda rows: collect(rows, slots), jnp.asarray(rows))
  np.testing.assert_array_equal(back(x)[0], spread_x)
