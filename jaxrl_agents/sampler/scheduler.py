"""Which sequences the next step of the engine works on, and where their cache lives. No jax.

A request waits, is prefilled in chunks, decodes, and finishes or fails. When pages run out the
youngest running sequence goes back to waiting and is computed again later. In the manner of
nano-vllm (https://github.com/GeeeekExplorer/nano-vllm): all bookkeeping is on the host.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
from collections.abc import Sequence as Seq

import numpy as np

from jaxrl_agents.sampler.pages import SCRATCH_PAGE, PagePool
from jaxrl_agents.sampler.sequence import Chunk, Sequence

PREFILLS_IN_A_ROW, STEPS_BESIDE_PREFILL = 4, 4
"""Prefill steps that running sequences wait for at most, and their steps until the next ones."""


@dataclasses.dataclass(frozen=True)
class Decode:
  """Sequences that decode together, and for how many steps they have pages."""

  sequences: list[Sequence]
  num_steps: int


class Scheduler:
  """Waiting and running sequences over the parts of a cache, a PagePool each.

  Invariant: a sequence is in exactly one of `waiting` (in order of id, holds no page) and `running`
  (keyed by slot, holds pages of the slot's part for every cached position).

  Args:
    pools: the pages of each part.
    slots: most sequences of a part that run at once; those of a part are numbered in a row.
    max_pages: most pages of a sequence.
    chunk_tokens: most positions of a sequence in one prefill program.
    piece_tokens: positions of a row of a prefill program.
    prefill_rows: rows of a part in a prefill program.
    draft_tokens: positions beyond the newest id that a decode step also writes.
    decode_steps: most decode steps of a program, and
    decode_tokens: most tokens of a sequence in one.

  Attributes:
    page_table: int32 [slots of all parts, max_pages], the pages of each running sequence; 0 beyond
      them.
    num_preempted: sequences that went back to waiting.
    prefix_hit_tokens: positions that were found in shared pages when a sequence was admitted.
  """

  def __init__(
    self,
    pools: Seq[PagePool],
    *,
    slots: int,
    max_pages: int,
    chunk_tokens: int,
    piece_tokens: int,
    prefill_rows: int,
    draft_tokens: int,
    decode_steps: int,
    decode_tokens: int,
  ):
    self.pools = pools
    self.waiting: list[Sequence] = []
    self.running: dict[int, Sequence] = {}
    self.page_table = np.zeros((len(pools) * slots, max_pages), np.int32)
    self.num_preempted = 0
    self.prefix_hit_tokens = 0
    self._slots = slots
    self._free_slots = [list(range(part * slots, (part + 1) * slots)) for part in range(len(pools))]
    self._chunk_tokens = chunk_tokens
    self._piece_tokens = piece_tokens
    self._prefill_rows = prefill_rows
    self._draft_tokens = draft_tokens
    self._decode_steps, self._decode_tokens = decode_steps, decode_tokens
    self._prefills_in_a_row = 0

  def add(self, sequence: Sequence) -> None:
    """Puts a sequence among the waiting, in order of id."""
    bisect.insort(self.waiting, sequence, key=lambda waiting: waiting.id)

  def plan(self) -> list[Chunk] | Decode:
    """The next program's work: chunks to prefill, or sequences to decode; an empty list if neither.

    Prefills go first, so that many sequences decode together, but those that decode already wait
    for a few of them only.
    """
    self._admit()
    decoding = any(s.decoding for s in self.running.values())
    prefilling = [s for s in self._oldest_first() if not s.decoding]
    if prefilling and not (decoding and self._prefills_in_a_row >= PREFILLS_IN_A_ROW):
      self._prefills_in_a_row += 1
      return self._chunks(prefilling)
    self._prefills_in_a_row = 0
    return self._with_room_to_decode(STEPS_BESIDE_PREFILL if prefilling else self._decode_steps)

  def _chunks(self, prefilling: list[Sequence]) -> list[Chunk]:
    """What the next prefill program computes: as much of each as its rows hold."""
    free = dict.fromkeys(range(len(self.pools)), self._prefill_rows)
    chunks = []
    for sequence in prefilling:
      part = self.part_of(sequence)
      if free[part]:
        left = sequence.prefill_end - sequence.num_cached
        count = min(left, self._chunk_tokens, free[part] * self._piece_tokens)
        free[part] -= -(-count // self._piece_tokens)
        chunks.append(Chunk(sequence, sequence.num_cached, count))
    return chunks

  def part_of(self, sequence: Sequence) -> int:
    """The part of the cache that a running sequence is in."""
    return sequence.slot // self._slots

  def pool_of(self, sequence: Sequence) -> PagePool:
    """The pages of that part."""
    return self.pools[self.part_of(sequence)]

  def advance(self, sequence: Sequence, num_cached: int) -> None:
    """Records progress of a running sequence, positions now written, and shares the pages that are
    full."""
    sequence.num_cached = num_cached
    sequence.decoding = sequence.decoding or num_cached >= sequence.prefill_end
    pool = self.pool_of(sequence)
    if sequence.cache_version != pool.version:
      return
    page_tokens = pool.page_tokens
    known = min(num_cached, sequence.num_tokens)  # fewer are known than cached after a stop token
    for place in range(sequence.num_shared, known // page_tokens):
      before = sequence.pages[place - 1] if place else SCRATCH_PAGE
      start = place * page_tokens
      page = pool.share(before, sequence.tokens, start, sequence.pages[place])
      sequence.pages[place] = self.page_table[sequence.slot, place] = page
      sequence.num_shared = place + 1

  def remove(self, sequence: Sequence) -> None:
    """Forgets a finished or failed sequence and gives back what it holds."""
    if sequence.slot < 0:
      self.waiting.remove(sequence)
    else:
      self._vacate(sequence)

  def set_version(self, version: int, *, recompute: bool = False) -> None:
    """New weights: running sequences keep their pages, which nobody else may use from now on, or
    give them up and are computed again (`recompute`).
    """
    for pool in self.pools:
      pool.set_version(version)
    for sequence in self._oldest_first():
      sequence.cache_version = -1
      if not sequence.decoding and sequence.num_tokens > sequence.num_prompt:
        sequence.kept = False  # the rest of it is computed again by the new weights
      if recompute:
        self._set_back(sequence)

  def forget(self) -> None:
    """Forgets all prefixes, and whose turn it is; nothing may wait or run."""
    for pool in self.pools:
      pool.set_version(pool.version)
    self._prefills_in_a_row = 0

  def move_below(self, slot: int, sequences: Seq[Sequence]) -> list[tuple[int, int]]:
    """Moves those of `sequences` that run from `slot` on to free slots below it, while there are
    any, in a cache of one part; returns (old, new) of each."""
    (free,) = self._free_slots
    moves = []
    for sequence in sequences:
      if sequence.slot >= slot and free and free[0] < slot:
        old, new = sequence.slot, heapq.heappop(free)
        heapq.heappush(free, old)
        self.page_table[new], self.page_table[old] = self.page_table[old], SCRATCH_PAGE
        self.running[new] = self.running.pop(old)
        sequence.slot = new
        moves.append((old, new))
    return moves

  def expired(self, now: float) -> list[Sequence]:
    """Sequences whose deadline has passed at `now` (the engine's clock, seconds)."""
    return [s for s in (*self.waiting, *self.running.values()) if s.deadline < now]

  def routing_of(self, sequence: Sequence) -> np.ndarray:
    """Experts of a running sequence's cached positions, uint16 [num_cached, L, K].

    Positions that were computed again after a preemption keep the experts of the first time: later
    ids were sampled under those.
    """
    pages = self.pool_of(sequence).routing[sequence.pages]
    count, page_tokens, *experts = pages.shape
    routing = pages.reshape(count * page_tokens, *experts)[: sequence.num_cached]
    if sequence.routing is not None:
      kept = min(len(sequence.routing), len(routing))
      routing[:kept] = sequence.routing[:kept]
    return routing

  def _oldest_first(self) -> list[Sequence]:
    return sorted(self.running.values(), key=lambda sequence: sequence.id)

  def _admit(self) -> None:
    """Starts waiting sequences in order while slots and pages last.

    Each goes where most of its prefix is cached, of such parts to the one with most free slots.
    """
    for sequence in list(self.waiting):
      tokens = _matched(sequence)
      found = {
        part: len(self.pools[part].prefix(tokens))
        for part, free in enumerate(self._free_slots)
        if free
      }
      parts = sorted(found, key=lambda part: (-found[part], -len(self._free_slots[part])))
      if not parts:
        return
      if self._will_be_shared(tokens, parts[0], found[parts[0]]):
        continue
      if not any(self._admit_to(part, sequence) for part in parts):
        return

  def _admit_to(self, part: int, sequence: Sequence) -> bool:
    """Starts a sequence in a part with a free slot, if pages last.

    One page for each running sequence is left over, so that what is admitted is not at once
    preempted.
    """
    pool = self.pools[part]
    pages = pool.match(_matched(sequence))
    needed = self._pages_for(sequence.num_tokens) - len(pages)
    running = sum(self.part_of(other) == part for other in self.running.values())
    fits = needed + running <= pool.num_available
    new_pages = pool.allocate(needed) if fits else None
    if new_pages is None:
      pool.release(pages)
      return False
    self.waiting.remove(sequence)
    sequence.pages = pages + new_pages
    sequence.num_cached = len(pages) * pool.page_tokens
    sequence.num_shared = len(pages)
    sequence.cache_version = pool.version
    if sequence.num_tokens == sequence.num_prompt:
      sequence.began = pool.version
    elif sequence.began != pool.version:
      sequence.kept = False
    sequence.slot = heapq.heappop(self._free_slots[part])
    self.running[sequence.slot] = sequence
    self.page_table[sequence.slot, : len(sequence.pages)] = sequence.pages
    self.prefix_hit_tokens += sequence.num_cached
    return True

  def _will_be_shared(self, tokens: np.ndarray, part: int, found: int) -> bool:
    """Whether a running prefill of a part is computing more of this prefix than `found` pages."""
    pool = self.pools[part]
    for other in self.running.values():
      if self.part_of(other) != part or other.decoding or other.cache_version != pool.version:
        continue
      common = min(len(tokens) - 1, other.prefill_end)
      differ = np.nonzero(tokens[:common] != other.tokens[:common])[0]
      common = int(differ[0]) if len(differ) else common
      if common // pool.page_tokens > found:
        return True
    return False

  def _with_room_to_decode(self, most_steps: int) -> list[Chunk] | Decode:
    """Gives every decoding sequence the pages of the next steps.

    Where pages are few, of fewer steps; where they do not last for one, the youngest sequence of
    the part is preempted.
    """
    steps = min(most_steps, self._decode_steps)
    while steps > 1 and not self._has_room(steps):
      steps //= 2
    ready = []
    for sequence in self._oldest_first():
      if sequence.slot < 0 or not sequence.decoding:
        continue
      pool, part = self.pool_of(sequence), self.part_of(sequence)
      needed = self._pages_to_decode(sequence, steps)
      pages = pool.allocate(needed)
      while pages is None and sequence.slot >= 0:
        self._preempt([s for s in self._oldest_first() if self.part_of(s) == part][-1])
        pages = pool.allocate(needed) if sequence.slot >= 0 else None
      if pages is not None:
        self._extend(sequence, pages)
        ready.append(sequence)
    return Decode(ready, steps) if ready else []

  def _has_room(self, steps: int) -> bool:
    """Whether the pages of every part last for so many steps."""
    needed: collections.Counter[int] = collections.Counter()
    for sequence in self.running.values():
      if sequence.decoding:
        needed[self.part_of(sequence)] += self._pages_to_decode(sequence, steps)
    return all(count <= self.pools[part].num_available for part, count in needed.items())

  def _pages_to_decode(self, sequence: Sequence, steps: int) -> int:
    """Pages that a sequence lacks for so many steps, in each of which all drafts may count."""
    new = min(steps * (self._draft_tokens + 1), self._decode_tokens)
    positions = sequence.num_tokens - 1 + new
    most = sequence.max_tokens + self._draft_tokens
    return max(0, self._pages_for(min(positions, most)) - len(sequence.pages))

  def _extend(self, sequence: Sequence, pages: list[int]) -> None:
    held = len(sequence.pages)
    sequence.pages += pages
    self.page_table[sequence.slot, held : held + len(pages)] = pages

  def _preempt(self, sequence: Sequence) -> None:
    self._set_back(sequence)
    self.num_preempted += 1

  def _set_back(self, sequence: Sequence) -> None:
    """Puts a running sequence back among the waiting, without its pages. Its experts are kept if
    ids were sampled under them: else it is computed anew, maybe by other weights.
    """
    if sequence.num_tokens == sequence.num_prompt:
      sequence.routing = None
    else:
      routing = self.routing_of(sequence)
      if sequence.routing is None or len(routing) > len(sequence.routing):
        sequence.routing = routing
    self._vacate(sequence)
    self.add(sequence)

  def _vacate(self, sequence: Sequence) -> None:
    self.pool_of(sequence).release(sequence.pages)
    self.page_table[sequence.slot] = SCRATCH_PAGE
    del self.running[sequence.slot]
    heapq.heappush(self._free_slots[self.part_of(sequence)], sequence.slot)
    sequence.pages = []
    sequence.num_cached = sequence.num_shared = 0
    sequence.slot = -1
    sequence.decoding = False

  def _pages_for(self, num_positions: int) -> int:
    return -(-num_positions // self.pools[0].page_tokens)


def _matched(sequence: Sequence) -> np.ndarray:
  """The ids that a prefix may be found of: something is left to prefill, also of a sequence that
  goes on after preemption, whose newest id is not part of that."""
  return sequence.tokens[: sequence.prefill_end]
