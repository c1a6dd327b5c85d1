"""The page pool against a slow model that keeps whole prefixes."""

import random

import numpy as np
import pytest

from jaxrl_agents.sampler.pages import SCRATCH_PAGE, PagePool


def ids(*values):
  return np.array(values, np.int32)


def share_all(pool, tokens, pages, shared=0):
  """Shares every full page of a held sequence; returns its pages."""
  for place in range(shared, len(tokens) // pool.page_tokens):
    before = pages[place - 1] if place else SCRATCH_PAGE
    pages[place] = pool.share(before, tokens, place * pool.page_tokens, pages[place])
  return pages


def test_a_prompt_reuses_full_pages_of_its_prefix_and_leaves_one_token():
  pool = PagePool(8, 2)
  pages = share_all(pool, ids(1, 2, 3, 4, 5), pool.allocate(3))
  assert pool.match(ids(1, 2, 3, 4, 5)) == pages[:2]
  assert pool.match(ids(1, 2, 3, 4)) == pages[:1]  # the last token must be computed
  assert pool.match(ids(1, 2, 9, 4, 5)) == pages[:1]
  assert pool.match(ids(2, 1, 3, 4, 5)) == []
  assert [pool.references(p) for p in pages] == [4, 2, 1]


def test_equal_pages_after_different_prefixes_are_not_confused():
  pool = PagePool(8, 2)
  one = share_all(pool, ids(1, 1, 7, 7, 0), pool.allocate(3))
  two = share_all(pool, ids(2, 2, 7, 7, 0), pool.allocate(3))
  assert pool.match(ids(2, 2, 7, 7, 5)) == two[:2]
  assert pool.match(ids(1, 1, 7, 7, 5)) == one[:2]


def test_the_second_holder_of_a_prefix_moves_to_the_first_one_s_page():
  pool = PagePool(6, 2)
  first = share_all(pool, ids(1, 2, 3), pool.allocate(2))
  second = pool.allocate(2)
  mine = second[0]
  share_all(pool, ids(1, 2, 3), second)
  assert second[0] == first[0] and pool.references(first[0]) == 2 and pool.references(mine) == 0
  assert pool.num_available == 2


def test_the_longest_unused_prefix_is_evicted_first_and_its_end_before_its_start():
  pool = PagePool(5, 1)  # four pages
  old = share_all(pool, ids(1, 2), pool.allocate(2))
  pool.release(old)
  new = share_all(pool, ids(3, 4), pool.allocate(2))
  pool.release(new)
  assert pool.allocate(1) == [old[1]]
  assert pool.match(ids(1, 2, 3)) == [old[0]]
  pool.release([old[0]])
  assert pool.allocate(1) == [new[1]]
  assert pool.match(ids(1, 0)) == [old[0]]


def test_new_weights_find_no_page_of_older_ones_and_none_leaks():
  pool = PagePool(6, 2)
  held = share_all(pool, ids(1, 2, 3), pool.allocate(2))
  pool.release(share_all(pool, ids(5, 6, 7), pool.allocate(2)))
  pool.set_version(1)
  assert pool.match(ids(1, 2, 3)) == [] and pool.match(ids(5, 6, 7)) == []
  assert pool.num_available == 3
  pool.release(held)
  assert pool.num_available == 5 and len(pool.allocate(5)) == 5


def test_too_few_pages_hands_out_none():
  pool = PagePool(4, 2)
  pool.allocate(2)
  assert pool.allocate(2) is None and pool.num_available == 1


def test_a_pool_without_pages_is_refused_with_the_remedy():
  with pytest.raises(ValueError, match="at least 2 pages"):
    PagePool(1, 4)


class Model:
  """What must hold: who holds each page, and which whole prefix each page was filled with."""

  def __init__(self, pool):
    self.pool = pool
    self.held = {}  # sequence -> (tokens, pages)
    self.content = {}  # page -> (version, tokens up to the end of the page)

  def check(self):
    pool = self.pool
    counts = [0] * pool.num_pages
    for _, pages in self.held.values():
      for page in pages:
        counts[page] += 1
    assert counts == pool._references and counts[SCRATCH_PAGE] == 0
    free, cached = set(pool._free), set(pool._cached)
    held = {page for page, count in enumerate(counts) if count}
    assert len(free) == len(pool._free), "a page is twice free"
    assert not (free & held or free & cached or held & cached)
    assert free | held | cached | {SCRATCH_PAGE} == set(range(pool.num_pages)), "a page leaked"


def test_random_use_never_confuses_leaks_or_miscounts_pages():
  rng = random.Random(0)
  pool = PagePool(24, 3)
  model = Model(pool)
  hits = refusals = 0
  for step in range(6_000):
    action = rng.random()
    if action < 0.5:
      tokens = np.array([rng.randrange(2) for _ in range(rng.randrange(1, 20))], np.int32)
      found = pool.match(tokens)
      hits += len(found)
      assert len(found) * 3 < len(tokens)
      for place, page in enumerate(found):
        assert model.content[page] == (pool.version, tokens[: (place + 1) * 3].tobytes())
      fresh = pool.allocate(-(-len(tokens) // 3) - len(found))
      if fresh is None:
        refusals += 1
        pool.release(found)
        model.check()
        continue
      pages = found + fresh
      for place in range(len(found), len(tokens) // 3):
        before = pages[place - 1] if place else SCRATCH_PAGE
        page = pool.share(before, tokens, place * 3, pages[place])
        prefix = (pool.version, tokens[: (place + 1) * 3].tobytes())
        if page == pages[place]:
          model.content[page] = prefix
        assert model.content[page] == prefix
        pages[place] = page
      model.held[step] = (tokens, pages)
    elif action < 0.995 and model.held:
      _, pages = model.held.pop(rng.choice(list(model.held)))
      pool.release(pages)
    elif action >= 0.995:
      pool.set_version(pool.version + 1)
    model.check()
  assert hits > 500 and refusals > 50  # the test reached what it is about
  for _, pages in model.held.values():
    pool.release(pages)
  assert pool.num_available == 23
