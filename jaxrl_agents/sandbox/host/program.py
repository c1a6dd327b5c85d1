"""A program in a sandbox, used through its standard input and output (host side)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxrl_agents.sandbox.errors import SandboxLost

ANSWER_S = 30.0
MAX_EXCHANGED_BYTES = 1 << 20
"""Most that is read of a program's output, and of its errors, at once."""


class Exchanged(NamedTuple):
  """What a program wrote to its standard output and error, and whether its output has ended."""

  output: bytes
  errors: bytes
  ended: bool


class Place(Protocol):
  """What a program needs to know of its sandbox."""

  @property
  def is_gone(self) -> bool: ...


class Program:
  """Made by `Sandbox.start_program`. Its calls queue up with those of the sandbox, and raise what
  those raise; what it says is as untrusted as any file of the sandbox.
  """

  def __init__(
    self,
    box: Place,
    call: Callable[..., Any],
    lose: Callable[[str], SandboxLost],
    number: int,
  ):
    self._box, self._call, self._lose, self._number = box, call, lose, number

  @property
  def is_gone(self) -> bool:
    """Whether its sandbox is gone."""
    return self._box.is_gone

  async def exchange(self, text: bytes, wait_s: float) -> Exchanged:
    """Writes to its input and reads what it writes, until a line has ended or for `wait_s` seconds.

    What it does not read at once is written later.

    Raises:
      Refused: it has ended, and an earlier exchange said so, or it was stopped.
    """
    most = MAX_EXCHANGED_BYTES
    request = {"op": "exchange", "number": self._number, "wait_s": wait_s, "max_bytes": most}
    head, body = await self._call(request, text, wait_s + ANSWER_S, 2 * most)
    size = head.get("output")
    if not isinstance(size, int) or not 0 <= size <= len(body):
      raise self._lose("an answer to exchange makes no sense")
    return Exchanged(bytes(body[:size]), bytes(body[size:]), head.get("ended") is True)

  async def stop(self) -> None:
    """Kills it, if it still runs."""
    await self._call({"op": "stop", "number": self._number}, b"", ANSWER_S, 0)
