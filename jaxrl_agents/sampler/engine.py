"""Continuous batching over the paged cache: requests in, generations out, one program at a time.

The host decides (scheduler, pages), the device computes (steps): a chunk of prompts, or several
decode steps, after which the sampled ids, their log-probabilities and experts are fetched together.
All shapes are static, one set for few running sequences and one for many: after `warm_up` nothing
compiles.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.policy import kernel_choice, sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import drafts as drafts_lib
from jaxrl_agents.sampler import program_state, serving_params, steps
from jaxrl_agents.sampler import sequence as sequence_lib
from jaxrl_agents.sampler.draft_gains import DraftGains
from jaxrl_agents.sampler.pages import PagePool, of_each_part
from jaxrl_agents.sampler.program_state import Rows, Sampled
from jaxrl_agents.sampler.scheduler import Decode, Scheduler
from jaxrl_agents.sampler.sequence import Chunk, Failure, Sequence
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.sampler.steps import Drafters, Worth
from jaxrl_agents.types import NOT_ROUTED, Generation, SamplingLimits, Watch

_ENDED_SHARE = 8
"""A decode program ends when more than one in so many of its sequences has ended."""

_PIECE_TOKENS, _PIECES = 32, 16
"""Positions of a row of a prefill program where attention to a row costs as much as its places,
real or not, and rows of the largest: there a prompt takes several rows."""

_MOVES = 4
"""Slots that a program moves."""

_MEASURED_STEPS = 8
"""Steps of a decode program that is run to measure what drafts cost."""

_FEWER_ROWS = 4
"""At most a quarter of the slots of each part decode in a program of a quarter of the rows."""


class Engine:
  """Samples replies to prompts, many at a time.

  Made and used under a mesh (jax.set_mesh), it samples with all its devices: rows, heads and
  experts are split over them, and the cache with the rows: a sequence stays in its part of it
  (policy.attention.cache). With several processes, each makes the same calls in one order, at the
  same times of their clocks (sampler.engine_calls).

  Invariant: between two programs every running sequence has `num_tokens - 1` positions cached (or
  is being prefilled), and each sampled id carries the log-probability and version of the weights
  that sampled it, given the cache as it was then.

  Args:
    cfg: sizes.
    params: of the policy; copied, so that the caller may donate its own.
    version: of params.
    slots: sequences that decode at once; rounded up to a multiple of the parts.
    page_tokens: positions per cache page.
    num_pages: pages of the cache, one of each part scratch.
    max_context_tokens: prompt and reply together; a reply that reaches it ends with stop "length".
    prefill_tokens: positions of one sequence that one prefill step computes at most.
    draft_tokens: ids that the prediction modules draft in a decode step; 0 for none.
    lookup_tokens: ids that prompt lookup drafts in a decode step; 0 for none.
    draft_cost: time of a decode step that verifies drafts over that of one without; None:
      `warm_up` measures it. Below 0 every step drafts. Which steps draft does not change the
      replies but for float noise.
    prefill_rows: sequences that one prefill step serves; rounded likewise. On a CPU, more where
      their chunks are short.
    decode_steps: steps of a decode program at most.
    dtype: of the cache.
    clock: seconds; what deadlines are measured by.

  Attributes:
    draft_costs: `draft_cost` by the rows of a decode program in each part; may be set between two
      steps.

  Raises:
    ValueError: a part of the cache cannot hold one sequence of max_context_tokens, or there is
      nothing to draft with.
  """

  def __init__(
    self,
    cfg: PolicyConfig,
    params: dict[str, Any],
    *,
    version: int,
    slots: int,
    page_tokens: int,
    num_pages: int,
    max_context_tokens: int,
    prefill_tokens: int,
    draft_tokens: int = 0,
    lookup_tokens: int = 0,
    draft_cost: float | None = None,
    prefill_rows: int = 4,
    decode_steps: int = steps.DECODE_STEPS,
    dtype: Any = jnp.float32,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._parts = parts = sharding.ambient_ways("batch")
    self._drafters = Drafters(draft_tokens, lookup_tokens)
    max_tokens = max_context_tokens + self._drafters.most
    slots, pages = of_each_part(
      slots=slots,
      num_pages=num_pages,
      parts=parts,
      page_tokens=page_tokens,
      max_tokens=max_tokens,
    )
    if draft_tokens and not cfg.mtp_depth:
      raise ValueError(
        f"draft_tokens={draft_tokens} needs an MTP module, but mtp_depth is 0; set draft_tokens=0"
      )
    self.cfg = cfg
    self.version = version
    self.stats = Stats()
    self.max_context_tokens = max_context_tokens
    self._clock = clock
    self._drafts_of_kind = [draft_tokens] + [lookup_tokens] * (drafts_lib.KINDS - 1)
    self._gains = DraftGains(self._drafts_of_kind)
    prefill_rows = -(-prefill_rows // parts)
    self._piece_tokens = prefill_tokens
    if kernel_choice.decodes_in_slots():
      self._piece_tokens = min(prefill_tokens, _PIECE_TOKENS)
      pieces = prefill_rows * -(-prefill_tokens // self._piece_tokens)
      prefill_rows = max(prefill_rows, min(pieces, _PIECES))
    pools = [
      PagePool(
        pages,
        page_tokens,
        version=version,
        routing_shape=(cfg.num_moe_layers, cfg.experts_per_token),
      )
      for _ in range(parts)
    ]
    max_pages = -(-max_tokens // page_tokens)
    self._scheduler = Scheduler(
      pools,
      slots=slots,
      max_pages=max_pages,
      chunk_tokens=prefill_tokens,
      piece_tokens=self._piece_tokens,
      prefill_rows=prefill_rows,
      draft_tokens=self._drafters.most,
      decode_steps=decode_steps,
      decode_tokens=steps.most_tokens(self._drafters, decode_steps),
    )
    self._prefill_counts = sorted({-(-prefill_rows // _FEWER_ROWS), prefill_rows})  # of each part
    self._decode_counts = sorted({-(-slots // _FEWER_ROWS), slots})
    blocks = [b - a for a, b in itertools.pairwise([0, *self._decode_counts])]
    self.params = serving_params.own(params, cfg)
    self._sizes = serving_params.sizes(self.params)
    used = program_state.used_config(cfg, draft_tokens)
    self._state = serving_params.committed(
      program_state.init(
        used,
        parts * slots,
        num_pages=parts * pages,
        page_tokens=page_tokens,
        max_pages=max_pages,
        blocks=blocks,
        dtype=dtype,
      )
    )
    self._rows = program_state.empty_rows(parts * slots, 1, max_pages)
    self._piece_columns = self._piece_tokens + max(used.mtp_depth, 1)
    self._context_columns = max_tokens if lookup_tokens else 0
    self.draft_costs = dict.fromkeys(self._decode_counts, 1.0 if draft_cost is None else draft_cost)
    self._measures_drafts = draft_cost is None and self._drafters.most > 0
    self._next_id = 0
    self._move_program = jax.jit(self._moving, donate_argnums=0)
    self._prefill_program = self._program(functools.partial(steps.prefill, cfg=used))
    self._decode_program = self._program(
      functools.partial(steps.decode, cfg=used, drafters=self._drafters, max_steps=decode_steps)
    )

  @property
  def num_unfinished(self) -> int:
    """Requests that wait or run."""
    return len(self._scheduler.waiting) + len(self._scheduler.running)

  def warm_up(self) -> None:
    """Compiles every program that a step can need, on rows without work, and measures what drafts
    cost."""
    num_slots = len(self._rows.active)
    if self._state.slots and len(self._decode_counts) > 1:
      self._move([])
    for count in self._prefill_counts:
      rows = self._empty_rows(self._parts * count, self._piece_columns)
      self._run(self._prefill_program, rows, np.full(self._parts * count, num_slots, np.int32))
    for count in self._decode_counts:
      self._try_decoding(count, steps=0, draft=False)
      if self._measures_drafts:
        plain, drafted = (self._seconds_of_a_step(count, draft) for draft in (False, True))
        self.draft_costs[count] = min(max(drafted / plain, 1.0), 1.0 + self._drafters.most)
    self.stats.forwards = 0

  def _seconds_of_a_step(self, count: int, draft: bool) -> float:
    """Seconds of a decode step of `count` rows in each part, without what a program takes besides:
    from the shortest of three programs of one step and of several."""

    def measured(steps: int) -> tuple[float, int]:
      start = time.perf_counter()
      made = self._try_decoding(count, steps=steps, draft=draft)
      return time.perf_counter() - start, made

    one, several = (min(measured(n) for _ in range(3)) for n in (1, 1 + _MEASURED_STEPS))
    return max(several[0] - one[0], 1e-9) / max(several[1] - one[1], 1)

  def _try_decoding(self, count: int, *, steps: int, draft: bool) -> int:
    """Runs a decode program on rows whose tokens nobody reads; returns the steps that it made."""
    rows = self._empty_rows(self._parts * count, 1, self._context_columns)
    rows.active[:] = min(steps, 1)
    rows.lengths[:] = self.max_context_tokens // 2
    rows.budget[:] = self.max_context_tokens
    slots = np.full(len(rows.active), len(self._rows.active), np.int32)
    cost = -1.0 if draft else np.inf
    worth = Worth(np.zeros(drafts_lib.KINDS, np.float32), np.float32(cost))
    sampled = self._run(self._decode_program, rows, slots, np.int32(steps), np.int32(1), worth)
    return int(sampled.steps)

  def _empty_rows(self, num_rows: int, num_tokens: int, context: int = 0) -> Rows:
    max_pages = self._rows.page_table.shape[1]
    return program_state.empty_rows(num_rows, num_tokens, max_pages, context)

  def cached_tokens(self, prompt: np.ndarray) -> int:
    """How many tokens of a prompt (int32 [P]) need no prefill now."""
    pools = self._scheduler.pools
    return max(len(pool.prefix(prompt)) * pool.page_tokens for pool in pools)

  def submit(self, prompt: np.ndarray, limits: SamplingLimits, watch: Watch | None = None) -> int:
    """Queues a prompt (int32 [P]) and returns the id that `step` will report it under. A reply that
    `watch` ends has the stop "length".

    Raises:
      ValueError: the prompt is empty or leaves no room for a reply, or the limits make no sense.
    """
    prompt = np.asarray(prompt, np.int32)
    self.check(prompt, limits)
    max_tokens = min(len(prompt) + limits.max_new_tokens, self.max_context_tokens)
    tokens = np.zeros(max_tokens, np.int32)
    tokens[: len(prompt)] = prompt
    sequence = Sequence(
      id=self._next_id,
      tokens=tokens,
      num_tokens=len(prompt),
      num_prompt=len(prompt),
      max_tokens=max_tokens,
      limits=limits,
      deadline=self._clock() + limits.deadline_s,
      watch=watch,
    )
    self._next_id += 1
    self._scheduler.add(sequence)
    self.stats.prompt_tokens += len(prompt)
    return sequence.id

  def check(self, prompt: np.ndarray, limits: SamplingLimits) -> None:
    """Raises ValueError where `submit` does."""
    sequence_lib.check(
      prompt,
      limits,
      max_context_tokens=self.max_context_tokens,
      vocab_size=self.cfg.vocab_size,
    )

  def step(self) -> list[tuple[int, Generation | Failure]]:
    """Runs one program; returns the requests that ended with it, each by its id.

    A request whose deadline passed ends as a Failure.
    """
    ended: list[tuple[int, Generation | Failure]] = self._fail_expired()
    work = self._scheduler.plan()
    if not work:
      return ended
    if isinstance(work, Decode):
      finished, advanced = self._decode(work), work.sequences
    else:
      finished, advanced = self._prefill(work), list(dict.fromkeys(c.sequence for c in work))
    finished += [s for s in advanced if s not in finished and s.is_ended_by_watch()]
    for sequence in finished:
      ended.append((sequence.id, self._generation(sequence)))
      self._scheduler.remove(sequence)
    self.stats.preempted = self._scheduler.num_preempted
    self.stats.prefix_hit_tokens = self._scheduler.prefix_hit_tokens
    return ended

  def cancel(self, request_id: int) -> None:
    """Drops a request that nobody waits for any more; one that has ended already is no error."""
    scheduler = self._scheduler
    for sequence in (*scheduler.waiting, *scheduler.running.values()):
      if sequence.id == request_id:
        scheduler.remove(sequence)
        return

  def set_params(self, params: dict[str, Any], version: int, *, recompute: bool = False) -> None:
    """Replaces the weights between two steps (in the manner of PipelineRL). The old ones are freed
    before the new ones are copied, so that at most two sets of weights are there at a time.

    Running sequences go on with the keys and values that they have, or with `recompute` after these
    were computed again by the new weights; what they sample from now on carries the new version.
    New requests reuse no page that older weights wrote.

    Raises:
      ValueError: the version goes back, or the parameters have other shapes.
    """

    def change(held: dict[str, Any]) -> dict[str, Any]:
      self._check_sizes(jax.eval_shape(sharding.served, params), version)
      jax.tree.map(lambda array: array.delete(), held)
      return serving_params.own(params, self.cfg)

    self.change_params(change, version, recompute=recompute)

  def change_params(
    self,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    version: int,
    *,
    recompute: bool = False,
  ) -> None:
    """`set_params` by a function of the parameters that the engine holds, which it may donate.

    Raises:
      ValueError: the version goes back, or the new parameters have other shapes.
    """
    if version < self.version:
      raise ValueError(
        f"version {version} after {self.version}: weight versions never go back; publish the old "
        "weights under a new version"
      )
    params = change(self.params)
    self._check_sizes(params, version)
    self.params = params
    self.version = version
    self._scheduler.set_version(version, recompute=recompute)

  def _check_sizes(self, params: dict[str, Any], version: int) -> None:
    if serving_params.sizes(params) != self._sizes:
      raise ValueError(
        f"the parameters of version {version} differ in structure, shape or dtype from those of "
        f"version {self.version}; an engine serves one PolicyConfig: make a new Engine"
      )

  def forget(self) -> None:
    """Drops all requests and what earlier ones left: what follows depends on later calls alone, and
    not on which prefixes are cached or which drafts were accepted.
    """
    for sequence in (*self._scheduler.waiting, *self._scheduler.running.values()):
      self._scheduler.remove(sequence)
    self._scheduler.forget()
    self._gains = DraftGains(self._drafts_of_kind)

  def describe(self) -> str:
    """One line on the state, for messages about a lack of progress."""
    running, pools = self._scheduler.running.values(), self._scheduler.pools
    return (
      f"version {self.version}, {len(self._scheduler.waiting)} waiting, {len(running)} running "
      f"({sum(not s.decoding for s in running)} in prefill), "
      f"{sum(pool.num_available for pool in pools)} of {sum(pool.num_pages - 1 for pool in pools)} "
      f"pages available, {self.stats}"
    )

  def _fail_expired(self) -> list[tuple[int, Generation | Failure]]:
    failed: list[tuple[int, Generation | Failure]] = []
    for sequence in self._scheduler.expired(self._clock()):
      sampled = sequence.num_tokens - sequence.num_prompt
      text = (
        f"{sampled} tokens were sampled after a prompt of {sequence.num_prompt} "
        f"when deadline_s={sequence.limits.deadline_s:g} passed; raise deadline_s, lower "
        "max_new_tokens or serve fewer requests at once"
      )
      self._scheduler.remove(sequence)
      failed.append((sequence.id, Failure("deadline", text)))
    self.stats.failed += len(failed)
    return failed

  def _prefill(self, chunks: list[Chunk]) -> list[Sequence]:
    """Computes chunks; returns the sequences whose first sampled token already ended them."""
    pieces = [piece for chunk in chunks for piece in self._pieces(chunk)]
    num_rows, places = self._placed([piece.sequence for piece in pieces], self._prefill_counts)
    rows = self._empty_rows(num_rows, self._piece_columns)
    rows.tokens[:] = -1
    slots = np.full(num_rows, len(self._rows.active), np.int32)
    for i, piece in zip(places, pieces, strict=True):
      sequence, end = piece.sequence, piece.start + piece.count
      known = sequence.known_tokens[piece.start : end + self._piece_columns - self._piece_tokens]
      rows.tokens[i, : len(known)] = known
      rows.num_tokens[i] = piece.count
      rows.lengths[i] = piece.start
      rows.active[i] = 1
      rows.page_table[i] = self._scheduler.page_table[sequence.slot]
      program_state.set_limits(rows, i, sequence.limits)
      if end == sequence.prefill_end:
        slots[i] = sequence.slot
    sampled = self._run(self._prefill_program, rows, slots)
    taken = zip(places, pieces, strict=True)
    return [p.sequence for i, p in taken if self._take_prefilled(p, i, sampled)]

  def _pieces(self, chunk: Chunk) -> list[Chunk]:
    """The chunk by rows of a prefill program."""
    end = chunk.start + chunk.count
    starts = range(chunk.start, end, self._piece_tokens)
    return [Chunk(chunk.sequence, at, min(self._piece_tokens, end - at)) for at in starts]

  def _placed(self, sequences: list[Sequence], counts: list[int]) -> tuple[int, list[int]]:
    """(rows of a step, the row of each sequence): as many of each part, which stand together.

    Args:
      sequences: running ones.
      counts: rows of a part that there are programs for.
    """
    taken: collections.Counter[int] = collections.Counter()
    places = []
    for sequence in sequences:
      part = self._scheduler.part_of(sequence)
      places.append((part, taken[part]))
      taken[part] += 1
    count = next(n for n in counts if n >= max(taken.values()))
    return self._parts * count, [part * count + i for part, i in places]

  def _take_prefilled(self, chunk: Chunk, row: int, sampled: Sampled) -> bool:
    """Records a computed piece; True if its sequence ended with the token after it."""
    sequence, end = chunk.sequence, chunk.start + chunk.count
    self._record_routing(sequence, chunk.start, sampled.routing[row, : chunk.count])
    goes_on = end < sequence.prefill_end
    self._scheduler.advance(sequence, end)
    if goes_on:
      return False
    fresh = sequence.num_tokens == sequence.num_prompt
    if fresh and self._append(sequence, sampled.tokens[row], sampled.logprobs[row], 1):
      return True
    program_state.set_limits(self._rows, sequence.slot, sequence.limits)
    return False

  def _decode(self, work: Decode) -> list[Sequence]:
    """Samples for every sequence; returns those that ended."""
    sequences = work.sequences
    if self._state.slots:
      count, places = self._slots_of(sequences)
    else:
      count, places = self._placed(sequences, self._decode_counts)
    num_slots = len(self._rows.active)
    slots = np.full(count, num_slots, np.int32)
    slots[places] = [sequence.slot for sequence in sequences]
    held = dataclasses.replace(self._rows, page_table=self._scheduler.page_table)
    rows = jax.tree.map(lambda x: x[np.minimum(slots, num_slots - 1)], held)
    rows.active[:] = slots < num_slots
    rows.lengths[places] = [sequence.num_cached for sequence in sequences]
    rows.tokens[places, 0] = [sequence.tokens[sequence.num_cached] for sequence in sequences]
    rows.budget[places] = [sequence.max_tokens - sequence.num_tokens for sequence in sequences]
    if self._context_columns:
      context = np.zeros((count, self._context_columns), np.int32)
      for row, sequence in zip(places, sequences, strict=True):
        context[row, : sequence.num_tokens] = sequence.known_tokens
      rows = dataclasses.replace(rows, context=context)
    idle_below = len(sequences) - len(sequences) // _ENDED_SHARE
    worth = Worth(self._gains.gains, np.float32(self.draft_costs[count // self._parts]))
    sampled = self._run(
      self._decode_program, rows, slots, np.int32(work.num_steps), np.int32(idle_below), worth
    )
    finished = []
    for row, sequence in zip(places, sequences, strict=True):
      start, new = sequence.num_cached, int(sampled.count[row])
      self._record_routing(sequence, start, sampled.routing[row, :new])
      if self._append(sequence, sampled.tokens[row], sampled.logprobs[row], new):
        finished.append(sequence)
      self._scheduler.advance(sequence, start + new)
    self.stats.decode_steps += int(sampled.steps)
    self.stats.decoded_rows += int(sampled.row_steps)
    self.stats.drafted += int(sampled.drafted_rows @ self._drafts_of_kind)
    self.stats.accepted += int(sampled.accepted.sum())
    self._gains.record(sampled.drafted_rows, sampled.accepted)
    return finished

  def _slots_of(self, sequences: list[Sequence]) -> tuple[int, list[int]]:
    """`_placed` where the row of a sequence is its slot: few sequences are moved to low slots."""
    wanted = next(n for n in self._decode_counts if n >= len(sequences))
    if moves := self._scheduler.move_below(wanted, sequences):
      for held in jax.tree.leaves(self._rows):
        held[[new for _, new in moves]] = held[[old for old, _ in moves]]
      for first in range(0, len(moves), _MOVES):
        self._move(moves[first : first + _MOVES])
    places = [sequence.slot for sequence in sequences]
    return next(n for n in self._decode_counts if n > max(places)), places

  def _move(self, moves: list[tuple[int, int]]) -> None:
    """Moves what the device holds of slots to others: (old, new) pairs, at most _MOVES."""
    padded = moves + [(0, len(self._rows.active))] * (_MOVES - len(moves))
    self._state = self._move_program(self._state, *np.array(padded, np.int32).T)

  def _append(
    self, sequence: Sequence, tokens: np.ndarray, logprobs: np.ndarray, count: int
  ) -> bool:
    """Adds up to `count` sampled ids; True if the sequence ended with one of them."""
    for token, logprob in zip(tokens[:count].tolist(), logprobs[:count].tolist(), strict=True):
      sequence.tokens[sequence.num_tokens] = token
      sequence.num_tokens += 1
      sequence.logprobs.append(logprob)
      sequence.versions.append(self.version)
      self.stats.tokens += 1
      if token in sequence.limits.stop_tokens or sequence.num_tokens == sequence.max_tokens:
        return True
    return False

  def _record_routing(self, sequence: Sequence, start: int, routing: np.ndarray) -> None:
    """Keeps the experts of positions from `start`, uint16 [n, L, K], beside the pages."""
    positions = np.arange(start, start + len(routing))
    pool = self._scheduler.pool_of(sequence)
    pages = self._scheduler.page_table[sequence.slot, positions // pool.page_tokens]
    pool.routing[pages, positions % pool.page_tokens] = routing

  def _generation(self, sequence: Sequence) -> Generation:
    """The record of a sequence that ended and still holds its pages."""
    tokens = sequence.known_tokens[sequence.num_prompt :].copy()
    routing = None
    if self.cfg.num_moe_layers:
      known = sequence.limits.routed_tokens
      held = self._scheduler.routing_of(sequence)[known : sequence.num_tokens - 1]
      last = np.full((1, *held.shape[1:]), NOT_ROUTED, np.uint16)
      routing = np.concatenate([held, last])
    return Generation(
      tokens=tokens,
      logprobs=np.asarray(sequence.logprobs, np.float32),
      versions=np.asarray(sequence.versions, np.int32),
      routing=routing,
      stop="stop" if int(tokens[-1]) in sequence.limits.stop_tokens else "length",
      began=sequence.began,
      kept=sequence.kept,
    )

  def _run(self, program, rows: Rows, slots: np.ndarray, *more: Any) -> Sampled:
    """Runs a program and fetches what it sampled."""
    self._state, sampled = program(self.params, self._state, rows, slots, *more)
    sampled = jax.device_get(sampled)
    self.stats.forwards += int(sampled.steps)
    return sampled

  def _moving(self, *args):
    self.stats.compiles += 1
    return steps.move(*args)

  def _program(self, function):
    """The jitted function; counts how often it is traced, which is how often it compiles."""

    def traced(*args):
      self.stats.compiles += 1
      state, sampled = function(*args)
      return program_state.laid_out(state, sampled, self.cfg)

    return jax.jit(traced, donate_argnums=1)
