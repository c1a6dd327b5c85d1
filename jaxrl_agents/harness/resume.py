"""Episodes that go on from snapshots: after a fault, and as branches of one beginning.

An environment that can be gone on with takes snapshots between turns; a fresh one, made from a
snapshot, starts with the context that was next. The record of the turns goes with it, so that what
was sampled is neither sampled again nor lost.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

from jaxrl_agents.chat import Chat
from jaxrl_agents.harness.rollout import (
  EpisodeError,
  MakeEpisode,
  Record,
  Sampling,
  begin,
  failed,
  finished,
  play_turns,
  run_episode,
  turn_seed,
)
from jaxrl_agents.types import Env, Group, Sampler, Task, Trajectory


class Resumable(Env, Protocol):
  """An environment whose state can be kept. `forget` gives a state's resources back."""

  async def snapshot(self) -> Any: ...

  def forget(self, state: Any) -> None: ...


Restore = Callable[[Task, Any, Sampler], tuple[Env, Sampler]]
"""(task, state, sampler of the policy) -> an environment that goes on there, and who plays it."""


@dataclasses.dataclass(frozen=True)
class Saved:
  """A state and the record of the turns that led to it."""

  state: Any
  record: Record


async def run_resumable(
  make_episode: MakeEpisode,
  restore: Restore,
  task: Task,
  *,
  chat: Chat,
  sampler: Sampler,
  sampling: Sampling,
  turns_between: int = 4,
  max_faults: int = 3,
  rollout: int = 0,
) -> Trajectory:
  """Plays an episode. After a fault it continues from its last snapshot, with everything sampled so
  far.
  """
  saved: Saved | None = None
  started, faults = time.monotonic(), 0
  seed = turn_seed(sampling.seed, task.id, rollout, -1)
  while True:
    left_s = sampling.episode_deadline_s - (time.monotonic() - started)
    record = saved.record.copy() if saved else Record()
    if saved:
      env, player = restore(task, saved.state, sampler)
    else:
      env, player = make_episode(task, seed, sampler)
    try:
      async with asyncio.timeout(max(left_s, 0.0)):
        context = await begin(env, record)
        while True:
          context = await play_turns(
            env, chat, player, context, task_id=task.id, sampling=sampling, rollout=rollout,
            record=record, max_turns=turns_between,
          )  # fmt: skip
          if context.done:
            break
          fresh = Saved(await env.snapshot(), record.copy())  # type: ignore[attr-defined]
          _give_back(env, saved)
          saved = fresh
      await env.close()
      _give_back(env, saved)
      wall_s = time.monotonic() - started
      return finished(env, record, task=task, stop=context.stop, wall_s=wall_s)
    except TimeoutError as error:
      await env.close()
      _give_back(env, saved)
      raise EpisodeError(
        f"task {task.id} rollout {rollout}: not done after {time.monotonic() - started:.1f} s "
        f"(turn {len(record.turns)}, episode_deadline_s={sampling.episode_deadline_s:g})"
      ) from error
    except Exception:
      await env.close()
      faults += 1
      if saved is None or faults > max_faults:
        _give_back(env, saved)
        raise


def _give_back(env: Env, saved: Saved | None) -> None:
  if saved:
    env.forget(saved.state)  # type: ignore[attr-defined]


async def run_branches(
  make_episode: MakeEpisode,
  restore: Restore,
  task: Task,
  num_rollouts: int,
  *,
  shared_turns: int,
  chat: Chat,
  sampler: Sampler,
  sampling: Sampling,
  group_id: str = "",
) -> Group:
  """A group whose rollouts share their first turns: played once, then branched from a snapshot.

  The shared turns are trained in the first rollout alone. An episode that ends within them is the
  only rollout of its group.
  """
  record = Record()
  env, player = make_episode(task, turn_seed(sampling.seed, task.id, 0, -1), sampler)
  try:
    async with asyncio.timeout(sampling.episode_deadline_s):
      context = await begin(env, record)
      context = await play_turns(
        env, chat, player, context, task_id=task.id, sampling=sampling, rollout=0, record=record,
        max_turns=shared_turns,
      )  # fmt: skip
    if context.done:
      await env.close()
      whole = finished(env, record, task=task, stop=context.stop, wall_s=0.0)
      return Group(task, (whole,), group_id)
    state = await env.snapshot()  # type: ignore[attr-defined]
  except Exception as error:
    await env.close()
    return Group(task, (failed(task, record, error),) * num_rollouts, group_id)

  async def one(rollout: int) -> Trajectory:
    own = record.copy(shared_turns=shared_turns if rollout else 0)
    try:
      branch, plays = restore(task, state, sampler)
      return await run_episode(
        branch, chat, plays, task=task, sampling=sampling, rollout=rollout, record=own,
      )  # fmt: skip
    except Exception as error:
      return failed(task, own, error)

  try:
    played = await asyncio.gather(*(one(i) for i in range(num_rollouts)))
    return Group(task, tuple(played), group_id)
  finally:
    env.forget(state)  # type: ignore[attr-defined]
    await env.close()
