"""Plays one episode: render, generate, parse, step, until the environment is done.

The same loop serves a policy and a scripted player (`harness.scripted_player`). Token ids are the
truth: what was sampled is kept as it is and never re-tokenised.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.harness.segments import Turn, routed_tokens, to_segments
from jaxrl_agents.types import (
  Context,
  Env,
  Generation,
  Group,
  Message,
  Sampler,
  SamplingLimits,
  Task,
  Trajectory,
  Watch,
  WatchedSampler,
)

T = TypeVar("T")
CLOSE_S = 120.0
"""Most seconds that closing an environment may take."""


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How episodes are sampled and how long they may take.

  Attributes:
    seed: with (task, rollout, turn) it determines the seed of each generation.
    max_new_tokens: of a turn; the environment may allow less.
    generate_deadline_s: for one generation, and for what is compiled for it.
    episode_deadline_s: for the whole episode.
  """

  temperature: float = 1.0
  top_p: float = 1.0
  seed: int = 0
  max_new_tokens: int = 2_048
  generate_deadline_s: float = 600.0
  episode_deadline_s: float = 1_800.0


class EpisodeError(RuntimeError):
  """An episode failed for a reason that is not the policy's; the message says which."""


class SamplerRefused(EpisodeError):
  """The sampler cannot serve a request: it serves no such policy, say. No episode can go on."""


@dataclasses.dataclass
class Record:
  """What an episode left so far; invariant: `turns`, `log` and `children` only grow."""

  turns: list[Turn] = dataclasses.field(default_factory=list)
  log: list[Message] = dataclasses.field(default_factory=list)
  children: list[Trajectory] = dataclasses.field(default_factory=list)
  generate_s: float = 0.0
  tools_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Pinned:
  """A sampler that requests one named policy from another sampler, whatever the limits name."""

  sampler: Sampler
  policy: str

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """Forwards the request with the policy set."""
    named = dataclasses.replace(limits, policy=self.policy)
    return await self.sampler.generate(prompt, named)

  def playing(self, more: int) -> None:
    """Forwards the number."""
    self.sampler.playing(more)


async def at_once(playing: Callable[[int], None], players: Sequence[Awaitable[T]]) -> list[T]:
  """Runs several players concurrently where one played before, and returns their results in order.

  Calls `playing` with the number of additional players, and with -1 as each ends
  (Sampler.playing); where one raises, only after the others were ended and their requests dropped.
  """
  more = max(len(players) - 1, 0)

  async def counted(player: Awaitable[T]) -> T:
    nonlocal more
    result = await player
    if more:
      more -= 1
      playing(-1)
    return result

  if more:
    playing(more)
  try:
    return await all_or_none(*(counted(player) for player in players))
  finally:
    if more:
      playing(-more)


async def all_or_none(*parts: Coroutine[Any, Any, Any]) -> list[Any]:
  """The results of parts that run at the same time. If one raises, the others are ended first."""
  tasks = [asyncio.ensure_future(part) for part in parts]
  try:
    return await asyncio.gather(*tasks)
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def turn_seed(seed: int, task_id: str, rollout: int, turn: int) -> int:
  """The seed of one generation, a non-negative int32 that depends on all four and nothing else."""
  text = f"{seed}\0{task_id}\0{rollout}\0{turn}".encode()
  return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") & 0x7FFFFFFF


async def run_episode(
  env: Env,
  chat: Chat,
  sampler: Sampler,
  *,
  task: Task,
  sampling: Sampling,
  rollout: int = 0,
  record: Record | None = None,
) -> Trajectory:
  """Plays `env` to its end and returns the rewarded trajectory.

  Raises:
    EpisodeError: a deadline passed or the sampler broke its contract. Exceptions of the sampler and
      of the environment propagate. `record` then holds what was played.
  """
  record = Record() if record is None else record
  started = time.monotonic()
  deadline = asyncio.timeout(sampling.episode_deadline_s)
  try:
    async with deadline:
      context = await begin(env, record)
      context = await play_turns(
        env, chat, sampler, context, task_id=task.id, sampling=sampling, rollout=rollout,
        record=record,
      )  # fmt: skip
  except TimeoutError as error:
    if not deadline.expired():
      raise
    raise EpisodeError(
      f"task {task.id} rollout {rollout}: not done after {time.monotonic() - started:.1f} s "
      f"(turn {len(record.turns)}, episode_deadline_s={sampling.episode_deadline_s:g})"
    ) from error
  finally:
    await _closed(env, task, rollout)
  return finished(env, record, task=task, stop=context.stop, wall_s=time.monotonic() - started)


