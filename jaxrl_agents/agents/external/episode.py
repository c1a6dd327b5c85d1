"""One rollout of an existing agent: a session of the gateway, from start to reward."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import math
import pathlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.external import starting
from jaxrl_agents.agents.external.config import ExternalConfig
from jaxrl_agents.agents.external.starting import Address, Outcome
from jaxrl_agents.chat import Chat
from jaxrl_agents.config import import_path
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.server import MISSING, Server
from jaxrl_agents.gateway.sessions import Limits, Served, Session
from jaxrl_agents.harness.rollout import EpisodeError, Sampling
from jaxrl_agents.types import Message, Sampler, Task, ToolSpec, Trajectory

Player = Callable[[Task, Sequence[Message], Sequence[ToolSpec], int], Message]
"""(task, messages, tools, seed) -> the reply, in the place of a policy."""


class ExternalServices:
  """What the rollouts of one worker process share: the gateway, which starts with the first one.

  Raises:
    ValueError: starlette or uvicorn is not installed.
  """

  def __init__(self, chat: Chat, options: ExternalConfig):
    self.chat, self.options = chat, options
    self.registry = Registry()
    self.at_once = asyncio.Semaphore(options.at_once)
    self._starting = asyncio.Lock()
    try:
      from jaxrl_agents.gateway import app
    except ModuleNotFoundError as error:
      raise ValueError(MISSING) from error
    # Nobody is told the service key: sessions are opened by the rollouts alone.
    key = secrets.token_urlsafe(24)
    self._server = Server(app.make_app(self.registry, service_key=key), options.host)

  async def url(self) -> str:
    """The address of the gateway."""
    async with self._starting:
      if not self._server.url:
        await self._server.start()
    return self._server.url


class ExternalEpisode:
  """One rollout. It plays itself (harness.rollout.SelfDriven).

  Args:
    task: of the rollout.
    services: of the worker.
    player: answers in the place of the policy; None for the policy.
    seed: of the player's draws.
  """

  def __init__(
    self, task: Task, services: ExternalServices, player: Player | None = None, seed: int = 0
  ):
    self._task, self._services = task, services
    self._player, self._seed = player, seed

  async def play(
    self, sampler: Sampler, *, task: Task, sampling: Sampling, rollout: int
  ) -> Trajectory:
    """Opens a session, starts the agent, waits for its end, and measures the reward.

    Raises:
      EpisodeError: the agent made no call, the sampler failed, or there is no reward.
    """
    options = self._services.options
    async with self._services.at_once:
      began = time.monotonic()
      session = self._session(sampler, sampling, rollout)
      folder = pathlib.Path(tempfile.mkdtemp(prefix="agent-"))
      try:
        outcome = await self._run(session, folder)
        await session.finish("time_limit" if outcome.timed_out else "answer")
        trajectory = session.trajectory(task.id, options.trains)
        if trajectory.error:
          raise EpisodeError(trajectory.error)
        if not trajectory.segments:
          said = outcome.errors.strip()[-500:] or outcome.output.strip()[-500:]
          raise EpisodeError(
            f"the agent of task {task.id} made no call that could be trained (exit status "
            f"{outcome.exit_status}{', timed out' if outcome.timed_out else ''}); it said: {said}"
          )
        rewards = await self._rewards(outcome, trajectory)
      finally:
        self._services.registry.remove(session)
        shutil.rmtree(folder, ignore_errors=True)
    failed = {"agent_failed": float(outcome.exit_status != 0)}
    metrics = {**trajectory.metrics, **failed, "wall_s": time.monotonic() - began}
    return dataclasses.replace(trajectory, rewards=rewards, metrics=metrics)

  def _session(self, sampler: Sampler, sampling: Sampling, rollout: int) -> Session:
    options, chat = self._services.options, self._services.chat
    served = Served(chat, sampler, sampling, options.token_budget, training=True)
    if player := self._player:
      answer = lambda messages, tools: player(self._task, messages, tools, self._seed)
      served = dataclasses.replace(served, answer=answer)
    limits = Limits(calls=options.max_calls, ttl_s=2 * options.timeout_s)
    text = f"{sampling.seed}\0{self._task.id}\0{rollout}"
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    session = Session(served, limits, id=name, seed_text=text)
    return self._services.registry.add(session)

  async def _run(self, session: Session, folder: pathlib.Path) -> Outcome:
    options = self._services.options
    url = await self._services.url()
    address = Address(url, session.key, session.control_key, session.id)
    if options.command:
      return await starting.command(options.command, self._task, address, folder, options.timeout_s)
    if options.function:
      call = import_path.load(options.function, "external.function")
      return await starting.function(call, self._task, address, folder, options.timeout_s)
    return await starting.hook(
      options.hook, self._task, address, session.finished, folder, options.timeout_s
    )

  async def _rewards(self, outcome: Outcome, trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, from the user's function or from the control plane."""
    options = self._services.options
    if not options.reward:
      if "reward" not in trajectory.rewards:
        raise EpisodeError(
          f"no reward was attached to the session of task {self._task.id}; attach a part named "
          "'reward' before it is finished, or set external.reward"
        )
      return dict(trajectory.rewards)
    measure = import_path.load(options.reward, "external.reward")
    measured = functools.partial(measure, self._task, outcome, trajectory)
    deadline = asyncio.timeout(options.timeout_s)
    try:
      async with deadline:
        found = await starting.in_thread(measured)
    except TimeoutError:
      if not deadline.expired():
        raise
      raise EpisodeError(f"external.reward took longer than {options.timeout_s:g} s") from None
    return parts_of(found)


def parts_of(found: Any) -> dict[str, float]:
  """The parts of a reward: a number is the part "reward".

  Raises:
    EpisodeError: it is neither a number nor parts with one of that name, or a part is not finite.
  """
  parts = dict(found) if isinstance(found, Mapping) else {"reward": found}
  try:
    parts = {str(name): float(value) for name, value in parts.items()}
  except (TypeError, ValueError):
    parts = {}
  if "reward" not in parts or not all(map(math.isfinite, parts.values())):
    raise EpisodeError(
      f"external.reward returned {found!r}; return a finite number, or parts by name with one "
      "called 'reward'"
    )
  return parts
