"""Ways to call the tools of a server in tests."""

import asyncio
import functools
import importlib.util
import pathlib
import sys
import time

import pytest

from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.tools import run_call
from jaxrl_agents.types import ToolCall

ODD = str(pathlib.Path(__file__).with_name("odd_server.py"))
needs_mcp = pytest.mark.skipif(not importlib.util.find_spec("mcp"), reason="needs the extra mcp")


def odd(name="odd", **options):
  return McpServer(name, sys.executable, (ODD,), **{"deadline_s": 20.0, **options})


@functools.cache
def listing_of(command, tools):
  """What a server says of its tools, asked for once."""
  from jaxrl_agents.harness.mcp_tools import listing

  return listing.ask([McpServer("odd", *command, tools=tools)], [])


def called(server, *calls, listed=None):
  """The observations of calls (name of the tool at the server, arguments), one after another."""
  from jaxrl_agents.harness.mcp_tools.session import Session

  async def play(listed):
    made = Session(server, listed, asyncio.Semaphore(1))
    tools = {tool.spec.name: tool for tool in made.tools}
    try:
      return [
        await run_call(tools, ToolCall("", f"{server.name}_{name}", arguments))
        for name, arguments in calls
      ]
    finally:
      await made.close()

  asked = listed or listing_of((server.command, server.args), server.tools).tools["odd"]
  return asyncio.run(play(asked))


def wait_until_dead(pids, limit_s=10.0):
  deadline = time.monotonic() + limit_s
  for pid in pids:
    while is_alive(pid):
      assert time.monotonic() < deadline, f"process {pid} is still alive"
      time.sleep(0.02)


def is_alive(pid):
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False
  return stat.rpartition(")")[2].split()[0] != "Z"
