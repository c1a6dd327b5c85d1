"""Whatever a server in a sandbox does, the policy reads a text, and the next call finds another."""

import asyncio
import pathlib

import pytest

from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.tools import run_call
from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host.runtime import Runtime
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.types import ToolCall
from tests.harness.mcp_tools.servers import ODD, listing_of, needs_mcp, odd

pytestmark = [needs_mcp, pytest.mark.slow]
SOURCE = pathlib.Path(ODD).read_text()
RUNTIME = Runtime(packages=("mcp",))
TEST_S = 120.0
GONE = "for i in {{1..100}}; do pgrep {0} >/dev/null || break; sleep 0.1; done; pgrep -c {0}"
"""Says how many programs are left once those that were killed had time to end."""


def sandboxed(code=SOURCE, **options):
  given = {"deadline_s": 20.0, **options}
  return McpServer("odd", "python3", ("-c", code), sandboxed=True, packages=("mcp",), **given)


def listed():
  return listing_of((odd().command, odd().args), ()).tools["odd"]


def in_box(body):
  """`await body(box, boxes)` in a real sandbox with the packages of the server."""
  listed()  # asks in an event loop of its own

  async def whole():
    async with Sandboxes(runtime=RUNTIME) as boxes:
      async with await boxes.create(await boxes.base({"a.txt": "a\n"})) as box:
        return await body(box, boxes)

  try:
    return asyncio.run(asyncio.wait_for(whole(), TEST_S))
  except NoSandbox as error:
    pytest.skip(str(error))


def session_of(server, box, tools=None):
  from jaxrl_agents.harness.mcp_tools.session import Session

  made = Session(server, tools or listed(), asyncio.Semaphore(1), box)
  return made, {tool.spec.name: tool for tool in made.tools}


def called(server, *calls):
  """The observations of calls, one after another, and of a command of the shell after them."""

  async def body(box, boxes):
    session, tools = session_of(server, lambda: box)
    texts = [await run_call(tools, ToolCall("", f"odd_{name}", given)) for name, given in calls]
    await session.close()
    left = await box.exec(f"ls /work; {GONE.format('python3')}")
    return texts, left.output

  return in_box(body)


def test_a_server_in_a_sandbox_lists_the_same_tools_as_outside_of_it():
  from jaxrl_agents.harness.mcp_tools import listing

  try:
    found = listing.ask([sandboxed()], [], Sandboxes(runtime=RUNTIME))
  except ValueError as error:
    if "no sandbox" not in str(error):
      raise
    pytest.skip(str(error))
  assert found.tools["odd"] == listed()


def test_it_sees_the_files_of_the_sandbox_few_variables_and_ends_with_its_session(monkeypatch):
  monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret of the run")
  server = sandboxed(env=("OWN=given",))
  (where, once, again, wrong), left = called(
    server, ("where", {}), ("count", {}), ("count", {}), ("echo", {"text": 3})
  )
  folder, variables = where.split("\n")
  assert folder == "/work" and "OWN=given" in variables and "secret" not in variables
  assert (once, again) == ("1", "2")
  assert wrong == "Error: odd_echo: 'text' must be of type string, not integer 3."
  assert left == "a.txt\n0\n"


def test_a_server_in_a_sandbox_that_hangs_dies_or_floods_is_replaced():
  texts, left = called(
    sandboxed(deadline_s=5.0),
    *(("count", {}), ("hang", {}), ("count", {}), ("die", {}), ("flood_line", {})),
    *(("flood_messages", {}), ("huge", {}), ("count", {}), ("die_once", {"text": "mark"})),
  )
  anew = "Its server is started anew and what it held is lost."
  assert [texts[i] for i in (0, 2, 7, 8)] == ["1", "1", "1", "alive again"]
  assert texts[1] == f"Error: odd_hang took longer than 5 s. {anew} Ask for something simpler."
  assert texts[3] == f"Error: odd_die failed: it ended, and wrote: out of cheese. {anew}"
  assert texts[4] == f"Error: odd_flood_line failed: it wrote a line of more than 8 MiB. {anew}"
  assert texts[5] == (
    "Error: odd_flood_messages failed: it wrote more than 10000 lines without being asked again. "
    + anew
  )
  assert texts[6] == f"Error: odd_huge failed: it wrote a line of more than 8 MiB. {anew}"
  assert left == "a.txt\nmark\n0\n"


def test_a_call_after_its_sandbox_was_replaced_finds_a_server_in_the_new_one():
  async def body(box, boxes):
    present = [box]
    session, tools = session_of(sandboxed(), lambda: present[0])
    call = ToolCall("", "odd_count", {})
    texts = [await run_call(tools, call), await run_call(tools, call)]
    present += await box.fork()
    await present.pop(0).close()
    texts.append(await run_call(tools, call))
    hanging = asyncio.create_task(run_call(tools, ToolCall("", "odd_hang", {})))
    await asyncio.sleep(1.0)
    await boxes.kill(present[0].number)
    texts.append(await hanging)
    texts.append(await run_call(tools, call))
    present[0] = await boxes.create(box.start)
    texts.append(await run_call(tools, call))  # at once, not after a pause
    await session.close()
    await present[0].close()
    return texts

  texts = in_box(body)
  assert [texts[i] for i in (0, 1, 2, 5)] == ["1", "2", "1", "1"]
  assert texts[3].startswith("Error: odd_hang failed: its sandbox failed: ")
  assert texts[4].startswith("Error: odd_count cannot be used now: ")


def test_a_policy_that_forges_answers_can_make_the_client_check_nothing_by_schemas_of_its_own():
  # A schema with an expression that takes for ever, and a result that it is checked on.
  slow = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
  forged = SOURCE.replace(
    "async def list_tools(context, params):",
    f"SLOW = {slow}\n\n\nasync def list_tools(context, params):\n"
    "  for tool in TOOLS:\n    tool.output_schema = SLOW",
  ).replace(
    "async def count(_):",
    "async def count(_):\n  return text('1', structured_content={'x': 'a' * 60 + 'b'})",
  )
  assert forged.count("SLOW") == 2
  texts, _ = called(sandboxed(forged), ("count", {}))
  assert texts == ["1"]


def test_a_server_whose_start_fails_in_the_sandbox_is_an_error_that_says_why():
  async def body(box, boxes):
    found = []
    for server in (
      McpServer("odd", "no_such_program", sandboxed=True),
      McpServer("odd", "python3", ("-c", "raise SystemExit('oh')"), sandboxed=True),
      McpServer("odd", "sleep", ("60",), sandboxed=True, start_s=0.5),
    ):
      session, tools = session_of(server, lambda: box)
      found.append(await run_call(tools, ToolCall("", "odd_count", {})))
      await session.close()
    return found, (await box.exec(GONE.format("-f '^sleep 60'"))).output

  (missing, failed, late), left = in_box(body)
  assert "no_such_program: not found" in missing
  assert failed == "Error: odd_count cannot be used now: it ended, and wrote: oh."
  assert "it was not ready within start_s=0.5" in late
  assert left == "0\n"
