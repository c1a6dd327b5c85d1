"""Serves the generations that rollout workers ask for, from one engine or several named ones, until
their groups are done.

    worker -> here   ("generate", request_id, prompt int32[P], SamplingLimits, group_id)
                     ("cancel", request_id)  ("playing", more)  ("group", Group)  ("error", text)
                     ("died", text, jobs)  ("moved", text, group ids), from the pool itself
    here -> worker   ("generation", request_id, Generation)  ("refused", request_id, text)
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from jaxrl_agents.sampler.crashing_tasks import MAX_RETRIES, CrashingTasks
from jaxrl_agents.sampler.engine_protocol import EngineProtocol
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.types import Generation, Group, SamplingLimits

_Ended: TypeAlias = list[tuple[int, Generation | Failure]]
"""What `EngineProtocol.step` returns."""

_POLL_S = 0.1
"""Longest wait for a message, after which jobs and weights that came meanwhile are looked for."""


class RolloutError(RuntimeError):
  """Rollouts cannot go on; the message says why and what the engine and the pool were doing."""


class Replies(Protocol):
  """Replies of rollouts in play, which those that are played again need not sample again."""

  def find(self, group: str, prompt: np.ndarray, limits: SamplingLimits) -> Generation | None: ...

  def sampled(
    self, group: str, prompt: np.ndarray, limits: SamplingLimits, reply: Generation
  ) -> None: ...


class Schedule(Protocol):
  """When requests reach the engines: recorded, or as a record has it (fleet.schedule)."""

  @property
  def follows(self) -> bool: ...

  def due(self, held: Sequence[str]) -> Sequence[tuple[str, str, str]] | None: ...

  def is_to_come(self, request: str) -> bool: ...

  def tick(self) -> None: ...

  def called(self, kind: Literal["submit", "cancel"], engine: str, request: str) -> None: ...

  def stepped(self) -> None: ...

  def ended(self, group: Group) -> None: ...

  def swap_is_due(self) -> bool: ...

  def describe(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class _Request:
  """A request of a worker, for a group in play."""

  worker: int
  request_id: int
  prompt: np.ndarray
  limits: SamplingLimits
  group: str

  @functools.cached_property
  def key(self) -> str:
    """What tells the request from others, the same in a run and in its replay."""
    return f"{self.limits.key(self.prompt)} {self.group}"

  @property
  def asker(self) -> tuple[int, int]:
    """The worker, and the worker's own number of the request."""
    return self.worker, self.request_id

  def canonical(self) -> tuple[str, int, bytes]:
    """A key that does not depend on when a request came or from which worker."""
    return self.limits.policy, self.limits.seed, self.prompt.tobytes()


