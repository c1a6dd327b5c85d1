"""The scheduler over a cache in parts: where sequences go, and that no part mixes with another."""

import collections
import math
import random

import numpy as np

from jaxrl_agents.sampler.pages import PagePool
from jaxrl_agents.sampler.scheduler import Decode, Scheduler
from jaxrl_agents.sampler.sequence import Chunk, Sequence
from jaxrl_agents.types import SamplingLimits

PAGE_TOKENS = 2


def scheduler(parts, *, pages=8, slots=2):
  pools = [PagePool(pages, PAGE_TOKENS) for _ in range(parts)]
  return Scheduler(
    pools,
    slots=slots,
    max_pages=7,
    chunk_tokens=4,
    piece_tokens=4,
    prefill_rows=1,
    draft_tokens=0,
    decode_steps=1,
    decode_tokens=1,
  )


def request(number, prompt, max_tokens=14):
  tokens = np.zeros(max_tokens, np.int32)
  tokens[: len(prompt)] = prompt
  return Sequence(
    number, tokens, len(prompt), len(prompt), max_tokens, SamplingLimits(8, ()), deadline=math.inf
  )


def compute(scheduler, work, rng):
  """What the engine does with a plan: one sampled id after a prompt, and one of each decode step;
  returns those that reached their end.
  """
  ended = []
  for item in work.sequences if isinstance(work, Decode) else work:
    sequence = item.sequence if isinstance(item, Chunk) else item
    end = item.start + item.count if isinstance(item, Chunk) else sequence.num_cached + 1
    sampled = end == sequence.num_tokens
    scheduler.advance(sequence, end)
    if sampled:
      sequence.tokens[sequence.num_tokens] = rng.randrange(2)
      sequence.num_tokens += 1
    if sequence.num_tokens == sequence.max_tokens:
      ended.append(sequence)
  for sequence in ended:
    scheduler.remove(sequence)
  return ended


def run(scheduler, rng):
  while work := scheduler.plan():
    compute(scheduler, work, rng)


def test_sequences_of_nothing_in_common_spread_over_the_parts():
  found = scheduler(3)
  for number in range(6):
    found.add(request(number, [number, 9]))
  found.plan()
  assert [found.part_of(s) for s in sorted(found.running.values(), key=lambda s: s.id)] == [
    *(0, 1, 2),
    *(0, 1, 2),
  ]


def test_a_sequence_goes_where_its_prefix_is_cached():
  found, rng = scheduler(3, pages=32), random.Random(0)
  first = [request(number, [number, 9, 9, 9]) for number in range(3)]
  for sequence in first:
    found.add(sequence)
  run(found, rng)
  again = request(3, [1, 9, 9, 9, 5])
  found.add(again)
  found.plan()
  assert (found.part_of(again), again.num_cached) == (1, 4)


def test_a_full_part_sends_a_sequence_elsewhere_to_be_computed_there():
  found, rng = scheduler(2, pages=32, slots=1), random.Random(0)
  found.add(request(0, [1, 2, 3, 4]))
  run(found, rng)
  for number in (1, 2):
    found.add(request(number, [1, 2, 3, 4, number]))
  found.plan()
  placed = {s.id: (found.part_of(s), s.num_cached) for s in found.running.values()}
  assert placed == {1: (0, 4), 2: (1, 0)}


def test_a_prefill_step_takes_as_many_rows_of_each_part():
  found = scheduler(2, pages=32, slots=3)
  for number in range(6):
    found.add(request(number, [number, 9, 9]))
  taken = collections.Counter(found.part_of(chunk.sequence) for chunk in found.plan())
  assert taken == {0: 1, 1: 1}


def test_random_use_keeps_parts_apart_preempts_within_them_and_ends_everything():
  rng = random.Random(1)
  found, ended, number = scheduler(3), [], 0
  for step in range(3_000):
    if rng.random() < 0.3:
      found.add(request(number, [rng.randrange(2) for _ in range(rng.randrange(1, 11))]))
      number += 1
    if rng.random() < 0.01:
      found.set_version(step)
    ended += compute(found, found.plan(), rng)
    holders = [collections.Counter() for _ in found.pools]
    for slot, sequence in found.running.items():
      assert slot == sequence.slot
      holders[found.part_of(sequence)].update(sequence.pages)
      table = found.page_table[slot]
      assert list(table[: len(sequence.pages)]) == sequence.pages
      assert not table[len(sequence.pages) :].any()
      assert len(sequence.pages) * PAGE_TOKENS >= sequence.num_cached
    for pool, counts in zip(found.pools, holders, strict=True):
      assert [pool.references(p) for p in range(pool.num_pages)] == [
        counts[p] for p in range(pool.num_pages)
      ]
  for _ in range(1_000):
    ended += compute(found, found.plan(), rng)
  assert sorted(s.id for s in ended) == list(range(number))
  assert found.num_preempted and found.prefix_hit_tokens
  assert all(pool.num_available == pool.num_pages - 1 for pool in found.pools)
