"""An agent that was taken over: whatever it answers, the host loses that sandbox alone."""

import asyncio
import json
import os
import pathlib
import socket
import struct
import tempfile

import pytest

from jaxrl_agents.sandbox.errors import NoSandbox, Refused, SandboxLost
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.host.program import MAX_EXCHANGED_BYTES, Program
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.sandbox.records import Snapshot

DONE = {"code": 0, "why": "", "cwd": "/work", "seconds": 0.1, "total": 1, "head": 1}


def frame(header, body=b""):
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  return struct.pack("!II", len(text), len(body)) + text + body


def asked(answer, request):
  """What the host makes of `answer` to `request(box)`; the other end is closed afterwards."""

  async def whole(folder):
    here, there = socket.socketpair()
    streams = await asyncio.open_unix_connection(sock=here)
    owner = Sandboxes()
    owner.store = Store(pathlib.Path(folder) / "store", (os.geteuid(), os.getegid()))
    box = Sandbox(owner, 1, Snapshot(()), streams)

    async def agent():
      loop = asyncio.get_running_loop()
      there.setblocking(False)
      await loop.sock_recv(there, 1 << 16)
      await loop.sock_sendall(there, answer)
      there.close()

    answering = asyncio.create_task(agent())
    try:
      return await asyncio.wait_for(request(box), 10)
    finally:
      answering.cancel()
      streams[1].close()

  with tempfile.TemporaryDirectory() as folder:
    return asyncio.run(whole(folder))


@pytest.mark.parametrize(
  "answer",
  [
    b"",
    b"\0\0\0",
    frame(b"{"),
    frame(b"\xff\xff"),
    frame(b"[]"),
    frame(b"[" * 500_000),
    frame(b'{"a":' * 500_000),
    frame({}),
    frame({**DONE, "code": None}),
    frame({**DONE, "code": float("inf")}),
    frame({**DONE, "head": float("inf")}),
    frame({**DONE, "total": float("nan")}),
    frame(json.dumps(DONE).replace("0.1", "1" + "0" * 400).encode()),
    frame(json.dumps(DONE).replace("0.1", "1" * 5000).encode()),
    frame({**DONE, "seconds": []}),
    struct.pack("!II", 1 << 31, 0),
    struct.pack("!II", 2, 1 << 31) + b"{}",
    frame(DONE, b"x" * 30_000),
    frame(DONE, b"x")[:-1],
  ],
  ids=range(19),
)
def test_an_answer_to_exec_that_makes_no_sense_costs_the_sandbox(answer):
  with pytest.raises(SandboxLost):
    asked(answer, lambda box: box.exec("true"))


@pytest.mark.parametrize(
  "header",
  [
    {},
    {"entries": {}, "state": "", "cwd": "/"},
    {"entries": [], "state": 5, "cwd": "/"},
    {"entries": [], "state": "", "cwd": None},
    {"entries": [], "state": "x\0y", "cwd": "/work"},
    {"entries": [], "state": "", "cwd": "/work\0"},
    {"entries": [], "state": "", "cwd": "work"},
    {"entries": [], "state": "", "cwd": "/" + "x" * 5000},
    {"entries": [], "state": "\ud800", "cwd": "/work"},
  ],
)
def test_a_state_that_no_shell_has_costs_the_sandbox(header):
  with pytest.raises(SandboxLost):
    asked(frame(header), lambda box: box.snapshot())


@pytest.mark.parametrize("found", [5, "abc", {"a": 1}, [5], [["a"]], None])
def test_places_that_are_no_list_of_paths_cost_the_sandbox(found):
  with pytest.raises(SandboxLost):
    asked(frame({"found": found}), lambda box: box.find([b"needle"]))


@pytest.mark.parametrize("reason", ["x" * 100_000, None, [[]] * 1000, {"a": float("inf")}])
def test_a_refusal_of_any_form_is_short_text(reason):
  with pytest.raises(Refused) as caught:
    asked(frame({"refused": reason}), lambda box: box.ping())
  assert len(str(caught.value)) <= 2000
  with pytest.raises(NoSandbox) as caught:
    asked(frame({"failed": reason}), lambda box: box.begin({}))
  assert len(str(caught.value)) <= 4000


def test_a_result_shows_text_alone_whatever_the_types_are():
  forged = {**DONE, "why": {"a": 1}, "cwd": ["/"], "code": 7.9, "head": -5, "total": -9}
  result = asked(frame(forged, b"\xff\0"), lambda box: box.exec("true"))
  assert isinstance(result.why, str) and isinstance(result.cwd, str)
  assert (result.code, result.output, result.missing_bytes) == (7, "\ufffd\0", 0)


@pytest.mark.parametrize("answer", [frame({}), frame({"number": "1"}), frame({"number": 1}, b"x")])
def test_a_forged_start_of_a_program_loses_the_sandbox(answer):
  with pytest.raises(SandboxLost):
    asked(answer, lambda box: box.start_program(["cat"], env={}))


@pytest.mark.parametrize(
  "answer",
  [
    frame({}),
    frame({"output": 2}, b"x"),
    frame({"output": -1}, b"x"),
    frame({"output": "1"}, b"x"),
    frame({"output": float("nan")}, b"x"),
    frame({"output": 1}, b"x" * (2 * MAX_EXCHANGED_BYTES + 1)),
  ],
)
def test_a_forged_exchange_loses_the_sandbox(answer):
  with pytest.raises(SandboxLost):
    asked(answer, lambda box: Program(box, box._call, box._lose, 1).exchange(b"", 0.1))
