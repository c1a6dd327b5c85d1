"""Serves the tools of an agent to MCP clients, over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from typing import Any

from jaxrl_agents.agents.agent import Agent, Tasks
from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness import mcp_tools
from jaxrl_agents.harness.tools import outcome
from jaxrl_agents.runs import agent_setting
from jaxrl_agents.types import Task, ToolCall

SHOWN_IDS = 3


def serve(config: RunConfig, task_id: str) -> None:
  """Serves the tools of the config's agent until the client closes the input.

  Args:
    config: of a run; its tasks are made, or read from the cache, before the first answer.
    task_id: of the task that the tools are about; "" for none.

  Raises:
    ValueError: the package mcp is missing, there is no such task, or the agent serves no tools.
  """
  mcp_tools.require()
  agent = agent_setting.agent(config)
  with contextlib.redirect_stdout(sys.stderr):  # the output is the protocol's
    setting = agent_setting.setting(config)
    tasks = agent.tasks(setting, functools.partial(print, file=sys.stderr))
    services = agent.services(setting.chat, setting.options, tasks.shared)
  task = _task(tasks, task_id)
  try:
    asyncio.run(_serve(agent, task, services))
  except ValueError as error:
    ids = ", ".join(each.id for each in tasks.sample("train", SHOWN_IDS, config.seed))
    raise ValueError(f"{error} (tasks of this config are {ids}, ...)") from error


async def _serve(agent: Agent, task: Task | None, services: Any) -> None:
  from mcp import MCPError, types
  from mcp.server import Server
  from mcp.server.stdio import stdio_server

  async with agent.tools_to_serve(task, services) as tools:
    one_at_a_time = asyncio.Lock()

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
      specs = [tool.spec for tool in tools.values()]
      listed = [
        types.Tool(
          name=spec.name,
          description=spec.description,
          input_schema={"additionalProperties": False, **spec.parameters},
        )
        for spec in specs
      ]
      return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
      if params.name not in tools:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
      async with one_at_a_time:
        text, failed = await outcome(tools, ToolCall("", params.name, params.arguments or {}))
      return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], is_error=failed
      )

    server = Server(
      f"jaxrl_agents_{agent.name}",
      instructions=task.prompt if task else None,
      on_list_tools=list_tools,
      on_call_tool=call_tool,
    )
    async with stdio_server() as (read, write):
      await server.run(read, write, server.create_initialization_options())


def _task(tasks: Tasks, task_id: str) -> Task | None:
  """The task of an id, of whatever split; None for "".

  Raises:
    ValueError: there is none.
  """
  if not task_id:
    return None
  every = {task.id: task for split in tasks.tasks.values() for task in split}
  if task_id not in every:
    ids = ", ".join(list(every)[:SHOWN_IDS])
    raise ValueError(f"there is no task {task_id!r}; there are {ids or 'none'}, ...")
  return every[task_id]
