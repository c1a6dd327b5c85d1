"""A scripted player in the place of a policy, for demonstrations and tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.types import (
  Context,
  Env,
  EnvWithSandbox,
  EnvWithTools,
  Generation,
  Message,
  SamplingLimits,
)


class Scripted:
  """A scripted player in the place of a policy: passes `env` on and answers for the sampler.

  Invariant: `generate` speaks to the context that `start` or `step` returned last. Its tokens have
  logprob 0 and version -1: no weights sampled them. They are not trained where `play` says of its
  last turn, by an attribute `erred`, that it was a mistake. `play` may also return an awaitable.
  """

  def __init__(self, env: Env, chat: Chat, play: Callable[[Context], Message | Awaitable[Message]]):
    self._env, self._chat, self._play = env, chat, play
    self._context = Context(messages=())
    self.rewards = env.rewards
    self.close = env.close

  def add_tools(self, tools: Sequence[Any]) -> None:
    """Gives the environment further tools, if it takes any."""
    cast(EnvWithTools, self._env).add_tools(tools)

  def add_sandboxed_tools(self, tools: Sequence[Any], packages: Sequence[str]) -> None:
    """Gives the environment the tools of programs in its sandbox, if it has one."""
    cast(EnvWithSandbox, self._env).add_sandboxed_tools(tools, packages)

  @property
  def sandbox(self) -> Any:
    """The sandbox of the environment."""
    return cast(EnvWithSandbox, self._env).sandbox

  async def start(self) -> Context:
    """Starts the environment."""
    self._context = await self._env.start()
    return self._context

  async def step(self, reply: Message) -> Context:
    """Steps the environment."""
    self._context = await self._env.step(reply)
    return self._context

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """The player's turn as tokens, cut at `limits.max_new_tokens` as a policy's would be."""
    played = self._play(self._context)
    reply = played if isinstance(played, Message) else await played
    generation = spoken(self._chat, reply, self._context.messages, limits.max_new_tokens)
    return dataclasses.replace(generation, trained=not getattr(self._play, "erred", False))

  def playing(self, more: int) -> None:
    """Nobody waits for a scripted player's requests."""


def spoken(
  chat: Chat, reply: Message, earlier: Sequence[Message], max_new_tokens: int
) -> Generation:
  """What a policy that said `reply` after the messages `earlier` would have sampled, cut at
  `max_new_tokens`.
  """
  tokens = chat.encode_reply(reply, earlier)
  stop = "stop" if len(tokens) <= max_new_tokens else "length"
  tokens = tokens[:max_new_tokens]
  return Generation(
    tokens=tokens,
    logprobs=np.zeros(len(tokens), np.float32),
    versions=np.full(len(tokens), -1, np.int32),
    routing=None,
    stop=stop,
  )
