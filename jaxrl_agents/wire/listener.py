"""Authenticated connections between the machines of a run.

Messages are pickles, and loading a pickle runs its code. Therefore nothing is loaded from an
unauthenticated peer: both ends first prove that they hold the same key, each by an HMAC of the
other's random challenge (`multiprocessing.connection` with an authkey). Then each sends in JSON
which code it runs, and different code is an error. The messages that follow are authenticated but
not encrypted, so use a private network or a tunnel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import platform
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from jaxrl_agents.wire import key as key_lib

SILENCE_S = 60.0
"""A machine that is silent for this long counts as gone; each sends a heartbeat every BEAT_S."""
BEAT_S = 5.0
_HANDSHAKE_S = 10.0
_HELLO_BYTES = 4096
_MAX_STRANGERS = 64
"""Connections that are being authenticated at once. Where more come, those go first that have taken
longer than _PROMPT_S.
"""
_PROMPT_S = 1.0
_RETRY_S = 0.2
_REFUSALS_A_MINUTE = 20


class RefusedError(ValueError):
  """The peer refused the connection, or is not the expected one; the message gives the reason."""


def parse(address: str) -> tuple[str, int]:
  """(host, port) of "host:port"; "[::1]:7000" for an IPv6 host. Raises ValueError."""
  host, colon, port = address.rpartition(":")
  if not colon or not port.isdigit() or int(port) > 65535:
    raise ValueError(f"{address!r} is not an address; write HOST:PORT, as in 10.0.0.2:7000")
  return host.strip("[]"), int(port)


@functools.cache
def code() -> Mapping[str, str]:
  """What two ends that exchange pickles must have in common: the Python version and this package's
  code.
  """
  digest = hashlib.sha256()
  package = pathlib.Path(__file__).parents[1]
  for path in sorted(package.rglob("*.py")):
    digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
  version = ".".join(platform.python_version_tuple()[:2])
  return {"python": version, "code": digest.hexdigest()[:16]}


class Listener:
  """Listens at an address and accepts peers that hold the key and run the same code. A context
  manager.

  Invariant: every connection that `take` returns has proved the key and reported the same code
  within _HANDSHAKE_S. Strangers cost a bounded number of descriptors and threads, and the listener
  goes on listening when the process has no descriptor left for another connection.

  Attributes:
    port: that it listens at.
    address: "host:port" for others to connect to.

  Args:
    address: "host:port"; host "0.0.0.0" for all interfaces of the machine, port 0 for any free one.
    key: see `key.read`.
    expected: {role: what a peer of this role must report}, `code()` or more.
  """

  def __init__(self, address: str, key: bytes, expected: Mapping[str, Mapping[str, str]]):
    host, port = parse(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    self._key, self._expected = key, expected
    self._arrived: dict[str, queue.SimpleQueue[tuple[str, Connection]]] = {
      role: queue.SimpleQueue() for role in expected
    }
    self._strangers: dict[socket.socket, float] = {}
    self._lock = threading.Lock()
    self._closed = False
    self._refusals, self._refusals_since = 0, 0.0
    self._socket = socket.create_server((host, port), family=family)
    self._socket.settimeout(_PROMPT_S)  # after which strangers that are too slow are looked for
    self.port: int = self._socket.getsockname()[1]
    named = socket.gethostname() if host in ("0.0.0.0", "::") else address.rpartition(":")[0]
    self.address = f"{named}:{self.port}"
    threading.Thread(target=self._listen, daemon=True).start()

  def __enter__(self) -> Listener:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def take(self, role: str) -> list[tuple[str, Connection]]:
    """(address, connection) of each peer that has connected in this role since the last call."""
    arrived = self._arrived[role]
    found = []
    while not arrived.empty():
      found.append(arrived.get())
    return found

  def close(self) -> None:
    """Stops listening and closes waiting connections; connections taken before stay open."""
    self._closed = True
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)  # ends a waiting accept
    self._socket.close()
    for role in self._arrived:
      for _, connection in self.take(role):
        connection.close()

  def _listen(self) -> None:
    while not self._closed:
      self._make_room()
      try:
        accepted, peer = self._socket.accept()
      except TimeoutError:
        continue
      except OSError as error:
        if not self._closed:
          self._wait_for_room(error)
        continue
      with self._lock:
        self._strangers[accepted] = time.monotonic()
      try:
        threading.Thread(target=self._greet, args=(accepted, peer), daemon=True).start()
      except RuntimeError as error:  # no thread can be started
        self._dismiss(accepted)
        self._wait_for_room(error)

  def _make_room(self) -> None:
    """Hangs up on strangers that have used up their time; waits while there are too many."""
    while not self._closed:
      with self._lock:
        full, now = len(self._strangers) >= _MAX_STRANGERS, time.monotonic()
        allowed_s = _PROMPT_S if full else _HANDSHAKE_S
        for stranger, since in self._strangers.items():
          if now - since > allowed_s:
            _shut_down(stranger)  # its thread reads the end of the connection
      if not full:
        return
      time.sleep(0.02)

  def _wait_for_room(self, error: Exception) -> None:
    """Tells that no connection can be accepted now, and waits before the next one."""
    self._tell(f"{self.address} cannot accept a connection now ({error}); it tries again")
    time.sleep(_RETRY_S)

  def _greet(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
    """Authenticates one connection and puts it on the queue of its role, or refuses it with the
    reason.
    """
    name = f"{peer[0]}:{peer[1]}"
    connection: Connection | None = None
    try:
      connection = _connection(accepted)
      deliver_challenge(connection, self._key)
      answer_challenge(connection, self._key)
      said = json.loads(connection.recv_bytes(_HELLO_BYTES))
      refusal = self._refusal(said)
      connection.send_bytes(json.dumps({"refused": refusal}).encode())
      if refusal:
        raise RefusedError(refusal)
      _set_timeouts(connection, receive_s=SILENCE_S)
      self._dismiss(accepted)
      self._arrived[said["role"]].put((name, connection))
      connection = None
    except AuthenticationError:
      self._refuse(name, "it does not hold the key of this run")
    except Exception as error:  # whatever the handshake of a stranger leads to
      reason = str(error) or f"it sent an invalid handshake ({type(error).__name__})"
      self._refuse(name, reason)
    finally:
      self._dismiss(accepted)
      if connection:
        connection.close()

  def _dismiss(self, accepted: socket.socket) -> None:
    """Ends the watch over a connection; `_connection` has a descriptor of its own."""
    with self._lock:
      self._strangers.pop(accepted, None)
      accepted.close()

  def _refusal(self, said: Mapping[str, str]) -> str:
    """Why a peer that reports this is refused; "" if it is accepted."""
    role = said.get("role", "")
    if role not in self._expected:
      return f"this run expects the role {' or '.join(self._expected)}, not {role!r}"
    wanted = self._expected[role]
    differ = [name for name in wanted if said.get(name) != wanted[name]]
    return "; ".join(f"{name} is {said.get(name)} there and {wanted[name]} here" for name in differ)

  def _refuse(self, name: str, reason: str) -> None:
    self._tell(f"{self.address} refused the connection from {name}: {reason}")

  def _tell(self, text: str) -> None:
    """Prints a line; of many in a minute only the first, for a stranger may come for ever."""
    with self._lock:
      now = time.monotonic()
      if now - self._refusals_since > 60.0:
        self._refusals, self._refusals_since = 0, now
      self._refusals += 1
      if self._refusals > _REFUSALS_A_MINUTE:
        return
      more = " (further lines of this minute are left out)"
      print(text + more * (self._refusals == _REFUSALS_A_MINUTE), file=sys.stderr, flush=True)


def connect(
  address: str, key: bytes, *, role: str, runs: Mapping[str, str], patience_s: float
) -> Connection:
  """Connects to the listener at `address`; tries again for `patience_s` while nothing listens
  there.

  Raises:
    TimeoutError: nothing answered in time.
    RefusedError: the key or the code differs; trying again would not help.
  """
  host, port = parse(address)
  deadline = time.monotonic() + patience_s
  while True:
    try:
      return _enter(socket.create_connection((host, port), _HANDSHAKE_S), address, key, role, runs)
    except (OSError, EOFError) as error:
      if time.monotonic() > deadline:
        raise TimeoutError(
          f"nothing answered at {address} for {patience_s:g} s ({error or 'it hung up'}); check "
          "that the run listens at this address and that no firewall blocks the port"
        ) from None
    time.sleep(min(1.0, patience_s / 10))


def _enter(
  connected: socket.socket, address: str, key: bytes, role: str, runs: Mapping[str, str]
) -> Connection:
  connection = _connection(connected)
  hang_up = threading.Timer(_HANDSHAKE_S, _shut_down, [connected])
  hang_up.start()
  try:
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    connection.send_bytes(json.dumps({"role": role, **runs}).encode())
    refusal = json.loads(connection.recv_bytes(_HELLO_BYTES))["refused"]
    if refusal:
      raise RefusedError(
        f"the run at {address} refused this {role}: {refusal}; use the same checkout, Python and "
        "config on both machines"
      )
    _set_timeouts(connection, receive_s=0)
    return connection
  except AuthenticationError:
    connection.close()
    raise RefusedError(
      f"the run at {address} has another key; set {key_lib.VARIABLE} or {key_lib.FILE_VARIABLE} to "
      "the same key on both"
    ) from None
  except AssertionError:  # Python 3.11 raises this if the first message is no challenge
    connection.close()
    raise RefusedError(f"the listener at {address} is not a run; check the port") from None
  except BaseException:
    connection.close()
    raise
  finally:
    hang_up.cancel()
    connected.close()


def _shut_down(connected: socket.socket) -> None:
  with contextlib.suppress(OSError):
    connected.shutdown(socket.SHUT_RDWR)


def _connection(connected: socket.socket) -> Connection:
  """A connection over a new socket, on which the kernel notices that a machine vanished.

  It has a descriptor of its own.
  """
  connected.settimeout(None)
  options: Iterable[tuple[str, int]] = (
    ("TCP_NODELAY", 1),
    ("TCP_KEEPIDLE", int(SILENCE_S / 4)),
    ("TCP_KEEPINTVL", int(SILENCE_S / 4)),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", int(1000 * SILENCE_S)),
  )
  connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in options:
    if hasattr(socket, name):  # not every system has all of these options
      connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
  connection = Connection(os.dup(connected.fileno()))
  _set_timeouts(connection, receive_s=_HANDSHAKE_S)
  return connection


def _set_timeouts(connection: Connection, *, receive_s: float) -> None:
  """Sets the kernel's timeouts of each read (0: none) and write; exceeding one is an OSError."""
  shared = socket.socket(fileno=os.dup(connection.fileno()))
  with shared:
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, SILENCE_S)):
      value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
      shared.setsockopt(socket.SOL_SOCKET, option, value)