async def _closed(env: Env, task: Task, rollout: int) -> None:
  closing = asyncio.timeout(CLOSE_S)
  try:
    async with closing:
      await env.close()
  except TimeoutError as error:
    if not closing.expired():
      raise
    raise EpisodeError(
      f"task {task.id} rollout {rollout}: its environment was not closed within {CLOSE_S:g} s"
    ) from error


def finished(env: Env, record: Record, *, task: Task, stop: str, wall_s: float) -> Trajectory:
  """The rewarded trajectory of an episode that has ended."""
  trajectory = Trajectory(
    task_id=task.id,
    segments=to_segments(record.turns),
    log=tuple(record.log),
    rewards={},
    stop=stop,
    metrics=_metrics(record, wall_s),
    children=tuple(record.children),
  )
  return dataclasses.replace(trajectory, rewards=env.rewards(trajectory))


@runtime_checkable
class SelfDriven(Protocol):
  """An episode that asks for replies when it likes, in the place of an environment that is stepped:
  an agent with a loop of its own.
  """

  async def play(
    self, sampler: Sampler, *, task: Task, sampling: Sampling, rollout: int
  ) -> Trajectory:
    """Plays to the end and returns the rewarded trajectory; an error of its own is data."""
    ...


MakeRollout = Callable[[Task, int, Sampler], tuple[Env | SelfDriven, Sampler]]
"""(task, seed of the rollout, sampler of the policy) -> the environment, or an episode that drives
itself, and who plays it.
"""


Grade = Callable[[Task, str, Trajectory], Awaitable[Trajectory]]
"""(task, id of the group, finished rollout) -> the rollout with further parts of the reward."""


async def run_group(
  make_episode: MakeRollout,
  task: Task,
  num_rollouts: int,
  *,
  chat: Chat,
  sampler: Sampler,
  sampling: Sampling,
  group_id: str = "",
  grade: Grade | None = None,
) -> Group:
  """Plays `num_rollouts` episodes of one task at the same time, and has each graded as it ends.

  An episode that raises becomes a trajectory with `error` and without rewards or segments; the
  others are not affected. So does one whose grading raises, and one that waits for what is
  cancelled.
  """

  async def one(rollout: int) -> Trajectory:
    record = Record()
    try:
      played = await play(rollout, record)
      return await grade(task, group_id, played) if grade else played
    except asyncio.CancelledError:  # that of the whole group is raised by `gather` all the same
      text = f"task {task.id} rollout {rollout}: something that it waited for was cancelled"
      return failed(task, record, EpisodeError(text))
    except Exception as error:
      return failed(task, record, error)

  async def play(rollout: int, record: Record) -> Trajectory:
    env, player = make_episode(task, turn_seed(sampling.seed, task.id, rollout, -1), sampler)
    if isinstance(env, SelfDriven):
      return await env.play(player, task=task, sampling=sampling, rollout=rollout)
    return await run_episode(
      env,
      chat,
      player,
      task=task,
      sampling=sampling,
      rollout=rollout,
      record=record,
    )

  played = await asyncio.gather(*(one(i) for i in range(num_rollouts)))
  return Group(task, tuple(played), group_id)


def failed(task: Task, record: Record, error: Exception) -> Trajectory:
  """The typed record of an episode that raised: never a reward of 0."""
  return Trajectory(
    task_id=task.id,
    segments=(),
    log=tuple(record.log),
    rewards={},
    stop="",
    metrics={"turns": float(len(record.turns))},
    children=tuple(record.children),
    error=f"{type(error).__name__}: {error}",
  )


async def begin(env: Env, record: Record) -> Context:
  """Starts `env`; what it shows that the record lacks goes into its log."""
  context = await env.start()
  record.log.extend(unseen(context.messages, record.log))
  return context


