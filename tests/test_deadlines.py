"""No wait without a deadline: calls that wait say how long, or stand in ENDED with the reason why
they end.

A wait is found by the name of what is called and its arguments: a queue's `get()` is one, a dict's
`get(key)` is none. What is awaited inside of `asyncio.timeout` or `asyncio.wait_for` is bounded.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "jaxrl_agents"

NEVER = 1 << 10
"""So many positional arguments no call has: the deadline is a keyword, or there is none at all."""

WAITS = {
  "accept": NEVER,
  "acquire": 2,
  "as_completed": 2,
  "broadcast_one_to_all": NEVER,
  "communicate": 2,
  "create_connection": 2,
  "get": 1,
  "join": 1,
  "process_allgather": NEVER,
  "recv": NEVER,
  "recv_bytes": NEVER,
  "result": 1,
  "select": 1,
  "sync_global_devices": NEVER,
  "urlopen": 3,
  "wait": 1,
  "wait_at_barrier": 2,
  "wait_until_finished": NEVER,
}
"""What waits -> how many positional arguments it has where one of them is its deadline."""

OF_MODULES = {
  ("subprocess", "run"): NEVER,
  ("subprocess", "call"): NEVER,
  ("subprocess", "check_call"): NEVER,
  ("subprocess", "check_output"): NEVER,
  ("asyncio", "wait"): NEVER,
  ("select", "select"): 4,
  (None, "wait"): 2,  # of multiprocessing.connection
  ("ray", "get"): NEVER,
  ("_ray", "get"): NEVER,
  ("_ray", "wait"): NEVER,
}
"""The same for functions of a module, whose names mean something else elsewhere."""

DEADLINES = {"timeout", "timeout_s", "timeout_in_ms", "mode"}  # jax's x.at[i].get(mode=...)
BOUNDED = {"timeout", "timeout_at", "wait_for"}
"""Calls whose arguments, or the body of whose `async with`, are ended by their own deadline."""

ENDED = {
  (
    "fleet/async_rollouts.py",
    "self._calls.get()",
  ): "it is not empty, and no other thread takes from it",
  ("fleet/worker_node.py", "self._calls.get()"): "the same",
  ("gateway/sessions.py", "self.finished.wait()"): "whoever closes sets it within DRAIN_S",
  ("gateway/sessions.py", "self.task.result()"): "the task is done",
  ("gateway/sse.py", "progress.changed.wait()"): "the task is cancelled after `timeout_s`",
  ("gateway/sse.py", "task.result()"): "the task is done",
  ("gateway/tinker/futures.py", "future.result()"): "the future is done",
  (
    "harness/mcp_tools/connection.py",
    "self._leave.wait()",
  ): "lives as long as its owner, who sets it or cancels the task",
  ("harness/worker_pool.py", "self._wake.recv_bytes()"): "`wait` has seen it",
  ("harness/worker_pool.py", "worker.connection.recv_bytes(schema.MAX_BYTES)"): "the socket has a"
  " timeout",
  ("harness/worker_process.py", "connection.recv_bytes()"): "ends with the main process",
  ("harness/worker_process.py", "connection.recv()"): "ends with the main process",
  ("harness/worker_process.py", "outbox.get()"): "a thread of its own, which ends with the process",
  ("learner/barriers.py", "multihost_utils.process_allgather(tree, tiled=True)"): "all have met",
  ("runs/serving.py", "event.wait()"): "a server runs until it is stopped, or its engine fails",
  (
    "runs/serving.py",
    "asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)",
  ): "a server runs until it is stopped, or its engine fails",
  ("sandbox/host/backends.py", "self._control.recv(1 << 16)"): "the socket does not block",
  ("sandbox/host/interruptible.py", "done.result()"): "the future is done",
  (
    "sandbox/host/removal.py",
    "self._jobs.get()",
  ): "a thread of its own, which ends with the process",
}
"""(file, call) -> why it ends all the same."""


def _called(node):
  """(whose function is called: None for nobody's, "" for that of an expression; its name)."""
  function = node.func if isinstance(node, ast.Call) else None
  if not isinstance(function, ast.Attribute):
    return None, getattr(function, "id", "")
  owner = function.value
  return getattr(owner, "attr", getattr(owner, "id", "")), function.attr


def is_wait(call):
  """Whether a call may wait for ever, as far as its names and arguments say."""
  owner, name = _called(call)
  enough = OF_MODULES.get((owner, name), WAITS.get(name))
  if enough is None or any(word.arg in DEADLINES for word in call.keywords):
    return False
  return len(call.args) < enough


def waits(text):
  """[(source of a call, its line)] of those that may wait for ever."""
  tree, bounded = ast.parse(text), []
  for node in ast.walk(tree):
    if isinstance(node, ast.AsyncWith) and any(
      _called(item.context_expr)[1] in BOUNDED for item in node.items
    ):
      bounded += node.body
    elif isinstance(node, ast.Call) and _called(node)[1] in BOUNDED:
      bounded += node.args
  ended = {id(inner) for part in bounded for inner in ast.walk(part)}
  return [
    (ast.unparse(node), node.lineno)
    for node in ast.walk(tree)
    if isinstance(node, ast.Call) and id(node) not in ended and is_wait(node)
  ]


@pytest.fixture(scope="module")
def project():
  """[(file, source of a call, its line)]."""
  files = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
  return [(name, *wait) for name, path in files.items() for wait in waits(path.read_text("utf-8"))]


def test_every_wait_has_a_deadline_or_a_reason_to_end(project):
  found = [f"{name}:{line} {call}" for name, call, line in project if (name, call) not in ENDED]
  assert not found, "give each a deadline, or ENDED its reason:\n" + "\n".join(found)


def test_every_reason_is_that_of_a_wait_that_exists(project):
  assert set(ENDED) - {(name, call) for name, call, _ in project} == set()


@pytest.mark.parametrize(
  ("code", "found"),
  [
    ("thread.join()", 1),
    ("thread.join(5.0)", 0),
    ("', '.join(names)", 0),
    ("event.wait()", 1),
    ("condition.wait(timeout=1)", 0),
    ("queue.get()", 1),
    ("queue.get(timeout=1)", 0),
    ("options.get('name')", 0),
    ("x.at[i].get(mode='clip')", 0),
    ("ts.open(spec).result()", 1),
    ("read.result(timeout=2)", 0),
    ("wait(connections)", 1),
    ("wait(connections, 0.5)", 0),
    ("subprocess.run(command, check=True)", 1),
    ("subprocess.run(command, timeout=3)", 0),
    ("loop.run(main())", 0),
    ("process.communicate(text)", 1),
    ("self._ray.get(answer)", 1),
    ("multihost_utils.sync_global_devices('saved')", 1),
    ("client.wait_at_barrier('name', 1000)", 0),
    ("async def f():\n  await event.wait()", 1),
    ("async def f():\n  await asyncio.wait_for(event.wait(), 3)", 0),
    ("async def f():\n  async with asyncio.timeout(3):\n    await event.wait()", 0),
    ("async def f():\n  await asyncio.wait([task])", 1),
    ("async def f():\n  await asyncio.wait([task], timeout=3)", 0),
  ],
)
def test_a_wait_without_a_deadline_is_found(code, found):
  assert len(waits(code)) == found
