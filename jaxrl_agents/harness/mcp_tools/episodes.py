"""Gives the tools of a run's MCP servers to environments, in a worker process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from jaxrl_agents.harness.mcp_tools.connection import CannotConnect
from jaxrl_agents.harness.mcp_tools.listing import Listing
from jaxrl_agents.harness.mcp_tools.sandboxed import Sandbox
from jaxrl_agents.harness.mcp_tools.session import PAUSE_S, Session
from jaxrl_agents.harness.rollout import EpisodeError, all_or_none
from jaxrl_agents.harness.tools import Tool
from jaxrl_agents.types import Context, Env, EnvWithSandbox, EnvWithTools, Message, Trajectory

STARTS_AT_ONCE = 2
"""Servers that a worker starts at the same time: more would only make one another late."""
TRIES = 2
"""How often an episode tries to start a server before it counts as failed."""


class Sessions:
  """The sessions of a worker process: one of each stateless server, and those of the episodes.

  All uses must be in one event loop.
  """

  def __init__(self, listing: Listing):
    self._listing = listing
    self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
    self._shared = {
      server.name: self._session(server.name) for server in listing.servers if not server.stateful
    }

  def of_episode(
    self, box: Callable[[], Sandbox | None]
  ) -> tuple[list[Session], list[Session], list[Session]]:
    """(sessions of an episode outside of its sandbox, those in it, those that end with it).

    Args:
      box: the present sandbox of the episode.
    """
    own = {s.name: self._session(s.name, box) for s in self._listing.servers if s.stateful}
    every = {**self._shared, **own}
    outside = [every[s.name] for s in self._listing.servers if not s.sandboxed]
    inside = [every[s.name] for s in self._listing.servers if s.sandboxed]
    return outside, inside, list(own.values())

  @property
  def packages(self) -> tuple[str, ...]:
    """The packages that sandboxes must have for the servers in them."""
    named = (name for server in self._listing.servers for name in server.packages)
    return tuple(sorted(set(named)))

  def _session(self, name: str, box: Callable[[], Sandbox | None] = lambda: None) -> Session:
    server = next(each for each in self._listing.servers if each.name == name)
    box = box if server.sandboxed else lambda: None
    return Session(server, self._listing.tools[name], self._starts, box)


class EnvWithMcpTools:
  """An environment with the tools of `sessions` beside its own."""

  def __init__(self, env: Env, sessions: Sessions):
    self._env, self._packages = env, sessions.packages
    self._outside, self._inside, self._own = sessions.of_episode(
      lambda: cast(EnvWithSandbox, self._env).sandbox
    )

  async def start(self) -> Context:
    """Connects to the servers, then starts the environment, then the servers in its sandbox.

    Raises:
      EpisodeError: a server cannot be started; the fault is the machine's, not the policy's.
    """
    await all_or_none(*map(_connected, self._outside))
    cast(EnvWithTools, self._env).add_tools(_tools(self._outside))
    if self._inside:
      tools = _tools(self._inside)
      cast(EnvWithSandbox, self._env).add_sandboxed_tools(tools, self._packages)
    context = await self._env.start()
    await all_or_none(*map(_connected, self._inside))
    return context

  async def step(self, reply: Message) -> Context:
    """Steps the environment."""
    return await self._env.step(reply)

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """The rewards of the environment."""
    return self._env.rewards(trajectory)

  async def close(self) -> None:
    """Closes the environment and the sessions of this episode."""
    try:
      await self._env.close()
    finally:
      await asyncio.gather(*(session.close() for session in self._own))


def _tools(sessions: list[Session]) -> list[Tool]:
  return [tool for session in sessions for tool in session.tools]


async def _connected(session: Session) -> None:
  for is_last in (*(False,) * (TRIES - 1), True):
    try:
      await session.connect()
      return
    except CannotConnect as error:
      if is_last:
        raise EpisodeError(f"an MCP server cannot be used: {error}") from error
      await asyncio.sleep(PAUSE_S)
