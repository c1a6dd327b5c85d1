"""Sessions: who may ask for replies, how many, and the trajectory that they leave.

One session is one rollout of an agent. Its calls are sampled, recorded in a token tree, and
exported as the trajectory that an episode of this package would have left.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import itertools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.chat.replies import json_text
from jaxrl_agents.gateway.progress import Progress, watch
from jaxrl_agents.gateway.requests import Refusal, Reply, Request
from jaxrl_agents.gateway.sampling import cut, message_of
from jaxrl_agents.gateway.token_tree import Call, TokenTree, kinds
from jaxrl_agents.harness.rollout import Sampling, generate, unseen
from jaxrl_agents.harness.scripted_player import spoken
from jaxrl_agents.harness.segments import Turn
from jaxrl_agents.types import (
  Generation,
  Message,
  Sampler,
  SamplingLimits,
  ToolSpec,
  Trajectory,
  Watch,
)

REMEMBERED_S = 600.0
"""Seconds for which a request that is sent again gets the reply of the first."""

MOST_CHARS_PER_TOKEN = 256
"""A prompt with more characters for each token of a context is not tokenised to find its length."""

MOST_NAMED, MOST_COUNTED, NAME_CHARS = 32, 256, 64
"""Fields without effect that one request names, that a session counts by name, and characters of a
name: clients read no header of more than 64 KiB, and a session must not grow with its requests.
"""

OTHERS = "others"
"""Fields without effect beyond these."""

DRAIN_S = 30.0
"""Most seconds that `finish` waits for calls that are being sampled."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """Bounds of one session.

  Attributes:
    calls: requests at most.
    tokens: sampled tokens at most.
    at_once: requests that are sampled at the same time at most.
    n: replies to one request at most.
    ttl_s: seconds after which the session expires.
    reward_s: seconds after its end for which rewards are taken.
  """

  calls: int = 1_000
  tokens: int = 10_000_000
  at_once: int = 64
  n: int = 16
  ttl_s: float = 3_600.0
  reward_s: float = 600.0


@dataclasses.dataclass(frozen=True)
class Served:
  """What samples the replies of a session.

  Attributes:
    chat: tokenizer and template.
    sampler: of the policy.
    sampling: temperature, seed and limits.
    max_context_tokens: of a prompt and its reply together.
    training: whether the session is of a training run: then `sampling` holds, whatever is asked.
    model: the name by which clients know the policy.
    answer: a scripted player, (messages, tools) -> reply, in the place of the sampler.
  """

  chat: Chat
  sampler: Sampler
  sampling: Sampling
  max_context_tokens: int
  training: bool
  model: str = "policy"
  answer: Callable[[Sequence[Message], Sequence[ToolSpec]], Message] | None = None


class Observer(Protocol):
  """Is told of the calls of sessions, as they happen."""

  def called(self, session: Session, call: Call, said: Message, latency_s: float) -> None:
    """A call was sampled and is in the tree; `said` has its tool calls, broken ones too."""

  def delivered(self, session: Session, calls: Sequence[str]) -> None:
    """The replies of calls (ids) were handed to the client."""


class Session:
  """One rollout. Invariant: each call that was sampled is in `tree`, or an error names why not.

  Attributes:
    id: of the session.
    key: opens it to an agent.
    control_key: opens its rewards and its end to whoever started the agent.
    rewards: parts that were attached, by name.
    error: why the trajectory cannot be trained; "" if it can.
    without_effect: how often each field of a request changed nothing.
    observer: is told of calls; None if nobody is.
  """

  def __init__(
    self,
    served: Served,
    limits: Limits,
    *,
    id: str = "",
    seed_text: str = "",
    info: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    self.served, self.limits = served, limits
    self.id = id or secrets.token_hex(8)
    self.key = f"sk-{secrets.token_urlsafe(24)}"
    self.control_key = f"ck-{secrets.token_urlsafe(24)}"
    self.info = dict(info or {})
    self.observer: Observer | None = None
    self.tree = TokenTree()
    self.rewards: dict[str, float] = {}
    self.stop = self.error = ""
    self.finished = asyncio.Event()
    self.without_effect: collections.Counter[str] = collections.Counter()
    self._log: list[Message] = []
    self._seed_text = seed_text or self.id
    self._clock = clock
    self._ends = clock() + limits.ttl_s
    self._ended = 0.0
    self._closing = False
    self._events: set[str] = set()
    self._num_calls = self._num_tokens = self._promised = self._running = 0
    self._numbers = itertools.count()
    self._drawn: collections.Counter[bytes] = collections.Counter()
    self._tasks: dict[str, list[_Sampling]] = {}
    self._got: set[str] = set()
    self._running_tasks: set[asyncio.Task[list[Reply]]] = set()

  @property
  def state(self) -> str:
    """ "open", "finished", or "expired"."""
    if self._closing:
      return "finished"
    return "expired" if self._clock() > self._ends else "open"

  def over(self, kept_s: float) -> bool:
    """Whether the session was finished more than `kept_s` seconds ago."""
    return self.finished.is_set() and self._clock() > self._ended + kept_s

  def counters(self) -> dict[str, Any]:
    """What the session did so far."""
    versions = [call.turn.generation.versions for call in self.tree.calls]
    return {
      "session_id": self.id,
      "state": self.state,
      "calls": self._num_calls,
      "sampled_tokens": self._num_tokens,
      "versions": sorted({int(v) for each in versions for v in each}),
      "fields_without_effect": dict(self.without_effect),
      "rewards": dict(self.rewards),
      "error": self.error,
    }

  def begin(
    self,
    request: Request,
    name: str,
    *,
    digest: str = "",
    repeated: bool = False,
    progress: Progress | None = None,
  ) -> asyncio.Task[list[Reply]]:
    """The task that samples the replies to a request. It goes on if its caller goes away.

    Args:
      request: of the agent.
      name: what the request has in common with its repetitions.
      digest: of its body, which a repetition has too.
      repeated: whether it is one: then the task is that of the first request of this name whose
        replies were not delivered, or of the last one; not of one that failed or began more than
        REMEMBERED_S ago.
      progress: of a request for one reply, set while it is sampled if the sampler can do that; not
        where the task is that of another request.

    Raises:
      Refusal: the session is closed, a limit is reached, or another request had this name. The task
        raises it where the prompt is too long, or the sampler failed (then the session cannot be
        trained).
    """
    now = self._clock()
    kept = {
      each: [sampling for sampling in samplings if sampling.counts(now)]
      for each, samplings in self._tasks.items()
    }
    self._tasks = {each: samplings for each, samplings in kept.items() if samplings}
    if repeated and (same := self._tasks.get(name)):
      if same[0].digest != digest:
        text = "this Idempotency-Key is that of another request; use a new one for each"
        raise Refusal(422, text, retry=False)
      return next((each for each in same if each.open(self._got)), same[-1]).task
    self._check_open(request)
    for field in self.ignored(request):
      known = field in self.without_effect or len(self.without_effect) < MOST_COUNTED
      self.without_effect[field if known else OTHERS] += 1
    task = asyncio.create_task(self._sample(request, progress))
    task.add_done_callback(_seen)
    self._running_tasks.add(task)
    task.add_done_callback(self._running_tasks.discard)
    self._tasks.setdefault(name, []).append(_Sampling(now, digest, task))
    return task

  def ignored(self, request: Request) -> tuple[str, ...]:
    """The fields of a request that change nothing, MOST_NAMED of them by name; in training those of
    its sampling, too."""
    named = [field[:NAME_CHARS] for field in request.without_effect[:MOST_NAMED]]
    more = [OTHERS] if len(request.without_effect) > MOST_NAMED else []
    sampling = [
      name
      for name in ("temperature", "top_p")
      if self.served.training and getattr(request, name) is not None
    ]
    return (*named, *more, *sampling)

  def prompt(self, request: Request) -> np.ndarray:
    """The ids that a request would be sampled from, int32 [P].

    Raises:
      Refusal: 400, the chat format cannot render it.
    """
    return self._prompt(request)[1]

  def _prompt(self, request: Request) -> tuple[tuple[Message, ...], np.ndarray]:
    """The messages of a request, its replies of this session with their ids, and its prompt."""
    if request.prompt is not None:
      return (), request.prompt
    size = (
      len(request.text) + sum(map(_size, request.messages)) + sum(map(_spec_size, request.tools))
    )
    if size > MOST_CHARS_PER_TOKEN * self.served.max_context_tokens:
      raise self._too_long(f"{size} characters")
    if request.text:
      return (), self.served.chat.encode(request.text)
    try:
      history = self.tree.with_ids(request.messages, request.tools)
      return history, self.served.chat.render(history, request.tools)
    except ValueError as error:
      raise Refusal(400, str(error), param="messages", retry=False) from error
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
      text = (
        f"the chat format cannot write down messages and tools ({type(error).__name__}: {error}); "
        "see whether the JSON schemas of the tools are valid"
      )
      raise Refusal(400, text, param="tools", retry=False) from error

  def delivered(self, replies: list[Reply]) -> None:
    """Notes that the agent got the replies."""
    ids = {reply.id for reply in replies}
    self._got |= ids
    for call in self.tree.calls:
      call.delivered = call.delivered or call.id in ids
    if self.observer:
      self.observer.delivered(self, sorted(ids))

  def reward(self, parts: Mapping[str, float], event: str) -> bool:
    """Attaches parts of the reward, once for each `event`; returns whether it was new.

    Raises:
      Refusal: 409, the time for rewards is over.
    """
    if self._clock() > self._ends + self.limits.reward_s:
      raise Refusal(409, f"session {self.id} takes no rewards any more", retry=False)
    if event in self._events:
      return False
    self._events.add(event)
    self.rewards |= parts
    return True

  async def finish(self, stop: str = "answer", error: str = "") -> None:
    """Ends the session: no new calls; those that run are waited for, DRAIN_S at most. Then it is
    `finished`, for which a second call waits as well."""
    if self._closing:
      await self.finished.wait()
      return
    if self.state == "expired":
      error = error or f"the session expired after {self.limits.ttl_s:g} s"
    self.stop, self.error = stop, self.error or error
    self._closing = True
    try:
      if self._running_tasks:
        _, late = await asyncio.wait(self._running_tasks, timeout=DRAIN_S)
        for task in late:
          task.cancel()
        if late and not self.error:
          self.error = f"{len(late)} calls were still being sampled {DRAIN_S:g} s after the end"
    finally:
      self._ended = self._clock()
      self.finished.set()

  def trajectory(self, task_id: str, trains: tuple[str, ...] = ("main", "sub")) -> Trajectory:
    """What the session left. Calls of kinds that are not in `trains` are context alone."""
    calls = self.tree.calls
    kind = kinds(calls)
    counts = collections.Counter(kind[id(call)] for call in calls)
    segments = () if self.error else self.tree.segments(lambda call: kind[id(call)] in trains)
    sampled = sum(len(call.turn.generation.tokens) for call in calls)
    trained = sum(int(segment.loss_mask.sum()) for segment in segments)
    return Trajectory(
      task_id=task_id,
      segments=segments,
      log=tuple(self._log),
      rewards={} if self.error else dict(self.rewards),
      stop=self.stop,
      metrics={
        "turns": float(len(calls)),
        "sampled_tokens": float(sampled),
        "trained_tokens": float(trained),
        "side_calls": float(counts["side"]),
        "sub_calls": float(counts["sub"]),
        "lost_calls": float(len(calls) - len(self.tree.used())),
        "branches": float(len(segments)),
        "truncated_turns": float(sum(c.turn.generation.stop == "length" for c in calls)),
        "longest_context_tokens": float(max((len(c.tokens) for c in calls), default=0)),
      },
      error=self.error,
    )

  def _check_open(self, request: Request) -> None:
    limits = self.limits
    if self.state != "open":
      raise self._closed()
    for name, value, most, field in (
      ("calls", self._num_calls + 1, limits.calls, ""),
      ("sampled tokens", self._num_tokens + 1, limits.tokens, ""),
      ("replies to one request", request.n, limits.n, "n"),
    ):
      if value > most:
        text = f"session {self.id} may have {most} {name}, and this would be {value}"
        raise Refusal(400 if field else 429, text, param=field, retry=False)
    if self._running >= limits.at_once:
      raise Refusal(429, f"session {self.id} has {limits.at_once} calls at once", retry=True)
    self._num_calls += 1

  async def _sample(self, request: Request, progress: Progress | None) -> list[Reply]:
    """Renders, samples and records; faults make the trajectory unusable."""
    self._run(request.n)
    promised = 0
    try:
      history, prompt = self._prompt(request)
      room = self.served.max_context_tokens - len(prompt)
      if room < 1:
        most = self.served.max_context_tokens - 1
        raise self._too_long(f"{len(prompt)} tokens > {most} maximum")
      left = self.limits.tokens - self._num_tokens - self._promised
      if left < request.n:
        waits = self.limits.tokens - self._num_tokens >= request.n
        text = f"session {self.id} may have {self.limits.tokens} sampled tokens, and " + (
          "its calls that run may take all that are left; wait for them" if waits else "has them"
        )
        raise Refusal(429, text, retry=waits)
      limits = self._limits(request, prompt, min(room, left // request.n))
      promised = limits.max_new_tokens * request.n
      self._promised += promised
      return list(
        await asyncio.gather(
          *(
            self._one(request, history, prompt, limits, place, progress)
            for place in range(request.n)
          )
        )
      )
    except Refusal:
      raise
    except asyncio.CancelledError:
      if self._closing:  # by `finish`, and the agent is told so
        raise self._closed() from None
      raise
    except Exception as error:  # no agent is to blame: the rollout must not be learned from
      self.error = self.error or f"{type(error).__name__}: {error}"
      raise Refusal(503, f"the sampler failed: {error}", retry=False) from error
    finally:
      self._promised -= promised
      self._run(-request.n)

  def _closed(self) -> Refusal:
    return Refusal(
      409,
      f"session {self.id} is {self.state}; open another one",
      code="session_closed",
      retry=False,
    )

  def _too_long(self, size: str) -> Refusal:
    most = self.served.max_context_tokens
    # Clients know this refusal by the words of Anthropic (the first) and OpenAI (the others).
    return Refusal(
      400,
      f"prompt is too long: {size}; this model's maximum context length is {most} tokens with the "
      "reply",
      code="context_length_exceeded",
      param="messages",
      retry=False,
    )

  def _run(self, more: int) -> None:
    """Counts replies that are being sampled; the sampler knows of one player for each session."""
    before, self._running = self._running, self._running + more
    if change := max(self._running, 1) - max(before, 1):
      self.served.sampler.playing(change)

  def _limits(self, request: Request, prompt: np.ndarray, room: int) -> SamplingLimits:
    served, sampling = self.served, self.served.sampling
    asked = request.max_tokens or room
    own = not served.training
    temperature = request.temperature if own and request.temperature is not None else None
    top_p = request.top_p if own and request.top_p is not None else None
    return SamplingLimits(
      max_new_tokens=min(asked, room, sampling.max_new_tokens),
      stop_tokens=(*served.chat.stop_tokens, *request.stop_tokens),
      temperature=sampling.temperature if temperature is None else temperature,
      top_p=sampling.top_p if top_p is None else top_p,
      deadline_s=sampling.generate_deadline_s,
      routed_tokens=self.tree.routed_tokens(prompt),
    )

  async def _one(
    self,
    request: Request,
    history: tuple[Message, ...],
    prompt: np.ndarray,
    limits: SamplingLimits,
    place: int,
    progress: Progress | None,
  ) -> Reply:
    """The reply of this place among those of the request."""
    name = f"{self.id}_{next(self._numbers)}"
    limits = dataclasses.replace(limits, seed=self._seed(request, prompt, place))
    began, chat = self._clock(), self.served.chat
    if progress:
      progress.begin(name, prompt)
    watched = watch(chat, request.stop, progress)
    generation = await self._generation(request, prompt, limits, watched)
    generation, stop_text = cut(chat, generation, prompt, limits, request.stop)
    self._num_tokens += len(generation.tokens)
    message = message_of(
      chat,
      generation,
      stop_text,
      call_ids=f"call_{name}",
      may_call=request.may_call,
      text_tools=request.text_tools,
      as_text=bool(request.text) or request.prompt is not None,
    )
    turn = Turn(prompt, generation)
    call = Call(name, history, request.tools, turn, message, delivered=False)
    self.tree.add(call)
    if self.observer:
      self.observer.called(self, call, chat.parse(generation.tokens), self._clock() - began)
    self._log += [*unseen(history, self._log), message]
    stop = "stop_text" if stop_text else generation.stop
    if message.tool_calls and stop == "stop":
      stop = "tool_calls"
    return Reply(name, prompt, generation, message, stop, stop_text)

  async def _generation(
    self, request: Request, prompt: np.ndarray, limits: SamplingLimits, watched: Watch | None
  ) -> Generation:
    served = self.served
    if served.answer is None:
      return await generate(served.sampler, prompt, limits, watched)
    said = served.answer(request.messages, request.tools)
    whole = spoken(served.chat, said, request.messages, limits.max_new_tokens)
    if watched is not None:
      for n in range(1, len(whole.tokens) + 1):
        watched(whole.tokens[:n], whole.versions[:n])
        await asyncio.sleep(0)  # a stream sends what is new
    return whole

  def _seed(self, request: Request, prompt: np.ndarray, place: int) -> int:
    """A seed that depends on the rollout, the prompt and how often it was sampled, not on the order
    in which calls come. Where no run trains, one that is asked for gives the same reply again.
    """
    if request.seed is not None and not self.served.training:
      return _drawn(f"{request.seed}\0{place}".encode())
    asked = b"" if request.seed is None else str(request.seed).encode()
    digest = hashlib.blake2b(prompt.tobytes() + b"\0" + asked, digest_size=16).digest()
    count, self._drawn[digest] = self._drawn[digest], self._drawn[digest] + 1
    return _drawn(f"{self.served.sampling.seed}\0{self._seed_text}\0{count}\0".encode() + digest)


def _drawn(text: bytes) -> int:
  """A seed."""
  return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") & 0x7FFFFFFF


@dataclasses.dataclass(frozen=True)
class _Sampling:
  """A request that is being sampled or was: since when, the digest of its body, its task."""

  began: float
  digest: str
  task: asyncio.Task[list[Reply]]

  def counts(self, now: float) -> bool:
    """Whether a repetition gets these replies."""
    if not self.task.done():
      return True
    failed = self.task.cancelled() or self.task.exception() is not None
    return not failed and now - self.began < REMEMBERED_S

  def open(self, got: set[str]) -> bool:
    """Whether its replies were not delivered; `got` are the ids of those that were."""
    return not self.task.done() or any(reply.id not in got for reply in self.task.result())


def _size(message: Message) -> int:
  """Characters of a message."""
  calls = sum(len(call.raw or json_text(dict(call.arguments))) for call in message.tool_calls)
  return len(message.content) + len(message.reasoning) + calls


def _spec_size(tool: ToolSpec) -> int:
  """Characters of the declaration of a tool."""
  return len(tool.name) + len(tool.description) + len(json_text(dict(tool.parameters)))


def _seen(task: asyncio.Task[list[Reply]]) -> None:
  """Reads the outcome of a task whose caller went away, so that asyncio does not complain."""
  if not task.cancelled():
    task.exception()
