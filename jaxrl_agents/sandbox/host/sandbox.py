"""One sandbox as its host sees it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxrl_agents.sandbox import wire
from jaxrl_agents.sandbox.errors import NoSandbox, Refused, SandboxClosed, SandboxLost, explain
from jaxrl_agents.sandbox.host import answers, interruptible, unpacking
from jaxrl_agents.sandbox.host.changes import changes_of
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.host.program import Program
from jaxrl_agents.sandbox.host.runtime import PACKAGES
from jaxrl_agents.sandbox.records import Change, ExecResult, SandboxLimits, Snapshot

MAX_COMMAND_BYTES = 100_000
ANSWER_S = 30.0
"""Seconds to answer a request, beyond what a command may take."""
END_S = 10.0
_MAX_ANSWER_BYTES = 1 << 20
_BLOCK = 1 << 20


class Owner(Protocol):
  """What a sandbox needs of the `Sandboxes` that made it."""

  @property
  def limits(self) -> SandboxLimits: ...

  @property
  def store(self) -> Store: ...

  async def create(self, start: Snapshot) -> Sandbox: ...

  def drop(self, snapshot: Snapshot) -> None: ...

  async def kill(self, number: int) -> None: ...


class Sandbox:
  """Runs commands and holds files; made by `Sandboxes.create`, used by one caller at a time.

  Calls queue up behind one another. A cancelled `exec` is stopped; the sandbox stays usable.

  Every call raises SandboxClosed after `close`, and SandboxLost when the sandbox is gone or misses
  its deadline.
  """

  def __init__(
    self,
    owner: Owner,
    number: int,
    start: Snapshot,
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
  ):
    self._owner, self.number, self.start = owner, number, start
    self._reader, self._writer = streams
    self._lock = asyncio.Lock()
    self._pending: asyncio.Task[tuple[dict[str, Any], bytes | bytearray]] | None = None
    self._closed = False
    self._lost = ""
    self._env: dict[str, str] = {}
    self.ended = asyncio.Event()

  async def __aenter__(self) -> Sandbox:
    return self

  async def __aexit__(self, *_: object) -> None:
    await self.close()

  @property
  def limits(self) -> SandboxLimits:
    """What it may use."""
    return self._owner.limits

  async def begin(self, env: dict[str, str]) -> None:
    """Tells the new agent how to start, and waits until it is ready.

    Raises:
      NoSandbox: a step of its making failed; the message says which, and what mends it.
    """
    self._env = env
    settings = {
      "env": env,
      "state": self.start.shell,
      "cwd": self.start.cwd,
      "limits": dataclasses.asdict(self.limits),
    }
    try:
      self._writer.write(wire.encode(settings, 0))
      head, _ = await self._receive(0)
    except (OSError, EOFError, wire.WireError) as error:
      raise NoSandbox(f"a sandbox ended before it was ready: {error}") from None
    if "failed" in head:
      raise NoSandbox(explain(str(head["failed"])[:2000]))

  async def exec(
    self, command: str, timeout_s: float = 60.0, output_bytes: int | None = None
  ) -> ExecResult:
    """Runs a command in the shell that lives as long as the sandbox.

    Args:
      command: bash; several lines are fine.
      timeout_s: after which it is interrupted, then killed; what it started is killed with it.
      output_bytes: how much output is kept; `SandboxLimits.output_bytes` where it is None.

    Raises:
      ValueError: a command of more than 100,000 bytes or with a NUL, or numbers out of range.
    """
    text = command.encode("utf-8", "surrogateescape")
    if len(text) > MAX_COMMAND_BYTES or b"\0" in text:
      raise ValueError(
        f"a command of {len(text)} bytes: at most {MAX_COMMAND_BYTES}, none of them NUL; "
        "put long text into a file with write()"
      )
    if not 0 < timeout_s < math.inf:
      raise ValueError(f"timeout_s={timeout_s!r} must be a positive number of seconds")
    kept = self.limits.output_bytes if output_bytes is None else output_bytes
    if not 2 <= kept <= self.limits.drained_bytes:
      raise ValueError(f"output_bytes={kept} must lie in 2..{self.limits.drained_bytes}")
    request = {"op": "exec", "timeout_s": timeout_s, "max_bytes": kept}
    head, body = await self._call(request, text, timeout_s + ANSWER_S, kept)
    try:
      return answers.exec_result(head, body)
    except ValueError as error:
      raise self._lose(str(error)) from None

  async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
    """Up to `limit` bytes of a regular file from `offset`; paths are relative to /work.

    Raises:
      Refused: there is no such file, or it may not be read.
    """
    if offset < 0 or limit < 0:
      raise ValueError(f"offset={offset} and limit={limit} must not be negative")
    if limit > (room := self.limits.memory_bytes // 4):
      raise ValueError(f"limit={limit} is more than {room} bytes; read the file in parts")
    request = {"op": "read", "path": _absolute(path), "offset": offset, "limit": limit}
    return bytes((await self._call(request, b"", ANSWER_S, limit))[1])

  async def write(self, path: str, content: bytes | str, mode: int = 0o644) -> None:
    """Writes a whole file; folders on the way are made.

    Raises:
      Refused: the place may not be written to, or the disk is full.
    """
    body = content.encode() if isinstance(content, str) else content
    room = min(self.limits.disk_bytes, self.limits.memory_bytes // 4)
    if len(body) > room:
      raise Refused(f"{path}: {len(body)} bytes are more than the {room} that fit")
    request = {"op": "write", "path": _absolute(path), "mode": mode & 0o777}
    await self._call(request, body, ANSWER_S, 0)

  async def snapshot(self) -> Snapshot:
    """The state now: files below /work and /tmp, working directory, variables and functions.

    Processes are not part of it; those that run stand still meanwhile. It costs what was changed
    since the sandbox started, whatever the size of what it started from. Release it with
    `Sandboxes.drop`.
    """
    store, below = self._owner.store, self.start.layers
    store.hold(below)  # the sandbox may end meanwhile
    try:
      head, body = await self._delta(with_state=True)
      layers, digest = await interruptible.run(
        lambda check: self._add_layer(head, body, check),
        undo=lambda made: store.release(made[0], held=False),
      )
      store.hold(layers)
    finally:
      store.release(below)
    return dataclasses.replace(
      self.start, layers=layers, shell=head["state"], cwd=head["cwd"], digest=digest
    )

  async def fork(self, count: int = 1) -> list[Sandbox]:
    """`count` new sandboxes in the state of this one; what one does, no other sees."""
    if count < 1:
      raise ValueError(f"count={count} must be at least 1")
    snapshot = await self.snapshot()
    try:
      made = await asyncio.gather(
        *(self._owner.create(snapshot) for _ in range(count)), return_exceptions=True
      )
    finally:
      self._owner.drop(snapshot)
    errors = [one for one in made if isinstance(one, BaseException)]
    forks = [one for one in made if isinstance(one, Sandbox)]
    if errors:
      await asyncio.gather(*(one.close() for one in forks))
      raise errors[0]
    return forks

  async def diff(self) -> dict[str, Change]:
    """{path below /: change} of what differs from where the sandbox started."""
    store, below = self._owner.store, self.start.layers
    store.hold(below)  # the sandbox may end meanwhile
    try:
      head, body = await self._delta(with_state=False)
      return await interruptible.run(
        lambda check: changes_of(store, below, head["entries"], body, check=check)
      )
    except ValueError as error:
      raise self._lose(str(error)) from None
    finally:
      store.release(below)

  async def find(self, needles: list[bytes], limit: int = 100) -> list[str]:
    """Every visible file that contains one of `needles`: whether an answer lies on the disk.

    Compressed files are not looked into.
    """
    if not needles or min(map(len, needles)) < 4:
      raise ValueError("needles must be given, of at least 4 bytes each, else all files match")
    request = {"op": "find", "needles": [n.hex() for n in needles], "limit": limit}
    head, _ = await self._call(request, b"", 4 * ANSWER_S, 0)
    try:
      return answers.paths(head, limit)
    except ValueError as error:
      raise self._lose(str(error)) from None

  async def start_program(
    self, command: Sequence[str], *, env: Mapping[str, str], cwd: str = "/work"
  ) -> Program:
    """Starts a program beside the shell, to be used through its standard input and output.

    It ends with the sandbox at the latest. A snapshot has what it wrote to files, and not itself.

    Args:
      command: name or path of a program in the sandbox, and its arguments.
      env: more variables than those of the first shell. Python finds the packages of the runtime,
        and no module in the folder that it runs in.
      cwd: the folder that it runs in, relative to /work.

    Raises:
      Refused: it cannot be started. A name that is not found is told by its `exchange`.
    """
    given = {"PYTHONPATH": f"/{PACKAGES}", "PYTHONSAFEPATH": "1", **env}
    words = [*command, *given, *given.values()]
    if not command or any("\0" in word for word in words):
      raise ValueError("a command needs a program, and neither it nor its variables may have a NUL")
    if (size := sum(map(len, words))) > MAX_COMMAND_BYTES:
      raise ValueError(f"a command of {size} characters: at most {MAX_COMMAND_BYTES}")
    request = {"op": "start", "command": list(command), "cwd": _absolute(cwd)}
    head, _ = await self._call(request | {"env": {**self._env, **given}}, b"", ANSWER_S, 0)
    if not isinstance(number := head.get("number"), int):
      raise self._lose("an answer to start has no number")
    return Program(self, self._call, self._lose, number)

  @property
  def is_gone(self) -> bool:
    """Whether it was closed or lost, so that no call of it succeeds."""
    return self._closed or bool(self._lost)

  @property
  def is_lost(self) -> bool:
    """Whether it is gone, and was not closed."""
    return bool(self._lost) and not self._closed

  async def reset(self) -> None:
    """Kills all that runs; the next command gets a new shell. Files and directory stay."""
    await self._call({"op": "reset"}, b"", ANSWER_S, 0)

  async def ping(self) -> None:
    """Returns when the agent answers."""
    await self._call({"op": "ping"}, b"", ANSWER_S, 0)

  async def close(self) -> None:
    """Ends everything in it and waits until it is gone."""
    self._closed = True
    self._writer.close()
    for _ in range(2):
      try:
        await asyncio.wait_for(self.ended.wait(), END_S)
        break
      except TimeoutError:
        await self._owner.kill(self.number)
    else:
      raise SandboxLost(f"sandbox {self.number} does not end within {2 * END_S:g} s of its kill")
    if self._pending:
      self._pending.cancel()

  def mark_killed(self) -> None:
    """Called when its end has been asked for; its process may live a moment longer."""
    self._lost = self._lost or "it was killed"

  def mark_ended(self) -> None:
    """Called by the backend when no process of it is left."""
    self.ended.set()
    self._lost = self._lost or "it ended by itself; its memory or the machine may have run out"

  async def _delta(self, *, with_state: bool) -> tuple[dict[str, Any], bytes | bytearray]:
    limit = self.limits.disk_bytes
    request = {"op": "delta", "max_bytes": limit, "state": with_state}
    head, body = await self._call(request, b"", 2 * ANSWER_S, limit, wire.MAX_HEADER_BYTES)
    try:
      answers.check_delta(head)
    except ValueError as error:
      raise self._lose(str(error)) from None
    return head, body

  def _add_layer(
    self, head: dict[str, Any], body: bytes | bytearray, check: interruptible.Check
  ) -> tuple[tuple[str, ...], str]:
    below = self.start.layers
    try:
      return self._owner.store.add(
        head["entries"], unpacking.slices(body), len(body), below=below, check=check
      )
    except ValueError as error:
      raise self._lose(f"its changes make no sense: {error}") from None

  async def _call(
    self,
    header: dict[str, Any],
    body: bytes,
    deadline_s: float,
    max_body: int,
    max_header: int = _MAX_ANSWER_BYTES,
  ) -> tuple[dict[str, Any], bytes | bytearray]:
    """One request and its answer."""
    async with self._lock:
      self._check_alive()
      try:
        async with asyncio.timeout(deadline_s):
          if self._pending:  # what a cancelled call left unanswered
            await asyncio.shield(self._pending)
          self._writer.write(wire.encode(header, len(body)))
          self._writer.write(body)
          self._pending = asyncio.create_task(self._receive(max_body, max_header))
          await self._writer.drain()
          head, content = await asyncio.shield(self._pending)
          self._pending = None
      except TimeoutError:
        text = f"no answer to {header['op']} within {deadline_s:g} s"
        await self._owner.kill(self.number)
        raise self._lose(text) from None
      except asyncio.CancelledError:
        if self._pending and not self._pending.done() and header["op"] == "exec":
          self._writer.write(wire.encode({"op": "cancel"}, 0))
        raise
      except (OSError, EOFError, wire.WireError) as error:
        raise self._lose(self._lost or f"{type(error).__name__}: {error}") from None
      if "refused" in head:
        raise Refused(str(head["refused"])[:2000])
      return head, content

  async def _receive(
    self, max_body: int, max_header: int = _MAX_ANSWER_BYTES
  ) -> tuple[dict[str, Any], bytes | bytearray]:
    lengths = await self._reader.readexactly(wire.LENGTHS.size)
    header_bytes, body_bytes = wire.LENGTHS.unpack(lengths)
    if header_bytes > max_header or body_bytes > max_body:
      raise wire.WireError(f"an answer of {header_bytes} + {body_bytes} bytes was not asked for")
    header = wire.decode(await self._reader.readexactly(header_bytes))
    if body_bytes <= _BLOCK:
      return header, await self._reader.readexactly(body_bytes)
    body = bytearray()  # readexactly would hold it twice
    while len(body) < body_bytes:
      part = await self._reader.read(min(body_bytes - len(body), _BLOCK))
      if not part:
        raise EOFError(f"{len(body)} bytes of {body_bytes} came")
      body += part
    return header, body

  def _check_alive(self) -> None:
    if self._closed:
      raise SandboxClosed(f"sandbox {self.number} was closed; create another")
    if self._lost:
      raise SandboxLost(f"sandbox {self.number}: {self._lost}")

  def _lose(self, text: str) -> SandboxLost:
    self._lost = text
    self._writer.close()
    return SandboxLost(f"sandbox {self.number}: {text}")


def _absolute(path: str) -> str:
  if not path or "\0" in path:
    raise ValueError(f"path {path!r} is empty or has a NUL")
  return posixpath.join("/work", path)
