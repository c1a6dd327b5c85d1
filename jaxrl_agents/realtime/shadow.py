"""The shadow stage: a candidate answers logged prompts, and nobody sees the replies."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence

from jaxrl_agents.chat import Chat
from jaxrl_agents.harness.rollout import generate
from jaxrl_agents.realtime import behaviour
from jaxrl_agents.realtime import calls as calls_lib
from jaxrl_agents.realtime.calls import LoggedCall
from jaxrl_agents.types import Sampler, SamplingLimits

AT_ONCE = 16


async def replay(
  calls: Sequence[LoggedCall],
  of_id: Callable[[str], LoggedCall],
  sampler: Sampler,
  chat: Chat,
  limits: SamplingLimits,
) -> list[dict[str, float]]:
  """`behaviour.figures` of the replies of a sampler to the prompts of logged calls.

  Args:
    calls: whose prompts are answered.
    of_id: the call of an id.
    sampler: of the candidate; or of the stable policy, for figures to compare with.
    chat: that reads the replies.
    limits: of each reply; call i has the seed `limits.seed` + i.

  Raises:
    RuntimeError: the sampler failed.
  """
  room = asyncio.Semaphore(AT_ONCE)

  async def one(number: int, call: LoggedCall) -> dict[str, float]:
    prompt = calls_lib.prompt(call, of_id)
    async with room:
      began = time.monotonic()
      drawn = dataclasses.replace(limits, seed=limits.seed + number)
      generation = await generate(sampler, prompt, drawn)
      latency_s = time.monotonic() - began
    return behaviour.figures(chat.parse(generation.tokens), generation, latency_s)

  return list(await asyncio.gather(*(one(i, call) for i, call in enumerate(calls))))
