"""Which sequences the next step of the engine works on, and where their cache lives. No jax.

A request waits, is prefilled in chunks, decodes, and finishes or fails. When pages run out the
youngest running sequence goes back to waiting and is computed again later. In the manner of
nano-vllm (https://github.com/GeeeekExplorer/nano-vllm): all bookkeeping is on the host.
"""

from __future__ import annotations

import bisect

import numpy as np

from jaxrl_agents.sampler.pages import SCRATCH_PAGE, PagePool
from jaxrl_agents.sampler.sequence import Chunk, Sequence


class Scheduler:
  """Waiting and running sequences over one PagePool.

  Invariant: a sequence is in exactly one of `waiting` (in order of id, holds no page) and `running`
  (keyed by slot, holds pages for every cached position).

  Args:
    pool: the pages.
    slots: most sequences that run at once.
    max_pages: most pages of a sequence.
    chunk_tokens: most positions of a sequence in one prefill step.
    prefill_rows: most sequences in one prefill step.
    draft_tokens: positions beyond the newest id that a decode step also writes.

  Attributes:
    page_table: int32 [slots, max_pages], the pages of each running sequence; 0 beyond them.
    num_preempted: sequences that went back to waiting.
    prefix_hit_tokens: positions that were found in shared pages when a sequence was admitted.
  """

  def __init__(
    self,
    pool: PagePool,
    *,
    slots: int,
    max_pages: int,
    chunk_tokens: int,
    prefill_rows: int,
    draft_tokens: int,
  ):
    self.pool = pool
    self.waiting: list[Sequence] = []
    self.running: dict[int, Sequence] = {}
    self.page_table = np.zeros((slots, max_pages), np.int32)
    self.num_preempted = 0
    self.prefix_hit_tokens = 0
    self._free_slots = list(range(slots - 1, -1, -1))
    self._chunk_tokens = chunk_tokens
    self._prefill_rows = prefill_rows
    self._draft_tokens = draft_tokens

  def add(self, sequence: Sequence) -> None:
    """Puts a sequence among the waiting, in order of id."""
    bisect.insort(self.waiting, sequence, key=lambda waiting: waiting.id)

  def plan(self) -> list[Chunk] | list[Sequence]:
    """The next step's work: chunks to prefill if any, else the sequences to decode (maybe none)."""
    self._admit()
    prefilling = [s for s in self._oldest_first() if not s.decoding]
    if prefilling:
      return [self._next_chunk(s) for s in prefilling[: self._prefill_rows]]
    return self._with_room_to_decode()

  def advance(self, sequence: Sequence, num_cached: int, num_final: int) -> None:
    """Records progress, and shares the pages that are now final.

    Args:
      sequence: a running sequence.
      num_cached: positions now written.
      num_final: positions whose entries no later step will change.
    """
    sequence.num_cached = num_cached
    sequence.decoding = sequence.decoding or num_cached >= sequence.prefill_end
    if sequence.cache_version != self.pool.version:
      return
    page_tokens = self.pool.page_tokens
    known = sequence.num_tokens - self.pool.lookahead_tokens
    for place in range(sequence.num_shared, min(num_final, known) // page_tokens):
      before = sequence.pages[place - 1] if place else SCRATCH_PAGE
      start = place * page_tokens
      page = self.pool.share(before, sequence.tokens, start, sequence.pages[place])
      sequence.pages[place] = self.page_table[sequence.slot, place] = page
      sequence.num_shared = place + 1

  def remove(self, sequence: Sequence) -> None:
    """Forgets a finished or failed sequence and gives back what it holds."""
    if sequence.slot < 0:
      self.waiting.remove(sequence)
    else:
      self._vacate(sequence)

  def set_version(self, version: int) -> None:
    """New weights: running sequences keep their pages, which nobody else may use from now on."""
    self.pool.set_version(version)
    for sequence in self.running.values():
      sequence.cache_version = -1

  def expired(self, now: float) -> list[Sequence]:
    """Sequences whose deadline has passed at `now` (time.monotonic, seconds)."""
    return [s for s in (*self.waiting, *self.running.values()) if s.deadline < now]

  def routing_of(self, sequence: Sequence) -> np.ndarray:
    """Experts of a running sequence's cached positions, uint16 [num_cached, L, K].

    Positions that were computed again after a preemption keep the experts of the first time: later
    ids were sampled under those.
    """
    pages = self.pool.routing[sequence.pages]
    routing = pages.reshape(-1, *pages.shape[2:])[: sequence.num_cached]
    if sequence.routing is not None:
      kept = min(len(sequence.routing), len(routing))
      routing[:kept] = sequence.routing[:kept]
    return routing

  def _oldest_first(self) -> list[Sequence]:
    return sorted(self.running.values(), key=lambda sequence: sequence.id)

  def _next_chunk(self, sequence: Sequence) -> Chunk:
    left = sequence.prefill_end - sequence.num_cached
    return Chunk(sequence, sequence.num_cached, min(left, self._chunk_tokens))

  def _admit(self) -> None:
    """Starts waiting sequences in order while slots and pages last.

    One page for each running sequence is left over, so that what is admitted is not at once
    preempted.
    """
    for sequence in list(self.waiting):
      if not self._free_slots:
        return
      tokens = sequence.known_tokens
      pages = self.pool.match(tokens)
      found = len(pages) * self.pool.page_tokens
      if self._will_be_shared(tokens, found):
        self.pool.release(pages)
        continue
      new_pages = None
      needed = self._pages_for(len(tokens)) - len(pages)
      if needed + len(self.running) <= self.pool.num_available:
        new_pages = self.pool.allocate(needed)
      if new_pages is None:
        self.pool.release(pages)
        return
      self.waiting.remove(sequence)
      sequence.pages = pages + new_pages
      sequence.num_cached = found
      sequence.num_shared = len(pages)
      sequence.cache_version = self.pool.version
      sequence.slot = self._free_slots.pop()
      self.running[sequence.slot] = sequence
      self.page_table[sequence.slot, : len(sequence.pages)] = sequence.pages
      self.prefix_hit_tokens += found

  def _will_be_shared(self, tokens: np.ndarray, found: int) -> bool:
    """Whether a running prefill is computing more of this prefix than the `found` positions."""
    for other in self.running.values():
      if other.decoding or other.cache_version != self.pool.version:
        continue
      common = min(len(tokens) - 1, other.prefill_end)
      differ = np.nonzero(tokens[:common] != other.tokens[:common])[0]
      common = int(differ[0]) if len(differ) else common
      shareable = (common - self.pool.lookahead_tokens) // self.pool.page_tokens
      if shareable * self.pool.page_tokens > found:
        return True
    return False

  def _with_room_to_decode(self) -> list[Sequence]:
    """Gives every running sequence the pages of its next step, preempting the youngest if need
    be."""
    ready = []
    for sequence in self._oldest_first():
      if sequence.slot < 0:
        continue
      needed = self._pages_for(sequence.num_tokens + self._draft_tokens) - len(sequence.pages)
      pages = self.pool.allocate(needed)
      while pages is None and sequence.slot >= 0:
        self._preempt(self._oldest_first()[-1])
        pages = self.pool.allocate(needed) if sequence.slot >= 0 else None
      if pages is not None:
        self._extend(sequence, pages)
        ready.append(sequence)
    return ready

  def _extend(self, sequence: Sequence, pages: list[int]) -> None:
    held = len(sequence.pages)
    sequence.pages += pages
    self.page_table[sequence.slot, held : held + len(pages)] = pages

  def _preempt(self, sequence: Sequence) -> None:
    routing = self.routing_of(sequence)
    if sequence.routing is None or len(routing) > len(sequence.routing):
      sequence.routing = routing
    self._vacate(sequence)
    self.num_preempted += 1
    self.add(sequence)

  def _vacate(self, sequence: Sequence) -> None:
    self.pool.release(sequence.pages)
    self.page_table[sequence.slot] = SCRATCH_PAGE
    del self.running[sequence.slot]
    self._free_slots.append(sequence.slot)
    sequence.pages = []
    sequence.num_cached = sequence.num_shared = 0
    sequence.slot = -1
    sequence.decoding = False

  def _pages_for(self, num_positions: int) -> int:
    return -(-num_positions // self.pool.page_tokens)
