"""Starts an existing agent and waits for its end: a command, a function or a hook."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import json
import os
import pathlib
import re
import shlex
import signal
import traceback
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from jaxrl_agents import background
from jaxrl_agents.agents.external.output_ends import KEPT_BYTES, piped
from jaxrl_agents.types import Task

GRACE_S = 5.0
"""Seconds between the signal that asks a command to end and the one that ends it."""

ROUNDS, ROUND_S = 5, 0.05
"""How often what left the session of a command is looked for and ended: it may start more."""

PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE")
"""What a command gets of this process's environment."""


GOLD = "gold"
"""The field of a task's row that the agent does not see."""


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How the agent of one rollout ended.

  Attributes:
    folder: in which it ran; removed after the reward.
    exit_status: of a command; of a function 1 if it raised, else 0.
    output, errors: the ends of standard output and standard error of a command; or what a function
      raised, with its traceback, as `errors`.
    result: what a function returned.
    timed_out: whether it was ended at `timeout_s`.
  """

  folder: pathlib.Path
  exit_status: int = 0
  output: str = ""
  errors: str = ""
  result: Any = None
  timed_out: bool = False


@dataclasses.dataclass(frozen=True)
class Address:
  """Where an agent finds its policy.

  Attributes:
    url: of the gateway, without /v1.
    key: opens the session.
    control_key: attaches rewards and ends it.
    session_id: of the session.
  """

  url: str
  key: str
  control_key: str
  session_id: str


def environment(address: Address, folder: pathlib.Path) -> dict[str, str]:
  """The environment of a command: what client libraries read, and little else."""
  passed = {name: os.environ[name] for name in PASSED if name in os.environ}
  return passed | {
    "HOME": str(folder),
    "OPENAI_BASE_URL": f"{address.url}/v1",
    "OPENAI_API_BASE": f"{address.url}/v1",
    "OPENAI_API_KEY": address.key,
    "ANTHROPIC_BASE_URL": address.url,
    "ANTHROPIC_API_KEY": address.key,
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # else the prompt changes with every request
    "NO_PROXY": "127.0.0.1,localhost",
  }


def shown(task: Task) -> Task:
  """The task without what is for the reward alone."""
  facts = {name: value for name, value in task.facts.items() if name != GOLD}
  return dataclasses.replace(task, facts=facts)


def as_json(task: Task) -> dict[str, Any]:
  """What an agent may see of a task, as in its row."""
  return {"id": task.id, "prompt": task.prompt, "split": task.split, **shown(task).facts}


async def command(
  words: str, task: Task, address: Address, folder: pathlib.Path, timeout_s: float
) -> Outcome:
  """Runs a command in a session of its own and ends all of it at the timeout.

  Raises:
    ValueError: there is no such command.
  """
  file = folder / "task.json"
  file.write_text(json.dumps(as_json(task), ensure_ascii=False))
  argv = _argv(words, {"task": str(file), "prompt": task.prompt})
  with piped() as (stdout, output), piped() as (stderr, errors):
    try:
      process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=folder,
        env=environment(address, folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
      )
    except OSError as error:
      raise ValueError(f"external.command cannot be started: {error}") from error
    timed_out = False
    try:
      async with _ends_with_us(process.pid, folder):
        await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
      timed_out = True
    finally:
      await _end(process)
      await _end_left_behind(address, folder)
    status = process.returncode or 0
    return Outcome(folder, status, output.text(), errors.text(), timed_out=timed_out)


def _argv(words: str, places: Mapping[str, str]) -> list[str]:
  """The words of a command with `{task}` and `{prompt}` replaced. A file of the current folder has
  its whole path, as the command runs in another folder.
  """
  found: list[str] = []
  for word in shlex.split(words):
    if (found or os.sep in word) and os.path.isfile(word):
      word = os.path.abspath(word)  # no links followed: they may be of a virtual environment
    found.append(re.sub(r"\{(task|prompt)\}", lambda match: places[match[1]], word))
  return found


@contextlib.asynccontextmanager
async def _ends_with_us(group: int, folder: pathlib.Path) -> AsyncIterator[None]:
  """Has a watcher end a group of processes and remove its folder if this process dies within the
  context: the pipe that it reads is then closed.
  """
  words = ("sh", "-c", 'read _; kill -9 "-$0"; rm -rf "$1"', str(group), str(folder))
  watcher = await asyncio.create_subprocess_exec(
    *words, stdin=asyncio.subprocess.PIPE, start_new_session=True
  )
  try:
    yield
  finally:
    with contextlib.suppress(ProcessLookupError, TimeoutError):
      watcher.kill()
      await asyncio.wait_for(watcher.wait(), GRACE_S)


async def _end(process: asyncio.subprocess.Process) -> None:
  """Ends a command and what it started in its session; whatever was left behind of it, too."""
  for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, number)
    with contextlib.suppress(TimeoutError):
      await asyncio.wait_for(process.wait(), wait_s)


async def _end_left_behind(address: Address, folder: pathlib.Path) -> None:
  """Ends what a command has started in sessions of their own, as agents do with servers that they
  try out. Such a process is known by the environment that it began with.
  """
  own = environment(address, folder)
  marks = {os.fsencode(f"{name}={own[name]}") for name in ("HOME", "OPENAI_API_KEY")}
  for _ in range(ROUNDS):
    found = 0
    for place in pathlib.Path("/proc").glob("[1-9]*"):
      with contextlib.suppress(OSError):
        if marks & set((place / "environ").read_bytes().split(b"\0")):
          os.kill(int(place.name), signal.SIGKILL)
          found += 1
    if not found:
      return
    await asyncio.sleep(ROUND_S)


def in_thread(function: Callable[[], Any]) -> Awaitable[Any]:
  """The result of a function in a thread of its own: rollouts do not wait for one another's."""

  def called() -> Any:
    with _exit_is_an_error():
      return function()

  return asyncio.wrap_future(background.call(called, "external"))


