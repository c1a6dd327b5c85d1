"""A client of models behind HTTP APIs: deadlines, bounded retries, bounded answers.

A request that fails for good is an `EpisodeError`: a fault of the infrastructure, which a rollout
carries as its error and which is never a reward of 0.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import http.client
import json
import os
import pathlib
import socket
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jaxrl_agents.config.ranges import shown
from jaxrl_agents.harness.rollout import EpisodeError

T = TypeVar("T")

MAX_ANSWER_BYTES = 2**20
MAX_PAUSE_S = 8.0
"""Longest pause before a further try, whatever the server asks for."""
FIRST_PAUSE_S = 0.25
_FURTHER_SEEDS = 7_919
_MAY_PASS = (408, 425, 429, 500, 502, 503, 504, 529)
"""Statuses of an overload or a fault that may pass."""


class EndpointError(EpisodeError):
  """The endpoint gave no usable answer within its tries."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """Where a model answers, and for how long it is waited for.

  Attributes:
    url: base address, "http://127.0.0.1:8000/v1".
    model: its name there.
    key: sent as a bearer token; "" for none. It is in no `repr`.
    request_s: most seconds of one request.
    tries: requests until an answer is usable.
    at_once: requests at the same time.
  """

  url: str
  model: str
  key: str = dataclasses.field(default="", repr=False)
  request_s: float = 30.0
  tries: int = 3
  at_once: int = 16


def read_key(key_file: str, key_env: str) -> str:
  """The key in a file or in a variable of the environment; "" if neither is named.

  Raises:
    ValueError: the file or the variable is missing or empty, or holds no token.
  """
  if not key_file and not key_env:
    return ""
  if key_env:
    source, text = f"the variable {key_env}", os.environ.get(key_env, "")
  else:
    source = f"the file {key_file}"
    try:
      text = pathlib.Path(key_file).expanduser().read_text("utf-8")
    except (OSError, ValueError, RuntimeError) as error:
      raise ValueError(f"{source} with the key cannot be read: {type(error).__name__}") from None
  key = text.strip()
  if not key or not key.isascii() or not key.isprintable() or " " in key:
    raise ValueError(f"{source} holds no key: one word of printable ASCII is expected")
  return key


class Client:
  """Asks one endpoint. Invariant: at most `at_once` requests are under way.

  Requests run in threads of its own; one that is given up has its socket closed, which ends the
  thread.
  """

  def __init__(self, endpoint: Endpoint):
    self.endpoint = endpoint
    self._places = asyncio.Semaphore(endpoint.at_once)
    self._threads = concurrent.futures.ThreadPoolExecutor(endpoint.at_once, "endpoint")

  async def ask(self, request: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
    """Posts a chat completion, and returns what `read` makes of the answer's message; else as
    `post`.
    """
    return await self.post("/chat/completions", request, lambda answer: read(_message(answer)))

  async def post(self, path: str, request: Mapping[str, Any], read: Callable[[bytes], T]) -> T:
    """Posts a request and returns what `read` makes of the answer.

    Args:
      path: of the interface, after the base address.
      request: the body, without the model. A further try has another "seed", if there is one.
      read: raises ValueError for an answer that is of no use, so that it is asked for again.

    Raises:
      EndpointError: the endpoint refused, or `tries` requests brought no usable answer.
    """
    endpoint, reason = self.endpoint, ""
    for number in range(endpoint.tries):
      again = {"seed": request["seed"] + _FURTHER_SEEDS * number} if "seed" in request else {}
      body = json.dumps({"model": endpoint.model, **request, **again}).encode("utf-8", "replace")
      pause_s = min(FIRST_PAUSE_S * 2**number, MAX_PAUSE_S)
      async with self._places:
        try:
          status, retry_after_s, answer = await self._posted(path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
          reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        else:
          text = answer[:200].decode("utf-8", "replace")
          if status == 200:
            try:
              return read(answer)
            except ValueError as error:
              reason = f"its answer is of no use: {error}"
          elif status in _MAY_PASS:
            reason = f"status {status}: {shown(text)}"
            pause_s = min(max(pause_s, retry_after_s), MAX_PAUSE_S)
          else:
            raise EndpointError(f"{self._where()} refused with status {status}: {shown(text)}")
      if number + 1 < endpoint.tries:
        await asyncio.sleep(pause_s)
    raise EndpointError(f"{self._where()} failed {endpoint.tries} times, at last by {reason}")

  def _where(self) -> str:
    return f"{self.endpoint.url} (model {shown(self.endpoint.model)})"

  async def _posted(self, path: str, body: bytes) -> tuple[int, float, bytes]:
    """(status, seconds to wait by Retry-After, body) of one request.

    Raises:
      OSError, http.client.HTTPException: there was none, within `request_s` (TimeoutError).
      ValueError: it is too large.
    """
    endpoint = self.endpoint
    parts = urllib.parse.urlsplit(endpoint.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=endpoint.request_s)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if endpoint.key:
      headers["Authorization"] = f"Bearer {endpoint.key}"
    whole = f"{parts.path.rstrip('/')}{path}"
    call = functools.partial(_exchanged, connection, whole, body, headers)
    waited = asyncio.get_running_loop().run_in_executor(self._threads, call)
    waited.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
      async with asyncio.timeout(endpoint.request_s):
        return await asyncio.shield(waited)
    except TimeoutError:
      raise TimeoutError(f"no complete answer within {endpoint.request_s:g} s") from None
    finally:
      if not waited.done():
        _give_up(connection)


def _exchanged(
  connection: http.client.HTTPConnection, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, float, bytes]:
  with contextlib.closing(connection):
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    answer = response.read(MAX_ANSWER_BYTES + 1)
    if len(answer) > MAX_ANSWER_BYTES:
      raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    asked = response.headers.get("Retry-After", "")
    return response.status, float(asked) if asked.isdecimal() else 0.0, answer


def _give_up(connection: http.client.HTTPConnection) -> None:
  """Ends what a thread waits for on this connection."""
  if connection.sock is not None:
    with contextlib.suppress(OSError):
      connection.sock.shutdown(socket.SHUT_RDWR)


def _message(answer: bytes) -> Mapping[str, Any]:
  """The message of the first choice. Raises ValueError if the answer is no completion."""
  try:
    choice = json.loads(answer)["choices"][0]
    message, is_cut = choice["message"], choice.get("finish_reason") == "length"
  except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
    raise ValueError(f"it is no chat completion ({type(error).__name__})") from None
  if is_cut:
    raise ValueError("it was cut off at max_tokens; allow more of them")
  if not isinstance(message, dict):
    raise ValueError("its message is no object")
  return message