class RolloutServer:
  """Pumps messages between a pool of workers and the engines.

  Invariant: every job taken from `collect`'s argument is unfinished in the pool, or its group was
  yielded, or RolloutError named it. State is kept between calls of `collect`: what an abandoned
  call left unfinished, the next one yields.

  Args:
    engine: an Engine, of the policy in training.
    pool: a harness.worker_pool.WorkerPool: submit(job), poll(timeout_s), send(worker, message),
      describe().
    max_rollouts: rollouts in play at once, in whole groups; one group is always played.
    deterministic: step the engine only when every episode in play waits for a generation, and
      submit in an order that depends on the requests alone, so that a run is bitwise repeatable.
      Each rollout is then played as a group of its own, with a seed of its own.
    stall_s: seconds without a message or a step after which RolloutError is raised.
    max_retries: how often a job is submitted again after its worker died. Then its task is set
      aside: the group is returned with failed rollouts, which name the cause.
    others: {policy: Engine} of requests whose `SamplingLimits.policy` names them.
      A request for any other is refused.
    in_thread: starts a step of one of `others` in a thread and returns its future, so that engines
      step at the same time; None has them step one after another.

  Attributes:
    played_again: called with (group id, samples, or () for all of them, why) where rollouts are to
      be played again because their worker died.
    replies: if set, asked before a request of the policy in training is sampled, and told of the
      reply.
    schedule: if set, told what reaches the engines; it may decide when.
  """

  def __init__(
    self,
    engine: EngineProtocol,
    pool: Any,
    *,
    max_rollouts: int,
    deterministic: bool = False,
    stall_s: float = 120.0,
    max_retries: int = MAX_RETRIES,
    others: Mapping[str, EngineProtocol] | None = None,
    in_thread: Callable[[Callable[[], _Ended]], Future[_Ended]] | None = None,
  ):
    if max_rollouts < 1:
      raise ValueError(f"max_rollouts={max_rollouts}; play at least one at a time")
    self._engines: dict[str, EngineProtocol] = {"": engine, **(others or {})}
    self._in_thread = in_thread
    self._stand_ins: dict[str, str] = {}
    self._pool = pool
    self.played_again: Callable[[str, Sequence[int], str], None] = lambda group, samples, why: None
    self._max_rollouts, self._deterministic = max_rollouts, deterministic
    self._stall_s, self._crashing = stall_s, CrashingTasks(max_retries)
    self.replies: Replies | None = None
    self.schedule: Schedule | None = None
    self._asked: dict[tuple[str, int], _Request] = {}
    self._held: list[_Request] = []
    self._abandoned: set[tuple[int, int]] = set()  # askers that wait no longer, in a replay
    self._finished: list[Group] = []
    self._rollouts_in_play = 0
    self._more_players: collections.Counter[int] = collections.Counter()  # by worker
    self._groups: dict[str, tuple[Any, dict[str, Group | None]]] = {}
    self._group_of: dict[str, str] = {}
    self._parts: collections.deque[Any] = collections.deque()
    self._last_error = ""
    self._last_progress = self._left = time.monotonic()

  def stand_in(self, policy: str, engine: str) -> None:
    """From now on `engine`, a name of `others`, answers requests for `policy`.

    Requests that another engine is serving stay there.
    """
    if engine not in self._engines:
      raise ValueError(f"no engine {engine!r} is served here, only {sorted(self._engines)}")
    self._stand_ins[policy] = engine

  def forget(self) -> None:
    """Drops requests that outlived their episodes; nothing may be in play."""
    self._held.clear()
    for asked in list(self._asked):
      self._cancel(*asked)

  def collect(self, jobs: Iterable[Any]) -> Iterator[Group]:
    """Plays jobs (harness.worker_process.Job) and yields each group as it finishes.

    `jobs` is read as groups finish, so it may be endless; weights may be replaced between two
    groups.

    Raises:
      RolloutError: nothing happened for stall_s.
      harness.worker_pool.WorkerPoolError: workers die without finishing any group.
    """
    jobs = iter(jobs)
    self._last_progress = self._left = time.monotonic()
    while True:
      ended = self.round(lambda: next(jobs, None))
      if not ended and not self._groups:
        return
      yield from ended

  def round(self, next_job: Callable[[], Any]) -> list[Group]:
    """One round of messages and at most one step of each engine; returns the groups that ended.

    Between two rounds weights may be replaced. A round without any work returns at once.

    Args:
      next_job: the next job to play, or None if there is none now. It is called while there is room
        for more rollouts.

    Raises:
      RolloutError: nothing happened for stall_s while groups were in play.
      harness.worker_pool.WorkerPoolError: workers die without finishing any group.
    """
    self._last_progress += time.monotonic() - self._left  # in which the caller may swap weights
    if not self._groups:
      self._last_progress = time.monotonic()
    # A repeatable run takes new jobs at repeatable moments only.
    if not self._deterministic or self._all_wait():
      self._fill(next_job)
    try:
      return self._round() if self._groups else []
    finally:
      self._left = time.monotonic()

  def _fill(self, next_job: Callable[[], Any]) -> None:
    """Brings the rollouts in play up to max_rollouts."""
    while True:
      if not self._parts:
        job = next_job()
        if job is None:
          return
        parts = _single_rollouts(job) if self._deterministic else [job]
        self._groups[job.group_id] = (job, {part.group_id: None for part in parts})
        self._group_of |= {part.group_id: job.group_id for part in parts}
        self._parts.extend(parts)
      more = self._rollouts_in_play + self._parts[0].num_rollouts
      if self._rollouts_in_play and more > self._max_rollouts:
        return
      self._pool.submit(self._parts.popleft())
      self._rollouts_in_play = more

  def _round(self) -> list[Group]:
    """Messages in; then finished groups out, or one engine step and its generations out."""
    self._receive(0.0 if self._may_step() else min(_POLL_S, self._stall_s / 4))
    if self._deterministic and not self._all_wait():
      self._check_progress()
      return []
    if self._finished:
      return self._take_finished()
    is_next = self._repeat_calls() if self._replays else self._ask_engines()
    if is_next and any(engine.num_unfinished for engine in self._engines.values()):
      self._step()
    elif self._replays and self._replays.swap_is_due():
      self._last_progress = time.monotonic()  # it is the learner's turn
    else:
      self._check_progress()
    return []

  @property
  def _replays(self) -> Schedule | None:
    """The schedule, if it decides what is next."""
    return self.schedule if self.schedule and self.schedule.follows else None

  def _all_wait(self) -> bool:
    """Whether nothing but the engines can go on; a request may outlive an episode that failed."""
    players = self._rollouts_in_play + self._more_players.total()
    return len(self._asked) + len(self._held) >= players

  def _may_step(self) -> bool:
    if self._deterministic:
      return self._all_wait()
    if self._replays and not self._finished:
      return self._replays.due([request.key for request in self._held]) is not None
    return bool(self._asked or self._held or self._finished)

  def _receive(self, timeout_s: float) -> None:
    while job := self._crashing.next_job(even_beside_others=self._deterministic):
      self._pool.submit(job)
    for worker, message in self._pool.poll(timeout_s):
      self._last_progress = time.monotonic()
      kind, *content = message
      if kind == "generate":
        self._held.append(_Request(worker, *content))
      elif kind == "cancel":
        self._drop(worker, *content)
      elif kind == "playing":
        self._more_players[worker] += content[0]
      elif kind == "group":
        self._crashing.finished(content[0].id)
        self._rollouts_in_play -= len(content[0].trajectories)
        self._finished.append(content[0])
      elif kind == "died":
        self._retry(worker, *content)
      elif kind == "moved":
        self._note_again(*content)
      else:
        self._last_error = f"worker {worker}: {message!r}"

  def _ask_engines(self) -> bool:
    """Submits what workers asked for, in an order that depends on the requests alone."""
    if self.schedule:
      self.schedule.tick()
    for request in sorted(self._held, key=_Request.canonical):
      if (known := self._known(request)) is not None:
        self._pool.send(request.worker, ("generation", request.request_id, known))
        continue
      self._submit(request, self._stand_ins.get(request.limits.policy, request.limits.policy))
    self._held.clear()
    return True

  def _repeat_calls(self) -> bool:
    """Makes the calls before the next recorded step; False if something else comes first."""
    assert self.schedule
    for request in [each for each in self._held if not self.schedule.is_to_come(each.key)]:
      if (known := self._known(request)) is not None:
        self._pool.send(request.worker, ("generation", request.request_id, known))
        self._held.remove(request)
    calls = self.schedule.due([request.key for request in self._held])
    for kind, name, key in calls or ():
      if kind == "submit":
        found = [each for each in self._held if each.key == key]
        request = min(found, key=lambda each: each.asker in self._abandoned)
        self._held.remove(request)
        self._submit(request, name)
      else:
        asked = next(n for n, each in self._asked.items() if n[0] == name and each.key == key)
        request = self._asked[asked]
        self._cancel(*asked)
        if request.asker not in self._abandoned or self.schedule.is_to_come(key):
          self._held.append(request)
    return calls is not None

  def _submit(self, request: _Request, name: str) -> None:
    """Hands a request to an engine; the worker is told if that refuses."""
    if self.schedule:
      self.schedule.called("submit", name, request.key)
    try:
      if name not in self._engines:
        raise ValueError(
          f"no policy {request.limits.policy!r} is served here, only "
          f"{sorted({*self._engines, *self._stand_ins})} ('' is the one in training)"
        )
      engine_id = self._engines[name].submit(request.prompt, request.limits)
      self._asked[name, engine_id] = request
    except ValueError as error:
      self._pool.send(request.worker, ("refused", request.request_id, str(error)))

  def _cancel(self, name: str, engine_id: int) -> None:
    request = self._asked.pop((name, engine_id))
    self._engines[name].cancel(engine_id)
    if self.schedule:
      self.schedule.called("cancel", name, request.key)

  def _drop(self, worker: int, request_id: int) -> None:
    """Forgets a request that nobody waits for any more. A replay submits and cancels it all the
    same, where the record says so: the engines depend on it.
    """
    asker = (worker, request_id)
    if self._replays:
      self._abandoned.add(asker)
      is_over = lambda held: held.asker == asker and not self._replays.is_to_come(held.key)
      self._held = [held for held in self._held if not is_over(held)]
      return
    self._held = [held for held in self._held if held.asker != asker]
    for asked in [key for key, each in self._asked.items() if each.asker == asker]:
      self._cancel(*asked)

  def _known(self, request: _Request) -> Generation | None:
    """The reply to a request that an earlier attempt of its rollout made."""
    if self.replies is None or request.limits.policy or request.group not in self._group_of:
      return None
    return self.replies.find(self._group_of[request.group], request.prompt, request.limits)

  def _step(self) -> None:
    """One step of every engine that has something to do."""
    self._last_progress = time.monotonic()
    if self.schedule:
      self.schedule.stepped()
    stepped = self._stepped()
    self._last_progress = time.monotonic()
    for name, ended in stepped:
      for engine_id, result in ended:
        request = self._asked.pop((name, engine_id))
        if isinstance(result, Failure):
          self._pool.send(request.worker, ("refused", request.request_id, result.text))
          continue
        if self.replies and not name and request.group in self._group_of:
          group = self._group_of[request.group]
          self.replies.sampled(group, request.prompt, request.limits, result)
        self._pool.send(request.worker, ("generation", request.request_id, result))

  def _stepped(self) -> list[tuple[str, _Ended]]:
    """Steps every engine that has something to do; returns the name and what ended of each."""
    names = [name for name, engine in self._engines.items() if engine.num_unfinished]
    own, *others = names
    if not others or not self._in_thread:
      return [(name, self._engines[name].step()) for name in names]
    futures = [self._in_thread(self._engines[name].step) for name in others]
    try:
      ended = [self._engines[own].step()]
    finally:
      _, late = wait(futures, timeout=self._stall_s)
    if late:
      raise RolloutError(
        f"the steps of {', '.join(others)} did not end within stall_s={self._stall_s:g}; "
        f"{'; '.join(self._engines[name].describe() for name in others)}"
      )
    return list(zip(names, [*ended, *(each.result(0) for each in futures)], strict=True))

  def _take_finished(self) -> list[Group]:
    """Groups all of whose jobs are done, in the order of their ids."""
    done = []
    for part in sorted(self._finished, key=lambda group: group.id):
      group_id = self._group_of.pop(part.id)
      job, parts = self._groups[group_id]
      parts[part.id] = part
      finished = [group for group in parts.values() if group]
      if len(finished) == len(parts):
        del self._groups[group_id]
        done.append(_merge(job, finished))
    self._finished.clear()
    if self.schedule:
      for group in done:
        self.schedule.ended(group)
    return done

  def _retry(self, worker: int, text: str, jobs: Sequence[Any]) -> None:
    """Forgets what a dead worker waited for; its jobs are played again from the start."""
    self._held = [held for held in self._held if held.worker != worker]
    self._abandoned = {asker for asker in self._abandoned if asker[0] != worker}
    del self._more_players[worker]
    if not self._replays:  # there the engines go on as recorded
      for asked in [key for key, each in self._asked.items() if each.worker == worker]:
        self._cancel(*asked)
    given_up = set()
    for lost in self._crashing.after_death(jobs, text):
      given_up.add(lost.id)
      self._rollouts_in_play -= len(lost.trajectories)
      self._finished.append(lost)
    self._note_again(text, [job.group_id for job in jobs if job.group_id not in given_up])

  def _note_again(self, text: str, parts: Sequence[str]) -> None:
    """Tells of jobs that others play from the start."""
    for part in parts:
      group_id = self._group_of[part]
      samples = () if part == group_id else (int(part.rpartition("/")[2]),)
      self.played_again(group_id, samples, text)

  def _check_progress(self) -> None:
    waited = time.monotonic() - self._last_progress
    if waited > self._stall_s:
      waits = f"{self._replays.describe()}; " if self._replays else ""
      engines = "; ".join(f"{n} {e.describe()}".strip() for n, e in self._engines.items())
      raise RolloutError(
        f"no message and no engine step for {waited:.0f} s (stall_s={self._stall_s:g}): "
        f"{self._rollouts_in_play} rollouts in play, {len(self._held)} requests held, "
        f"{len(self._asked)} in the engines, groups {sorted(self._groups)[:8]}, "
        f"pool: {self._pool.describe()}; engine: {engines}; {waits}"
        f"last error: {self._last_error or 'none'}"
      )


def _single_rollouts(job: Any) -> list[Any]:
  """A job for each rollout, with a seed of its own."""
  count = job.num_rollouts
  width = len(str(count))
  return [
    dataclasses.replace(
      job,
      group_id=f"{job.group_id}/{i:0{width}d}",
      num_rollouts=1,
      sampling=dataclasses.replace(job.sampling, seed=job.sampling.seed * count + i),
    )
    for i in range(count)
  ]


def _merge(job: Any, parts: Iterable[Group]) -> Group:
  """The group of a job from the groups that its parts came back as."""
  trajectories = tuple(t for part in parts for t in part.trajectories)
  return Group(job.task, trajectories, job.group_id)