async def play_turns(
  env: Env,
  chat: Chat,
  sampler: Sampler,
  context: Context,
  *,
  task_id: str,
  sampling: Sampling,
  rollout: int,
  record: Record,
  max_turns: int | None = None,
) -> Context:
  """Plays on from `context` until the episode is done, or for `max_turns` turns."""
  last = math.inf if max_turns is None else len(record.turns) + max_turns
  while not context.done and len(record.turns) < last:
    prompt = chat.render(context.messages, context.tools)
    limits = SamplingLimits(
      max_new_tokens=min(
        sampling.max_new_tokens, context.max_new_tokens or sampling.max_new_tokens
      ),
      stop_tokens=chat.stop_tokens,
      temperature=sampling.temperature,
      top_p=sampling.top_p,
      seed=turn_seed(sampling.seed, task_id, rollout, len(record.turns)),
      deadline_s=sampling.generate_deadline_s,
      routed_tokens=routed_tokens(record.turns, prompt),
    )
    began = time.monotonic()
    generation = await generate(sampler, prompt, limits)
    record.generate_s += time.monotonic() - began
    reply = _reply(chat, generation, turn=len(record.turns))
    record.turns.append(Turn(prompt, generation))
    record.log.append(reply)
    began = time.monotonic()
    context = await env.step(reply)
    record.tools_s += time.monotonic() - began
    record.children.extend(context.children)
    record.log.extend(unseen(context.messages, record.log))
  return context


async def generate(
  sampler: Sampler, prompt: np.ndarray, limits: SamplingLimits, watch: Watch | None = None
) -> Generation:
  """Asks for one generation and checks it. It is watched if the sampler can do that.

  Raises:
    EpisodeError: it took longer than `limits.deadline_s`, or the sampler broke its contract.
  """
  if watch is not None and isinstance(sampler, WatchedSampler):
    asked = sampler.watched(prompt, limits, watch)
  else:
    asked = sampler.generate(prompt, limits)
  try:
    async with asyncio.timeout(limits.deadline_s):
      generation = await asked
  except TimeoutError as error:
    raise EpisodeError(
      f"no generation within {limits.deadline_s:g} s for a prompt of {len(prompt)} tokens"
    ) from error
  n = len(generation.tokens)
  if not 0 < n <= limits.max_new_tokens:
    raise EpisodeError(
      f"the sampler returned {n} tokens; 1 to {limits.max_new_tokens} were asked for"
    )
  if len(generation.logprobs) != n or len(generation.versions) != n:
    raise EpisodeError(
      f"the sampler returned {n} tokens but {len(generation.logprobs)} logprobs and "
      f"{len(generation.versions)} versions"
    )
  expected = len(prompt) + n - limits.routed_tokens
  if generation.routing is not None and len(generation.routing) != expected:
    raise EpisodeError(
      f"the sampler returned {len(generation.routing)} routing rows for {len(prompt)} + {n} tokens "
      f"after the first {limits.routed_tokens}, not {expected}"
    )
  return generation


def _reply(chat: Chat, generation: Generation, turn: int) -> Message:
  """The parsed turn, its tokens as sampled, its call ids unique in the episode."""
  reply = chat.parse(generation.tokens)
  calls = tuple(
    dataclasses.replace(call, id=f"{turn}.{i}") for i, call in enumerate(reply.tool_calls)
  )
  return dataclasses.replace(reply, tool_calls=calls, tokens=generation.tokens)


def unseen(messages: Sequence[Message], log: Sequence[Message]) -> list[Message]:
  """The messages of a context that the log lacks.

  A tool result is known by its call, so that a pruned one is not new; a one-time message is new
  each time it is shown; replies enter the log when they are sampled.
  """
  known = collections.Counter(_key(m) for m in log if not m.ephemeral)
  new = []
  for message in messages:
    if message.role == "assistant" and message.tokens is not None:
      continue
    if message.ephemeral:
      new.append(message)
    elif known[_key(message)]:
      known[_key(message)] -= 1
    else:
      new.append(message)
  return new


def _key(message: Message) -> tuple[str, str]:
  return (message.role, message.tool_call_id or message.content)


def _metrics(record: Record, wall_s: float) -> dict[str, float]:
  replies = [len(turn.generation.tokens) for turn in record.turns]
  return {
    "turns": float(len(replies)),
    "sampled_tokens": float(sum(replies)),
    "truncated_turns": float(sum(t.generation.stop == "length" for t in record.turns)),
    "longest_context_tokens": float(
      max((len(t.prompt) + len(t.generation.tokens) for t in record.turns), default=0)
    ),
    "generate_s": record.generate_s,
    "tools_s": record.tools_s,
    "wall_s": wall_s,
  }
