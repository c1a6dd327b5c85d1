"""Whatever a server does, the policy reads a text, and the next call finds a server that works."""

import asyncio
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from jaxrl_agents.config import McpServer
from tests.harness.mcp_tools.servers import ODD, called, listing_of, needs_mcp, odd, wait_until_dead

pytestmark = [needs_mcp, pytest.mark.slow]
ROOT = pathlib.Path(__file__).parents[3]


def test_texts_are_joined_other_blocks_named_failures_are_errors_and_arguments_are_checked():
  pieces, failure, seen, long, wrong, further = called(
    odd(),
    *(("echo", {"text": "second"}), ("fail", {"text": "cheese"}), ("picture", {}), ("long", {})),
    *(("echo", {"text": 3}), ("echo", {"text": "x", "further": 1})),
  )
  assert pieces == "first\nsecond"
  assert failure == "Error: there is no cheese"
  assert seen == (
    "see\n[image, not shown: image/png, 300 bytes]\n"
    "[resource, not shown: file:///a.txt, text/plain, 3 characters]"
  )
  assert len(long) < 200_100 and long.endswith("\n[100000 characters left out]")
  assert wrong == "Error: odd_echo: 'text' must be of type string, not integer 3."
  assert further == "first\nx"


def test_a_server_that_hangs_dies_or_floods_is_replaced():
  server = odd(deadline_s=2.5)
  texts = called(
    server,
    *(("count", {}), ("count", {}), ("hang", {}), ("count", {}), ("die", {})),
    *(("flood_line", {}), ("flood_messages", {}), ("count", {})),
  )
  assert [texts[i] for i in (0, 1, 3, 7)] == ["1", "2", "1", "1"]
  anew = "Its server is started anew and what it held is lost."
  assert texts[2] == f"Error: odd_hang took longer than 2.5 s. {anew} Ask for something simpler."
  assert texts[4] == (
    f"Error: odd_die failed: it ended with exit status 3, and wrote: out of cheese. {anew}"
  )
  assert texts[5] == f"Error: odd_flood_line failed: it wrote a line of more than 8 MiB. {anew}"
  assert texts[6] == (
    "Error: odd_flood_messages failed: it wrote more than 10000 lines without being asked again. "
    + anew
  )


def shared(server, listed, body):
  """`await body(call)` of a server that several share; `call(name, text)` is a task."""
  from jaxrl_agents.harness.mcp_tools.session import Session
  from jaxrl_agents.harness.tools import run_call
  from jaxrl_agents.types import ToolCall

  async def play():
    session = Session(server, listed, asyncio.Semaphore(1))
    tools = {tool.spec.name: tool for tool in session.tools}
    await session.connect()
    run = lambda name, text: run_call(tools, ToolCall("", f"odd_{name}", {"text": text}))
    try:
      return await body(lambda name, text="": asyncio.create_task(run(name, text)))
    finally:
      await session.close()

  return asyncio.run(play())


def odd_shared(body, **options):
  server = odd(stateful=False, **options)
  return shared(server, listing_of((server.command, server.args), ()).tools["odd"], body)


LATE = "Error: odd_{} took longer than 2.5 s. {} Ask for something simpler."


def test_calls_of_a_shared_server_do_not_wait_for_one_another():
  async def body(call):
    hanging = call("hang")
    await asyncio.sleep(0)
    return [await call("count") for _ in range(3)], hanging.done()

  assert odd_shared(body) == (["1", "2", "3"], False)


def test_a_late_call_of_a_shared_server_is_cancelled_and_leaves_the_calls_of_others(tmp_path):
  mark = tmp_path / "mark"

  async def body(call):
    hanging = call("hang", str(mark))
    await asyncio.sleep(1)
    napping = call("nap", "2")  # is in flight as the other one is late
    return [await hanging, await napping, await call("count")]

  texts = odd_shared(body, deadline_s=2.5)
  assert texts == [LATE.format("hang", "The call was cancelled."), "1", "2"]
  assert mark.read_text() == "cancelled"


@pytest.mark.parametrize(("tool", "calls"), [("block", 1), ("hang", 8)])
def test_a_shared_server_is_replaced_where_it_answers_nothing_or_eight_calls_are_late(tool, calls):
  async def body(call):
    first = await call("count")
    late = await asyncio.gather(*(call(tool) for _ in range(calls)))
    return first, late[-1], await call("count")

  anew = LATE.format(tool, "Its server is started anew.")
  assert odd_shared(body, deadline_s=2.5) == ("1", anew, "1")


def test_a_call_is_made_again_only_if_the_server_says_that_it_is_read_only(tmp_path):
  mark = str(tmp_path / "mark")
  assert called(odd(), ("die_once", {"text": mark})) == ["alive again"]


