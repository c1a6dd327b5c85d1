"""Each agent lists the tools that a run adds, runs their calls, and cuts what they return."""

import asyncio
import dataclasses

import pytest

from jaxrl_agents.agents import added_tools
from jaxrl_agents.agents.coding import env as coding
from jaxrl_agents.agents.search import env as search
from jaxrl_agents.harness.tools import Tool, run_call
from jaxrl_agents.types import Message, ToolCall, ToolSpec
from tests.agents.coding import bench
from tests.agents.search import arena as search_arena
from tests.agents.swarm import arena as swarm_arena

SPEC = ToolSpec("time_now", "Tells\n the time.", {"type": "object"})
CALL = ToolCall("", "time_now", {})


def clock(text="noon"):
  return Tool(SPEC, lambda: text, strict=False)


def test_a_name_that_is_taken_is_an_error():
  with pytest.raises(ValueError, match="there is a tool 'time_now' already"):
    added_tools.checked([clock()], {"time_now": clock()}, max_tokens=lambda: 9, count=len)


def test_results_are_cut_to_the_limit_at_the_time_of_the_call():
  limit = 300
  tools = added_tools.checked([clock("ab" * 500)], {}, max_tokens=lambda: limit, count=len)
  first = asyncio.run(run_call(tools, CALL))
  limit = 100
  second = asyncio.run(run_call(tools, CALL))
  assert 200 < len(first) <= 300 and 50 < len(second) <= 100
  assert "characters left out]" in second and second.startswith("ab") and second.endswith("ab")


def test_a_search_calls_an_added_tool_and_its_prompt_names_it(limited):
  services = limited(system_prompt="environment", token_budget=4_000, threshold_tokens=2_000)
  env = search.make(search_arena.make_task(), services)
  env.add_tools([clock("a b " * 1_000)])
  context = asyncio.run(env.start())
  assert [tool.name for tool in context.tools][-1] == "time_now"
  assert context.messages[0].content.endswith("\n\nFurther tools:\n- time_now(): Tells the time.")
  context = asyncio.run(env.step(Message("assistant", "", (CALL,))))
  assert "characters left out]" in context.messages[-1].content
  assert services.chat.count(context.messages[-1].content) < 260  # 224, and the usage line


def test_sub_agents_have_the_tools_of_their_swarm(services):
  shared = swarm_arena.swarm_services(services)
  ask = [Message("assistant", "", (CALL,)), Message("assistant", "It is told.")]
  task = swarm_arena.swarm_task(max_steps=12)
  turns = [
    swarm_arena.turn(CALL),
    swarm_arena.turn(swarm_arena.create()),
    swarm_arena.turn(swarm_arena.assign()),
  ]
  env, _ = swarm_arena.episode(shared, turns, lambda assignment: ask, task)
  env.add_tools([clock()])

  async def play():
    context = await env.start()
    assert context.tools[-1] == SPEC
    told = []
    for i, message in enumerate(turns):
      calls = tuple(dataclasses.replace(call, id=str(i)) for call in message.tool_calls)
      context = await env.step(dataclasses.replace(message, tool_calls=calls))
      told.append(context.messages[-1].content)
    return told, context.children

  told, (child,) = asyncio.run(play())
  assert told[0].startswith("noon")
  assert [m.content[:4] for m in child.log if m.role == "tool"] == ["noon"]


@pytest.mark.slow
def test_a_sandbox_that_comes_back_does_not_repeat_the_calls_of_added_tools():
  asked = []
  tool = Tool(SPEC, lambda: asked.append(1) or "noon", strict=False)

  async def body(workshop):
    env = coding.make(bench.CALL_TASK, bench.services(workshop, snapshot_turns=4))
    env.add_tools([tool])
    context = await env.start()
    assert context.tools[-1] == SPEC
    write = ToolCall("1", "write_file", {"path": "new.txt", "content": "kept"})
    await env.step(Message("assistant", "", (dataclasses.replace(CALL, id="0"), write)))
    env._workspace.lost = True  # as a sandbox that broke between two turns
    read = ToolCall("3", "read_file", {"path": "new.txt"})
    context = await env.step(Message("assistant", "", (read,)))
    await env.close()
    return context.messages[-1].content

  assert "kept" in bench.run(body)
  assert asked == [1]
