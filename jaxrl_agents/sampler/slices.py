"""Sampler slices: engines on the nodes of a Ray cluster, which sample what the learner publishes,
or a policy that is not trained.

A slice is an engine on the devices of one node or several. Each node has an actor
(`runs.slice_member`), and all actors of a slice are sent the same calls in the same order. An
answer of the first says which requests have ended. Several steps are made for a message, and a
second message waits at the slice, so that it does not wait for the learner's answer between two.
In a deterministic run each message makes the slice step until a request has ended, as an engine in
the learner's process would.

New weights are a message too, behind those that were sent before it: a slice swaps them in between
two steps, and samples what it is sent later with them. It fetches them in a thread of its own
(`prepare`), while it answers messages. No jax.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.sampler import sequence as sequence_lib
from jaxrl_agents.sampler import stats as stats_lib
from jaxrl_agents.sampler.engine_calls import Advanced, Cancel, Submit
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.sampler.stats import Stats
from jaxrl_agents.types import Generation, SamplingLimits

_WAIT_S = 0.01
_POLL_S = 2.0
"""Seconds between two looks for nodes of a slice that is missing."""
_STEPS = 4
"""Steps for a message: new requests and weights wait for as many at most, twice."""
_MESSAGES = 2
_GET_S = 60.0
MAX_LOSSES = 4
"""How often a slice may be lost while no request ends."""
FETCHING = "fetching"
"""The concurrency group of the actors in which weights are fetched."""


class SlicesError(RuntimeError):
  """Sampling cannot go on: no slice was ready in time, none is left, or one is lost on and on."""


@dataclasses.dataclass
class _Message:
  """A call of a method of every actor of a slice. `waiting` are the answers that have not come.

  Attributes:
    version: of the weights that the slice holds after it.
    allowed_s: for the answers.
    waiting: references to them.
    first: the reference to that of the first actor.
    since: time at which nothing was before it, as time.monotonic.
    answer: of the first actor.
  """

  version: int
  allowed_s: float
  waiting: list[Any]
  first: Any
  since: float = 0.0
  answer: Any = None


@dataclasses.dataclass(eq=False)
class _Slice:
  """A slice. Invariant: `requests` were sent to it, or stand in `calls`, and have not ended.

  Attributes:
    number: as in the name of its resource.
    actors: one for each of its nodes.
    version: of the weights that it holds; -1 until it is ready.
    sent: messages without an answer, the oldest first.
    calls: to be sent with the next message.
    requests: their ids.
    stats: its counters.
    before: its counters when it was ready.
    running: whether a request has yet to end since the last message of a deterministic run.
  """

  number: int
  actors: list[Any]
  version: int = -1
  sent: collections.deque[_Message] = dataclasses.field(default_factory=collections.deque)
  calls: list[Submit | Cancel] = dataclasses.field(default_factory=list)
  requests: set[int] = dataclasses.field(default_factory=set)
  stats: Stats = dataclasses.field(default_factory=Stats)
  before: Stats | None = None
  running: bool = False


class Slices:
  """The slices as one engine (`EngineProtocol`). Use as a context manager.

  Requests go to the slice with the fewest; in a deterministic run to the slices in turn. Requests
  of a slice that is lost go to the others, or wait for one. One thread at a time may use the
  object; `prepare`, `stats` and `places` may be called beside it.

  Invariant: a request is with exactly one slice, or in the backlog, or has ended and stands in
  `_ended` until `step` returns it.

  Args:
    ray: the package.
    actors: number of a slice -> its actors, new and with all methods of `SliceMember`; None while
      its nodes are not there. They have a concurrency group FETCHING.
    numbers: of the slices; all must be ready before sampling begins.
    version: of the weights that they load first. A policy that is not trained has no others.
    max_context_tokens: of their engines.
    vocab_size: of the policy.
    policy: what messages call it.
    deterministic: see RolloutServer.
    stall_s: seconds in which a slice with work must answer; in a deterministic run, in which it
      answers when a request has ended, on top of the longest deadline of its requests.
    start_deadline_s: for the start of a slice, and for loading weights and compiling.
  """

  def __init__(
    self,
    ray: Any,
    actors: Callable[[int], list[Any] | None],
    numbers: Sequence[int],
    version: int,
    *,
    max_context_tokens: int,
    vocab_size: int,
    policy: str = "the policy in training",
    deterministic: bool = False,
    stall_s: float = 120.0,
    start_deadline_s: float = 600.0,
  ):
    if not numbers:
      raise ValueError(f"there is no slice for {policy}; raise sampler.slices")
    self._policy = policy
    self._ray, self._actors = ray, actors
    self._numbers, self._version = numbers, version
    self._max_context_tokens, self._vocab_size = max_context_tokens, vocab_size
    self._deterministic, self._stall_s = deterministic, stall_s
    self._start_deadline_s = start_deadline_s
    self._slices: dict[int, _Slice] = {}
    self._gone: list[Stats] = []
    self._counting = threading.Lock()  # a slice's counters are in _slices or in _gone
    self._losses: collections.Counter[int] = collections.Counter()  # since a request ended
    self._requests: dict[int, Submit] = {}
    self._ended: list[tuple[int, Generation | Failure]] = []
    self._backlog: list[int] = []
    self._next_id = 0
    self._looked = -_POLL_S
    self._without_slices_since: float | None = None  # since when there has been no slice

  def __enter__(self) -> Slices:
    return self

  def __exit__(self, *_: object) -> None:
    for each in self._slices.values():
      self._kill(each)
    self._slices.clear()

  @property
  def num_unfinished(self) -> int:
    """Requests whose end `step` has not returned."""
    return len(self._requests) + len(self._ended)

  @property
  def stats(self) -> Stats:
    """The counters of all slices since each was ready."""
    with self._counting:
      return stats_lib.total([*map(_since_ready, self._slices.values()), *self._gone])

  @property
  def places(self) -> dict[str, dict[str, int]]:
    """{service: counts} of each slice that is ready, for whoever watches the run."""
    return {
      f"slice-{each.number}": {"version": each.version, "requests": len(each.requests)}
      for each in list(self._slices.values())
      if each.version >= 0
    }

  def begin(self) -> None:
    """Starts the slices whose nodes are there; does not wait for them."""
    self._look()

  def wait_until_ready(self) -> None:
    """Returns when every slice holds the weights and has compiled.

    Raises:
      SlicesError: not within start_deadline_s, or a slice cannot be started.
    """
    self._wait_for(lambda: len(self._begun()) >= len(self._numbers))

  def load(self, version: int) -> None:
    """Has every slice load a published version between two steps; returns when all have.

    Raises:
      SlicesError: not within start_deadline_s.
    """
    self._follow(version)
    begun = lambda: self._begun()  # others come to it later
    self._wait_for(lambda: begun() and all(each.version == version for each in begun()))

  def prepare(self, version: int) -> Callable[[], None]:
    """Has the slices fetch and verify a published version while they sample. Any thread may call
    it. A slice that has not done so within stall_s, or that is started meanwhile, does it when it
    swaps the weights.

    Returns:
      What has every slice swap them in between two of its steps, and does not wait for them. What
      is submitted later is sampled with them.
    """
    deadline = time.monotonic() + self._stall_s
    with self._counting:
      actors = [actor for each in self._slices.values() for actor in each.actors]
    fetched = lambda actor: actor.prepare.options(concurrency_group=FETCHING).remote(version)
    waited = [fetched(actor) for actor in actors]
    while waited and time.monotonic() < deadline:
      _, waited = self._ray.wait(waited, num_returns=len(waited), timeout=_POLL_S)
    # What went wrong shows in the answers to the swap.
    return functools.partial(self._follow, version)

  def _follow(self, version: int) -> None:
    """Sends every slice the message that swaps weights."""
    self._version = version
    for each in self._slices.values():
      self._send(each, "load", version, allowed_s=self._start_deadline_s)

  def submit(self, prompt: np.ndarray, limits: SamplingLimits) -> int:
    """Queues a prompt and returns the id that `step` will report it under.

    Raises:
      ValueError: as Engine.submit.
    """
    sequence_lib.check(
      np.asarray(prompt),
      limits,
      max_context_tokens=self._max_context_tokens,
      vocab_size=self._vocab_size,
    )
    request_id, self._next_id = self._next_id, self._next_id + 1
    self._requests[request_id] = Submit(request_id, prompt, limits)
    self._backlog.append(request_id)
    return request_id

  def step(self) -> list[tuple[int, Generation | Failure]]:
    """The requests that have ended, each by its id; waits a little for one, and in a deterministic
    run until each slice with work has ended one.

    Raises:
      SlicesError: there has been no slice for start_deadline_s, or one was lost MAX_LOSSES times
        while no request ended.
    """
    self._look()
    self._dispatch()
    busy = [each for each in self._slices.values() if each.requests]
    if not self._deterministic or not busy:
      for each in [each for each in self._slices.values() if each.requests or each.calls]:
        while len(each.sent) < _MESSAGES:
          self._advance(each, _STEPS)
      self._receive(0.0 if self._ended else _WAIT_S)
    else:
      for each in busy:
        each.running = True
        self._advance(each, 0)
      while any(each.running for each in self._slices.values()):
        self._receive(1.0)
    ended, self._ended = sorted(self._ended, key=lambda found: found[0]), []
    return ended

  def cancel(self, request_id: int) -> None:
    """Drops a request that nobody waits for any more; one that has ended already is no error. Its
    slice is told at the next step.
    """
    self._requests.pop(request_id, None)
    self._ended = [(i, result) for i, result in self._ended if i != request_id]
    if request_id in self._backlog:
      self._backlog.remove(request_id)
    for each in self._slices.values():
      if request_id in each.requests:
        each.requests.remove(request_id)
        each.calls.append(Cancel(request_id))

  def describe(self) -> str:
    """One line on the state, for messages about a lack of progress."""
    missing = sorted(set(self._numbers) - self._slices.keys())
    each = [
      f"slice {s.number} at version {s.version} with {len(s.requests)} requests"
      for s in self._slices.values()
    ]
    return (
      f"of {self._policy}, {len(each)} of {len(self._numbers)} slices ({'; '.join(each)}; missing: "
      f"{', '.join(map(str, missing)) or 'none'}), {len(self._backlog)} requests wait for one"
    )

  def _begun(self) -> list[_Slice]:
    """The slices that can sample. What one is sent comes after the weights that it was sent."""
    return [each for each in self._slices.values() if each.version >= 0]

  def _wait_for(self, done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + self._start_deadline_s
    while not done():
      self._look()
      self._receive(0.2)
      if time.monotonic() > deadline:
        raise SlicesError(
          f"the sampler slices did not hold version {self._version} within "
          f"{self._start_deadline_s:g} s: {self.describe()}; {_REMEDY}"
        )

  def _look(self) -> None:
    """Starts slices that are missing and whose nodes are there."""
    now = time.monotonic()
    if now - self._looked < _POLL_S:
      return
    self._looked = now
    for number in self._numbers:
      if number not in self._slices and (actors := self._actors(number)):
        each = _Slice(number, actors)
        with self._counting:
          self._slices[number] = each
        self._send(each, "begin", self._version, allowed_s=self._start_deadline_s)

  def _dispatch(self) -> None:
    """Gives what waits to the slices that are ready."""
    ready = self._begun()
    now = time.monotonic()
    self._without_slices_since = None if ready else self._without_slices_since or now
    if self._without_slices_since and now - self._without_slices_since > self._start_deadline_s:
      raise SlicesError(
        f"no sampler slice for {self._start_deadline_s:g} s: {self.describe()}; {_REMEDY}"
      )
    while self._backlog and ready:
      request_id = self._backlog.pop(0)
      if self._deterministic:
        chosen = ready[request_id % len(ready)]
      else:
        chosen = min(ready, key=lambda each: len(each.requests))
      chosen.calls.append(self._requests[request_id])
      chosen.requests.add(request_id)

  def _advance(self, each: _Slice, max_steps: int) -> None:
    calls, each.calls = each.calls, []
    allowed_s = self._stall_s
    if not max_steps:  # until a request has ended, for which its deadline leaves time
      waiting = (self._requests[i].limits.deadline_s for i in each.requests)
      allowed_s += max(waiting, default=0.0)
    self._send(each, "advance", time.monotonic(), calls, max_steps, allowed_s=allowed_s)

  def _send(self, each: _Slice, method: str, *arguments: Any, allowed_s: float) -> None:
    """Calls a method of every actor of a slice; `begin` and `load` are called with a version."""
    before = each.sent[-1].version if each.sent else each.version
    version = before if method == "advance" else arguments[0]
    answers = [getattr(actor, method).remote(*arguments) for actor in each.actors]
    message = _Message(version, allowed_s, answers, answers[0])
    each.sent.append(message)
    each.sent[0].since = each.sent[0].since or time.monotonic()

  def _receive(self, timeout_s: float) -> None:
    """Takes the answers that have come."""
    slices = list(self._slices.values())
    waited = [answer for each in slices if each.sent for answer in each.sent[0].waiting]
    if waited:
      self._ray.wait(waited, num_returns=1, timeout=timeout_s)
    else:
      time.sleep(min(timeout_s, _POLL_S / 4))
    for each in slices:
      while each.sent and each.number in self._slices and self._answered(each):
        self._take(each, each.sent.popleft())
        if each.sent:
          each.sent[0].since = time.monotonic()

  def _answered(self, each: _Slice) -> bool:
    """Whether all answers to the oldest message of a slice have come; a slice may be lost here."""
    message = each.sent[0]
    come, message.waiting = self._ray.wait(
      message.waiting, num_returns=len(message.waiting), timeout=0
    )
    try:
      for answer in come:
        found = self._ray.get(answer, timeout=_GET_S)
        if answer == message.first:
          message.answer = found
    except self._ray.exceptions.RayTaskError as error:
      if not isinstance(error.cause, FileNotFoundError):
        raise SlicesError(f"sampler slice {each.number} failed: {error.cause}") from None
      self._lose(each, str(error.cause))  # the learner went on meanwhile: it has a newer version
      return False
    except self._ray.exceptions.RayError as error:
      self._lose(each, str(error).partition("\n")[0])
      return False
    if message.waiting and time.monotonic() - message.since > message.allowed_s:
      self._lose(each, f"no answer for {message.allowed_s:g} s")
      return False
    return not message.waiting

  def _take(self, each: _Slice, message: _Message) -> None:
    each.version = message.version
    if not isinstance(message.answer, Advanced):
      each.stats = message.answer
      each.before = each.before or each.stats
      return
    each.running, each.stats = False, message.answer.stats
    found = message.answer.ended
    mine = [(i, result) for i, result in found if i in each.requests]  # else cancelled meanwhile
    if mine:
      self._losses.clear()
    for request_id, _ in mine:
      each.requests.remove(request_id)
      del self._requests[request_id]
    self._ended += mine

  def _lose(self, each: _Slice, how: str) -> None:
    """A slice is gone: what it had goes to another, under the same seeds.

    Raises:
      SlicesError: it was lost MAX_LOSSES times while no request ended.
    """
    with self._counting:
      del self._slices[each.number]
      self._gone.append(_since_ready(each))
    self._looked = time.monotonic()  # Ray itself may need a moment to notice
    each.running = False
    self._kill(each)
    self._backlog = sorted([*self._backlog, *each.requests])
    print(
      f"sampler slice {each.number} is lost: {how}; its {len(each.requests)} requests go to others "
      f"({len(self._slices)} are left)",
      file=sys.stderr,
      flush=True,
    )
    self._losses[each.number] += 1
    if self._losses[each.number] >= MAX_LOSSES:
      raise SlicesError(
        f"sampler slice {each.number} was lost {MAX_LOSSES} times while no request ended, the last "
        f"time because: {how}; either its node is faulty (ray logs has what its actor wrote), or "
        "one of its requests crashes it (look at the tasks in play)"
      )

  def _kill(self, each: _Slice) -> None:
    for actor in each.actors:
      self._ray.kill(actor)


_REMEDY = (
  "start the nodes of slice N, as many as sampler.hosts says, with ray start "
  "--resources='{\"sliceN\": 1}'"
)


def _since_ready(each: _Slice) -> Stats:
  if each.before is None:
    return Stats()
  now, before = dataclasses.astuple(each.stats), dataclasses.astuple(each.before)
  return Stats(*(a - b for a, b in zip(now, before, strict=True)))
