"""Attention to slots against attention to pages."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import sharding, transformer
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention import slot_cache
from tests.policy import tiny

PAGE_TOKENS = 4
TABLE = jnp.asarray(
  [[3, 1, 5, 7, 2, 9], [4, 6, 8, 10, 11, 12], [13, 14, 15, 16, 17, 18]], jnp.int32
)
FAMILIES = {
  "gqa": tiny.GQA,
  "mla": tiny.MLA,
  "sinks, windows, biases": tiny.BIASED,
  "modules": dataclasses.replace(tiny.GQA, mtp_depth=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("by_row", [True, False], ids=["row by row", "at once"])
@pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES)
def test_programs_over_slots_equal_steps_over_the_pages(cfg, by_row, monkeypatch):
  monkeypatch.setattr(cache_lib, "MOST_ROWS", 0)
  monkeypatch.setattr(cache_lib, "read_by_row", lambda few, of, _: by_row & (few < of))
  monkeypatch.setattr(slot_cache, "KEYS", 2 * PAGE_TOKENS)  # three chunks
  rng = np.random.default_rng(0)
  params = sharding.served(tiny.init(cfg))
  pages = cache_lib.init(cfg, 19, PAGE_TOKENS)
  pages = held_pages = cache_lib.PagedCache(
    jnp.asarray(rng.normal(size=pages.pages.shape), jnp.float32)
  )
  lengths = jnp.asarray([9, 0, 13], jnp.int32)
  places = jnp.asarray([2, 0, 1])
  slots = slot_cache.empty_slots(pages, TABLE.shape[1], (2, 1), cfg)
  slots = jax.jit(slot_cache.filled, static_argnums=4)(slots, pages, TABLE, places, cfg)
  row_of = jnp.argsort(places)
  table, lengths = TABLE[row_of], lengths[row_of]
  decode = jax.jit(lambda *args, **rows: transformer.decode(*args, **rows), static_argnums=2)
  for _ in range(2):
    held = slot_cache.of_slots(slots, pages, lengths, 5, cfg)
    for _ in range(2):
      num_new = jnp.asarray(rng.integers(0, 3, 3), jnp.int32)
      new = jnp.asarray(rng.integers(0, cfg.vocab_size, (3, 2)), jnp.int32)
      rows = {"page_table": table, "lengths": lengths, "num_new": num_new}
      expected, pages = decode(params, new, cfg, pages, **rows)
      found, held = decode(params, new, cfg, held, **rows)
      real = np.arange(2) < np.asarray(num_new)[:, None]
      np.testing.assert_allclose(found.hidden[real], expected.hidden[real], atol=1e-5)
      lengths = lengths + num_new
    slots = slot_cache.advanced(slots, held, lengths, cfg)
    held_pages = slot_cache.written_back(held, held_pages, table, lengths)
  trunk = slice(cfg.num_layers)  # nobody computed what the modules hold of new positions
  np.testing.assert_allclose(held_pages.pages[trunk, 1:], pages.pages[trunk, 1:], atol=1e-5)
