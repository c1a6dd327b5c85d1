"""The episode: find out which of three shelves holds the coffee, with as few calls as possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from examples.tool_use.shops import Shops
from jaxrl_agents.agents import added_tools
from jaxrl_agents.agents.episode import Stop, TurnLoop
from jaxrl_agents.chat import Chat
from jaxrl_agents.harness.tools import Tool, run_call
from jaxrl_agents.types import Context, Message, Task, ToolCall, Trajectory


@dataclasses.dataclass(frozen=True)
class Services:
  """What the episodes of one worker process share."""

  chat: Chat
  options: object
  shops: Shops


class ShopEnv:
  """One question. A reply with calls is answered by the tool; any other reply is the answer."""

  def __init__(self, task: Task, services: Services):
    tool = services.shops.look_tool(task.facts["shop"])
    self._tools = {tool.spec.name: tool}
    self._right, self._options = task.facts["right"], services.options
    self._messages = [Message("user", task.prompt)]
    self._calls, self._chat = 0, services.chat
    self._loop = TurnLoop(
      services.chat.stop_tokens,
      max_turns=services.options.max_turns,
      cut_off="Your reply was cut off. Give a shorter one.",
      run_calls=self._run_calls,
    )

  def add_tools(self, tools: Sequence[Tool]) -> None:
    """Takes the tools of `--set tools.mcp`, and cuts their results to half of a context."""
    most, count = self._options.token_budget // 2, self._chat.count
    self._tools |= added_tools.checked(tools, self._tools, max_tokens=lambda: most, count=count)

  async def start(self) -> Context:
    """The question."""
    return self._context()

  async def step(self, reply: Message) -> Context:
    """Runs the calls of a reply, or takes it for the answer."""
    stop = await self._loop.take(reply, self._messages) or ""
    tokens = len(self._chat.render(self._messages, [t.spec for t in self._tools.values()]))
    if not stop and tokens + self._options.max_new_tokens > self._options.token_budget:
      stop = Stop.CONTEXT_OVERFLOW  # an episode of its own doing, whose calls still cost
    return self._context(stop)

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """The parts; `ToolUseAgent.reward` weighs them."""
    answer = self._messages[-1].content.strip() if trajectory.stop == "answer" else ""
    return {"right": float(answer == self._right), "calls": float(self._calls)}

  async def close(self) -> None:
    """An episode holds nothing that must be closed."""

  async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Message]:
    self._calls += len(calls)
    results = [await run_call(self._tools, call) for call in calls]
    return [
      Message("tool", text, tool_call_id=call.id) for call, text in zip(calls, results, strict=True)
    ]

  def _context(self, stop: str = "") -> Context:
    return Context(
      messages=tuple(self._messages),
      tools=tuple(tool.spec for tool in self._tools.values()),
      max_new_tokens=self._options.max_new_tokens,
      done=bool(stop),
      stop=stop,
    )