@contextlib.contextmanager
def _exit_is_an_error() -> Iterator[None]:
  """Has `sys.exit` end the agent that calls it, and not its worker with all other agents."""
  try:
    yield
  except SystemExit as error:
    raise RuntimeError(f"sys.exit({error.code!r}) was called") from error


async def _awaited(running: Awaitable[Any]) -> Any:
  with _exit_is_an_error():
    return await running


async def function(
  call: Callable[..., Any], task: Task, address: Address, folder: pathlib.Path, timeout_s: float
) -> Outcome:
  """Calls a function, in a thread of its own unless it is a coroutine function.

  A thread that does not end at the timeout goes on without a policy: its session is closed. What
  the function raises is its end, as a command that fails ends: a request that was refused, because
  its policy has no calls left, is often raised.
  """
  arguments = (shown(task), f"{address.url}/v1", address.key, folder)
  running: Awaitable[Any]
  if inspect.iscoroutinefunction(call):
    running = _awaited(call(*arguments))
  else:
    running = in_thread(functools.partial(call, *arguments))
  deadline = asyncio.timeout(timeout_s)
  try:
    async with deadline:
      return Outcome(folder, result=await running)
  except Exception as error:
    if isinstance(error, TimeoutError) and deadline.expired():
      return Outcome(folder, timed_out=True)
    said = "".join(traceback.format_exception(error))
    return Outcome(folder, exit_status=1, errors=said[-KEPT_BYTES:])


async def hook(
  url: str, task: Task, address: Address, finished: asyncio.Event, folder: pathlib.Path,
  timeout_s: float,
) -> Outcome:  # fmt: skip
  """Asks a server to run its agent, and waits until the agent's session is finished.

  Raises:
    ValueError: the server does not answer, or refuses.
  """
  control = f"{address.url}/sessions/{address.session_id}"
  body: Mapping[str, Any] = {
    "task": as_json(task),
    "base_url": f"{address.url}/v1",
    "api_key": address.key,
    "control_url": control,
    "control_key": address.control_key,
    "timeout_s": timeout_s,
  }
  request = urllib.request.Request(
    url, json.dumps(body).encode(), {"content-type": "application/json"}
  )

  def post() -> None:
    try:
      with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        reply.read(KEPT_BYTES)
    except urllib.error.HTTPError as error:
      said = error.read(KEPT_BYTES).decode("utf-8", "replace").strip()
      raise ValueError(f"external.hook={url}: {error}: {said}") from error

  try:
    async with asyncio.timeout(timeout_s):
      await in_thread(post)
      await finished.wait()
  except TimeoutError:
    return Outcome(folder, timed_out=True)
  except (urllib.error.URLError, OSError) as error:
    raise ValueError(f"external.hook={url}: {error}") from error
  return Outcome(folder)