def test_a_server_has_few_variables_a_folder_of_its_own_and_leaves_nothing(tmp_path, monkeypatch):
  monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret of the run")
  monkeypatch.setenv("GIVEN", "given")
  numbers = tmp_path / "numbers"
  where, _ = called(odd(env=("OWN=${GIVEN}!",)), ("where", {}), ("child", {"text": str(numbers)}))
  folder, variables = where.split("\n")
  found = dict(each.split("=", 1) for each in variables.split(" "))
  assert set(found) <= {"HOME", "TMPDIR", "PATH", "LANG", "LC_ALL", "TZ", "OWN", "LC_CTYPE"}
  assert found["OWN"] == "given!"
  assert found["HOME"] == folder and not pathlib.Path(folder).exists()
  wait_until_dead(map(int, numbers.read_text().split()))


def test_a_server_dies_with_the_process_that_started_it(tmp_path):
  code = (
    "import asyncio, os, sys; from tests.harness.mcp_tools.servers import *;"
    "from jaxrl_agents.harness.mcp_tools.connection import opened\n"
    "async def f():\n"
    "  await (await opened(odd())).call('child', {'text': sys.argv[1]})\n"
    "  os.kill(os.getpid(), 9)\n"
    "asyncio.run(f())"
  )
  file = tmp_path / "numbers"
  environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
  subprocess.run([sys.executable, "-c", code, str(file)], cwd=ROOT, env=environment, timeout=60)
  server, child = map(int, file.read_text().split())
  os.kill(child, 9)
  wait_until_dead([server])


@pytest.mark.parametrize(
  ("server", "expected"),
  [
    (McpServer("x", "no_such_program"), "no program 'no_such_program' on the PATH; install it"),
    (McpServer("x", sys.executable, ("-c", "raise SystemExit('oh')")), "exit status 1, .* oh"),
    (McpServer("x", sys.executable, ("-c", "import time; time.sleep(60)"), start_s=0.5), "ready"),
    (odd("x", env=("A=${NOT_SET_ANYWHERE}",)), "the variable 'NOT_SET_ANYWHERE', which is not set"),
    (
      McpServer("x", url="http://127.0.0.1:9/mcp", start_s=5.0),
      "the MCP server 'x' cannot be asked",
    ),
  ],
)
def test_a_server_that_cannot_be_asked_is_an_error_that_says_why(server, expected):
  from jaxrl_agents.harness.mcp_tools import listing

  with pytest.raises(ValueError, match=expected):
    listing.ask([server], [])


def test_a_server_that_offers_other_tools_than_at_the_start_is_not_used(tmp_path):
  from jaxrl_agents.harness.mcp_tools import listing
  from jaxrl_agents.harness.mcp_tools.connection import CannotConnect
  from jaxrl_agents.harness.mcp_tools.session import Session

  whole = listing_of((odd().command, odd().args), ())
  fewer = listing.ask([odd(env=("WITHOUT=echo",))], [])
  assert whole.digest != fewer.digest
  assert set(whole.names) - set(fewer.names) == {"odd_echo"}
  session = Session(odd(env=("WITHOUT=echo",)), whole.tools["odd"], asyncio.Semaphore(1))
  with pytest.raises(CannotConnect, match="offers other tools than when the run began"):
    asyncio.run(session.connect())


def test_a_server_over_http_is_called_and_a_lost_one_is_an_error_until_it_is_back(monkeypatch):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  command = [sys.executable, "-m", "uvicorn", "--port", str(port), "--log-level", "error"]

  def start():
    serving = subprocess.Popen([*command, "odd_server:app"], cwd=pathlib.Path(ODD).parent)
    deadline = time.monotonic() + 20
    while socket.socket().connect_ex(("127.0.0.1", port)):
      assert time.monotonic() < deadline and serving.poll() is None
      time.sleep(0.05)
    return serving

  server = McpServer("odd", url=f"http://127.0.0.1:{port}/mcp", deadline_s=5.0, stateful=False)
  serving = start()
  try:
    from jaxrl_agents.harness.mcp_tools import listing, session
    from jaxrl_agents.harness.tools import run_call
    from jaxrl_agents.types import ToolCall

    monkeypatch.setattr(session, "PAUSE_S", 0.0)
    listed = listing.ask([server], []).tools["odd"]

    async def lost():
      nonlocal serving
      made = session.Session(server, listed, asyncio.Semaphore(1))
      tools = {tool.spec.name: tool for tool in made.tools}
      call = ToolCall("", "odd_count", {})
      texts = [await run_call(tools, call), await run_call(tools, call)]
      texts.append(await run_call(tools, ToolCall("", "odd_huge", {})))
      texts.append(await run_call(tools, call))
      texts.append(await run_call(tools, ToolCall("", "odd_hang", {})))
      texts.append(await run_call(tools, call))
      serving.kill()
      serving.wait()
      texts.append(await run_call(tools, call))
      serving = await asyncio.to_thread(start)
      texts.append(await run_call(tools, call))
      await made.close()
      return texts

    first, second, huge, third, late, fourth, without, back = asyncio.run(lost())
    assert (first, second, third, fourth, back) == ("1", "2", "3", "4", "1")
    assert late.endswith("took longer than 5 s. The call was cancelled. Ask for something simpler.")
    assert huge == (
      "Error: odd_huge failed: ReadError: an answer of more than 16 MiB. The connection to its "
      "server is made anew."
    )
    assert without.startswith("Error: odd_count failed: ConnectError: ")
  finally:
    serving.kill()
    serving.wait()
