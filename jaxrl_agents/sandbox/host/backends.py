"""How an agent comes to run: forked by the zygote, or started by a command (bubblewrap, gVisor).

A backend is handed the agent's end of a socket pair and starts an agent that serves it; `ended` is
called with the sandbox's number when all of its processes are gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Protocol

from jaxrl_agents.sandbox.errors import NoSandbox, explain
from jaxrl_agents.sandbox.host import command_backends
from jaxrl_agents.sandbox.host.command_backends import PACKAGE_ROOT, Commands, boot
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.host.zygote import MAX_REQUEST_BYTES
from jaxrl_agents.sandbox.records import SandboxLimits, Snapshot

_SEND_TRIES_S = 0.001


class Backend(Protocol):
  """Starts and ends agents. `ended` is called once for each number that `launch` was given."""

  async def start(self, ended: Callable[[int], None]) -> None:
    """Makes ready. Raises NoSandbox with the reason and the remedy."""

  async def launch(
    self, number: int, start: Snapshot, limits: SandboxLimits, end: socket.socket
  ) -> None:
    """Starts an agent on `end`, which is closed here; the agent itself says when it is ready."""

  async def kill(self, number: int) -> None:
    """Ends a sandbox that does not end by itself."""

  async def stop(self) -> None:
    """Ends all of them."""

  @property
  def is_alive(self) -> bool:
    """Whether it can start agents."""


class Namespaces:
  """Forks of a zygote in namespaces of their own; needs nothing but the kernel."""

  def __init__(self, runtime: pathlib.Path, store: Store, owner: tuple[int, int]):
    self._runtime, self._store, self._owner = runtime, store.folder, owner
    self._process: subprocess.Popen[bytes] | None = None
    self._control: socket.socket | None = None
    self._alive: set[int] = set()

  async def start(self, ended: Callable[[int], None]) -> None:
    self._ended = ended
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    settings = {
      "control_fd": other.fileno(),
      "runtime": str(self._runtime),
      "store": str(self._store),
      "uid": self._owner[0],
      "gid": self._owner[1],
    }
    self._process = subprocess.Popen(
      [sys.executable, *boot("host.zygote", PACKAGE_ROOT, json.dumps(settings))],
      pass_fds=[other.fileno()],
      env={},
      cwd="/",
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      start_new_session=True,
    )
    other.close()
    control.setblocking(False)
    self._control = control
    try:
      text = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(control, 1 << 16), 30.0)
    except TimeoutError:
      await self.stop()
      raise NoSandbox("the zygote did not start within 30 s; is the machine overloaded?") from None
    answer = json.loads(text) if text else {"failed": "the zygote ended at once"}
    if "failed" in answer:
      await self.stop()
      raise NoSandbox(explain(answer["failed"]))
    asyncio.get_running_loop().add_reader(control, self._receive)

  async def launch(
    self, number: int, start: Snapshot, limits: SandboxLimits, end: socket.socket
  ) -> None:
    request = {"id": number, "layers": start.layers, "mask": start.mask}
    text = json.dumps(request | {"limits": dataclasses.asdict(limits)}).encode()
    if len(text) > MAX_REQUEST_BYTES:
      end.close()
      self._ended(number)
      raise ValueError(f"a mask of {len(start.mask)} paths is too long; name folders instead")
    self._alive.add(number)
    try:
      await self._send(text, [end.fileno()])
    except BaseException:
      self._alive.discard(number)
      self._ended(number)
      raise
    finally:
      end.close()

  async def kill(self, number: int) -> None:
    await self._send(json.dumps({"kill": number}).encode(), [])

  @property
  def is_alive(self) -> bool:
    return self._control is not None

  async def stop(self) -> None:
    if self._control:
      asyncio.get_running_loop().remove_reader(self._control)
      self._control.close()
      self._control = None
    if self._process:
      try:
        await asyncio.to_thread(self._process.wait, 5.0)
      except subprocess.TimeoutExpired:
        self._process.kill()
        await asyncio.to_thread(self._process.wait, 10.0)
    self._lose_all()

  async def _send(self, text: bytes, fds: list[int]) -> None:
    """One datagram; waits while the zygote is behind. The caller sets the deadline."""
    while self._control:
      try:
        socket.send_fds(self._control, [text], fds)
        return
      except BlockingIOError:
        await asyncio.sleep(_SEND_TRIES_S)
      except OSError:
        break
    raise NoSandbox("the zygote is gone; make a new Sandboxes")

  def _receive(self) -> None:
    assert self._control
    try:
      text = self._control.recv(1 << 16)
    except BlockingIOError:
      return
    except OSError:
      text = b""
    if not text:
      asyncio.get_running_loop().remove_reader(self._control)
      self._control.close()
      self._control = None
      self._lose_all()
      return
    number = json.loads(text)["ended"]
    if number in self._alive:
      self._alive.discard(number)
      self._ended(number)

  def _lose_all(self) -> None:
    for number in tuple(self._alive):
      self._alive.discard(number)
      self._ended(number)


BACKENDS: dict[str, Callable[[pathlib.Path, Store, tuple[int, int]], Backend]] = {
  "namespaces": Namespaces,
  "bubblewrap": functools.partial(Commands, command=command_backends.bubblewrap, program="bwrap"),
  "gvisor": functools.partial(Commands, command=command_backends.gvisor, program="runsc"),
  "unsafe-local": functools.partial(Commands, command=command_backends.unsafe_local, program=""),
}
