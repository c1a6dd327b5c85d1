"""The shell that stays: what lasts from one command to the next, and how calls end early."""

import asyncio
import time

import pytest

from jaxrl_agents.harness.tools import Tool, run_call
from jaxrl_agents.sandbox.errors import SandboxLost
from jaxrl_agents.types import ToolCall, ToolSpec

pytestmark = pytest.mark.slow


def outputs(in_box, *commands):
  async def body(box):
    return [(await box.exec(command, timeout_s=10)).output for command in commands]

  return in_box(body)


def test_directory_variables_and_functions_stay(in_box):
  shown = outputs(
    in_box, "cd pkg; x=1; export y=2; f() { echo f $1; }", "pwd; echo $x; sh -c 'echo $y'; f 3"
  )
  assert shown == ["", "/work/pkg\n1\n2\nf 3\n"]


def test_messages_name_the_lines_of_the_command(in_box):
  shown = outputs(in_box, "true\ntrue\nnope", "nope", 'echo "open')
  assert shown[0] == "bash: line 3: nope: command not found\n"
  assert shown[1] == "bash: line 1: nope: command not found\n"
  assert "unexpected EOF" in shown[2]


@pytest.mark.parametrize(
  ("command", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("exec sh -c 'echo last; exit 4'", 4)]
)
def test_a_command_may_end_the_shell_and_the_next_has_a_new_one(in_box, command, code):
  async def body(box):
    await box.exec("cd pkg; x=1")
    result = await box.exec(command)
    return result, (await box.exec("pwd; echo [$x]")).output

  result, after = in_box(body)
  assert (result.why, result.code, after) == ("shell_exit", code, "/work/pkg\n[]\n")
  assert result.output == ("last\n" if "exec" in command else "")


def test_closing_its_outputs_does_not_silence_the_shell(in_box):
  assert outputs(in_box, "exec >&- 2>&-", "echo heard", "exec 1>/dev/null", "echo again") == [
    "",
    "heard\n",
    "",
    "again\n",
  ]


def test_a_job_in_the_background_neither_blocks_nor_is_lost(in_box):
  async def body(box):
    start = time.monotonic()
    first = await box.exec("(sleep 1.5; echo late) & echo now")
    spent = time.monotonic() - start
    second = await box.exec("sleep 2; echo then")
    return first.output, spent < 1.5, second.output

  assert in_box(body) == ("now\n", True, "late\nthen\n")


def test_a_forged_status_deceives_only_about_itself(in_box):
  forge = (
    "for f in /proc/$$/fd/*; do printf '\\0%s\\0%s\\0' 0 /nowhere > $f; done 2>/dev/null; exit 1"
  )

  async def body(box):
    await box.exec(f"({forge})", timeout_s=5)
    await box.exec("true", timeout_s=5)
    await box.reset()
    return (await box.exec("echo right; exit 5")).code

  assert in_box(body) == 5


def test_a_cancelled_call_stops_its_command_and_leaves_the_sandbox_usable(in_box):
  async def body(box):
    call = asyncio.create_task(box.exec("x=1; sleep 60", timeout_s=60))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
      await call
    start = time.monotonic()
    after = await box.exec("echo $x; set -- /proc/[0-9]*; echo $#")
    return after.output, time.monotonic() - start

  after, spent = in_box(body)
  assert after == "1\n2\n" and spent < 2


def test_it_serves_as_a_tool_of_the_harness_deadline_and_all(in_box):
  schema = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
  }

  async def body(box):
    async def run(command):
      return (await box.exec(command)).output

    tools = {"shell": Tool(ToolSpec("shell", "Runs a command.", schema), run, deadline_s=1.0)}
    commands = ["x=7; echo one", "sleep 50", "echo $x"]
    return [await run_call(tools, ToolCall("1", "shell", {"command": c})) for c in commands]

  assert in_box(body) == [
    "one\n",
    "Error: shell took longer than 1 s. Ask for something simpler.",
    "7\n",
  ]


def test_calls_at_once_take_their_turns(in_box):
  async def body(box):
    results = await asyncio.gather(*(box.exec(f"echo {i}") for i in range(20)))
    return [r.output for r in results]

  assert in_box(body) == [f"{i}\n" for i in range(20)]


def test_many_sandboxes_work_at_once(play):
  async def body(boxes, base):
    made = await asyncio.gather(*(boxes.create(base) for _ in range(40)))
    results = await asyncio.gather(*(b.exec(f"echo {b.number} > n; cat n") for b in made))
    return [int(r.output) for r in results] == [b.number for b in made]

  assert play(body)


def test_reset_kills_everything_but_keeps_files_and_directory(in_box):
  async def body(box):
    await box.exec("cd pkg; echo 1 > kept; x=1; sleep 60 & setsid sleep 60 &")
    await box.reset()
    return (await box.exec("pwd; cat kept; echo [$x]; set -- /proc/[0-9]*; echo $#")).output

  assert in_box(body) == "/work/pkg\n1\n[]\n2\n"


def test_a_sandbox_killed_from_outside_is_reported_as_lost(play):
  async def body(boxes, base):
    box = await boxes.create(base)
    await boxes.kill(box.number)
    with pytest.raises(SandboxLost, match="it was killed"):  # before its process is gone
      await box.exec("true")
    await asyncio.wait_for(box.ended.wait(), 10)
    with pytest.raises(SandboxLost, match="it was killed"):
      await box.exec("true")
    await box.close()

  play(body)


@pytest.mark.parametrize(
  ("call", "match"),
  [
    (lambda box: box.exec("x" * 100_001), "at most 100000"),
    (lambda box: box.exec("a\0b"), "NUL"),
    (lambda box: box.exec("true", timeout_s=0), "positive number of seconds"),
    (lambda box: box.exec("true", timeout_s=float("nan")), "positive number of seconds"),
    (lambda box: box.exec("true", output_bytes=1), "must lie in"),
    (lambda box: box.read("f", offset=-1), "negative"),
    (lambda box: box.read(""), "empty"),
    (lambda box: box.find([b"abc"]), "at least 4 bytes"),
  ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(in_box, call, match):
  async def body(box):
    with pytest.raises(ValueError, match=match):
      await call(box)
    return (await box.exec("echo fine")).output

  assert in_box(body) == "fine\n"
