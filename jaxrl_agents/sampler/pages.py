"""Pages of the key-value cache: who holds each, and which hold a prefix that a new prompt can
reuse.

A page holds `page_tokens` positions of every layer. A full page whose whole prefix was computed
under the current weight version is *shared*: it can be found by (page before it, its token ids), so
that the chain from the first page identifies the whole prefix exactly. Nothing is hashed down, so a
wrong prefix cannot match. Sharing copies nothing: a match takes one more reference. Entries of
prediction modules depend on the next ids too, which a page shared with another continuation need
not have: that weakens a draft, and changes no token.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence as Seq

import numpy as np

from jaxrl_agents.types import NOT_ROUTED

SCRATCH_PAGE = 0
"""Padding rows write here and nobody reads it; it also stands for "no page before" in a chain."""


def of_each_part(
  *, slots: int, num_pages: int, parts: int, page_tokens: int, max_tokens: int
) -> tuple[int, int]:
  """(slots, pages) of each part of a cache (policy.attention.cache); slots are rounded up, pages
  down.

  Args:
    slots: sequences that decode at once.
    num_pages: pages of all parts.
    parts: how many there are.
    page_tokens: positions of a page.
    max_tokens: positions of the longest sequence.

  Raises:
    ValueError: a part cannot hold the longest sequence.
  """
  max_pages = -(-max_tokens // page_tokens)
  if num_pages // parts <= max_pages:
    where = f" in each of the {parts} parts that rows are split into" if parts > 1 else ""
    raise ValueError(
      f"num_pages={num_pages} cannot hold one sequence of {max_tokens} tokens ({max_pages} pages "
      f"of {page_tokens}) and the scratch page{where}; raise num_pages to "
      f"{(max_pages + 1) * parts} or more, or let contexts be shorter"
    )
  return -(-slots // parts), num_pages // parts


class PagePool:
  """Free, held and cached pages of one part of the cache.

  Invariant: every page but the scratch page is in exactly one of three states: free; held
    (reference count >= 1, shared or not); cached (shared, reference count 0), in the order of
    eviction. A holder of a shared page holds all pages before it in the chain, and releases the
    last first, so a cached page is evicted only after everything that extends it.

  Attributes:
    page_tokens: positions per page.
    version: weight version of the shared pages.
    routing: uint16 [num_pages, page_tokens, L, K], experts of what each page holds, beside the
      cache.
  """

  def __init__(
    self,
    num_pages: int,
    page_tokens: int,
    *,
    version: int = 0,
    routing_shape: tuple[int, int] = (0, 0),
  ):
    if num_pages < 2 or page_tokens < 1:
      raise ValueError(
        f"num_pages={num_pages}, page_tokens={page_tokens}: give at least 2 pages (page 0 is "
        "scratch) of at least 1 token"
      )
    self.num_pages = num_pages
    self.page_tokens = page_tokens
    self.version = version
    self.routing = np.full((num_pages, page_tokens, *routing_shape), NOT_ROUTED, np.uint16)
    self._free = list(range(num_pages - 1, 0, -1))
    self._references = [0] * num_pages
    self._cached: collections.OrderedDict[int, None] = collections.OrderedDict()
    self._page_of: dict[tuple[int, bytes], int] = {}
    self._key_of: dict[int, tuple[int, bytes]] = {}

  @property
  def num_available(self) -> int:
    """Pages that `allocate` could hand out now: free ones, and cached ones by eviction."""
    return len(self._free) + len(self._cached)

  def references(self, page: int) -> int:
    """How many holders `page` has."""
    return self._references[page]

  def match(self, tokens: np.ndarray) -> list[int]:
    """Takes a reference on each page of `prefix`, and returns them."""
    pages = self.prefix(tokens)
    for page in pages:
      self._hold(page)
    return pages

  def prefix(self, tokens: np.ndarray) -> list[int]:
    """The longest chain of shared pages that `tokens` (int32 [T]) begins with.

    At least one token is left over, because the last position must be computed to sample after it.
    """
    pages: list[int] = []
    before = SCRATCH_PAGE
    last_start = len(tokens) - self.page_tokens - 1
    for start in range(0, last_start + 1, self.page_tokens):
      page = self._page_of.get((before, tokens[start : start + self.page_tokens].tobytes()))
      if page is None:
        break
      pages.append(page)
      before = page
    return pages

  def allocate(self, count: int) -> list[int] | None:
    """Hands out `count` unshared pages with one reference each, or None (and nothing) if too
    few."""
    if count > self.num_available:
      return None
    pages = []
    for _ in range(count):
      if not self._free:
        evicted, _ = self._cached.popitem(last=False)
        del self._page_of[self._key_of.pop(evicted)]
        self._free.append(evicted)
      page = self._free.pop()
      self._references[page] = 1
      pages.append(page)
    return pages

  def release(self, pages: Seq[int]) -> None:
    """Gives back one reference on each page of a chain (first page first in `pages`)."""
    for page in reversed(pages):
      assert self._references[page] > 0, f"page {page} released more often than held"
      self._references[page] -= 1
      if self._references[page] == 0:
        if page in self._key_of:
          self._cached[page] = None
        else:
          self._free.append(page)

  def share(self, before: int, tokens: np.ndarray, start: int, page: int) -> int:
    """Makes a held page findable; returns the page that the holder must use from now on.

    Args:
      before: the page before it in the chain, itself shared; SCRATCH_PAGE for the first.
      tokens: the sequence, int32 [T]; the page holds `tokens[start : start + page_tokens]`.
      start: first position of the page.
      page: the holder's page.

    Returns:
      `page`; or, if the same prefix is shared already, that page, and the holder's reference has
      moved to it.
    """
    assert before == SCRATCH_PAGE or before in self._key_of, f"page {before} is not shared"
    key = (before, tokens[start : start + self.page_tokens].tobytes())
    known = self._page_of.get(key)
    if known is None:
      self._page_of[key] = page
      self._key_of[page] = key
      return page
    if known != page:
      self._hold(known)
      self.release([page])
    return known

  def set_version(self, version: int) -> None:
    """Forgets every prefix: pages written by older weights are kept by their holders only."""
    self.version = version
    self._page_of.clear()
    self._key_of.clear()
    self._free.extend(self._cached)
    self._cached.clear()

  def _hold(self, page: int) -> None:
    self._cached.pop(page, None)
    self._references[page] += 1
