"""The agent of examples/tool_use, with a player that calls the tools that its task names."""

import sys

from examples.tool_use.agent import ToolUseAgent
from examples.tool_use.env import ShopEnv
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Message, ToolCall


class AskingAgent(ToolUseAgent):
  """Its player makes one call a turn, and answers whether the worker has imported jax."""

  def player(self, name, task, services, seed, chat):
    calls = iter(task.facts["calls"])

    def play(context):
      call = next(calls, None)
      if call is None:
        return Message("assistant", f"jax: {'jax' in sys.modules}")
      return Message("assistant", "", (ToolCall("", *call),))

    return Scripted(ShopEnv(task, services), chat, play)


AGENT = AskingAgent()
