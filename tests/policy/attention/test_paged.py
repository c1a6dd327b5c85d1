"""Attention to pages, by each way in which a CPU reads them, against plain attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention import paged

PAGE_TOKENS, GROUPS, REPEATS, WIDTH, QUERIES = 4, 2, 3, 8, 5
LENGTHS, NEW = [21, 0, 2, 38, 9], [5, 3, 0, 1, 4]
TABLE = 1 + np.arange(50, dtype=np.int32).reshape(5, 10)


def split(entries):
  heads = entries.reshape(*entries.shape[:2], GROUPS, 2, WIDTH)
  return heads[:, :, :, 0], heads[:, :, :, 1]


def plain(q, pages, scale, sinks, window):
  """One query at a time."""
  found = np.zeros((*q.shape[:-1], WIDTH))
  for row, (length, new) in enumerate(zip(LENGTHS, NEW, strict=True)):
    entries = pages[1, TABLE[row]].reshape(-1, GROUPS, 2, WIDTH)
    for i in range(new):
      end = length + i + 1
      seen = entries[max(end - window, 0) if window else 0 : end]
      for g in range(GROUPS):
        scores = scale * q[row, i, g] @ seen[:, g, 0].T
        if sinks is not None:
          scores = np.concatenate([scores, sinks[g][:, None]], axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        found[row, i, g] = weights[:, : len(seen)] @ seen[:, g, 1]
  return found


@pytest.mark.parametrize("by_row", [True, False], ids=["row by row", "at once"])
@pytest.mark.parametrize("with_more", [False, True], ids=["plain", "sinks and a window"])
def test_each_way_of_reading_pages_is_plain_attention(with_more, by_row, monkeypatch):
  monkeypatch.setattr(cache_lib, "MOST_ROWS", 0)
  monkeypatch.setattr(cache_lib, "read_by_row", lambda *_: jnp.asarray(by_row))
  monkeypatch.setattr(paged, "CPU_KEYS", 2 * PAGE_TOKENS)
  monkeypatch.setattr(paged, "ROW_KEYS", 3 * PAGE_TOKENS)
  rng = np.random.default_rng(0)
  make = lambda *shape: rng.normal(size=shape).astype(np.float32)
  pages, q = make(2, 51, PAGE_TOKENS, 2 * GROUPS * WIDTH), make(5, QUERIES, GROUPS, REPEATS, WIDTH)
  sinks, window = (make(GROUPS, REPEATS), 7) if with_more else (None, None)
  lengths, new = jnp.asarray(LENGTHS), jnp.asarray(NEW)
  step = cache_lib.plan_step(cache_lib.PagedCache(pages), jnp.asarray(TABLE), lengths, new, QUERIES)
  attend = jax.jit(lambda q, pages: paged.attend(q, pages, 1, step, split, 0.3, sinks, window))
  real = np.arange(QUERIES) < np.asarray(NEW)[:, None]
  found = np.asarray(attend(q, pages))
  np.testing.assert_allclose(found[real], plain(q, pages, 0.3, sinks, window)[real], atol=1e-5)


def test_rows_are_read_by_themselves_where_that_is_less_to_read():
  small, large = 1_000, 100_000_000
  assert bool(cache_lib.read_by_row(jnp.int32(31), 32, large))
  assert not bool(cache_lib.read_by_row(jnp.int32(32), 32, large))
  assert not bool(cache_lib.read_by_row(jnp.int32(8), 32, small))
  assert bool(cache_lib.read_by_row(jnp.int32(0), 32, small))
