"""The process that runs tested code: does with its objects what the process with the tests asks.

It knows no test and no expected value, and reports no outcome. Requests and answers are lists:

  ["import", module] ["get", object, name] ["set", object, name, value] ["del", object, name]
  ["call", function, [argument], {name: argument}] ["op", name of OPERATIONS, [operand]]

  ["value", value, [[i, what mutable argument i holds now]]]  ["raise", error]

While it works on a request it may send requests of its own, for functions and objects that the
tests passed to it: ["call", ...] and ["op", ...], which are answered likewise.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

from jaxrl_agents.agents.coding.judge.inside import values

_OPERATORS = (
  "add sub mul matmul truediv floordiv mod pow lshift rshift and_ or_ xor iadd isub imul iand ior "
  "ixor ilshift irshift itruediv ifloordiv imod getitem setitem delitem neg pos invert index"
)
_BUILT_IN = "len iter next str repr format int float bytes abs round reversed divmod"
OPERATIONS: dict[str, Callable[..., Any]] = {
  **{name: getattr(operator, name) for name in _OPERATORS.split()},
  **{name: getattr(builtins, name) for name in _BUILT_IN.split()},
  "enter": lambda manager: type(manager).__enter__(manager),
  "leave": lambda manager: type(manager).__exit__(manager, None, None, None),
  "attribute": getattr,
}
"""What can be done with objects besides getting, setting and calling."""
_MUTABLE = (list, dict, set, bytearray)


class Lent:
  """An object of the tests, as the tested code sees it."""

  def __init__(self, service: Service, number: int):
    self.__dict__.update(_service=service, _number=number)

  def __getattr__(self, name: str) -> Any:
    if name.startswith("_"):
      raise AttributeError(name)
    return self._service.ask(["op", "attribute", [self, name]])

  def __call__(self, *arguments: Any, **named: Any) -> Any:
    return self._service.ask(["call", self, list(arguments), named])

  def __iter__(self) -> Any:
    return self._service.ask(["op", "iter", [self]])

  def __next__(self) -> Any:
    return self._service.ask(["op", "next", [self]])

  def __len__(self) -> int:
    return self._service.ask(["op", "len", [self]])

  def __getitem__(self, key: Any) -> Any:
    return self._service.ask(["op", "getitem", [self, key]])

  def __str__(self) -> str:
    return self._service.ask(["op", "str", [self]])


class Service:
  """Answers requests. Invariant: `_objects` has every object that was referred to, by number."""

  def __init__(self, read_fd: int, write_fd: int):
    self._read_fd, self._write_fd = read_fd, write_fd
    self._objects: list[Any] = []
    self._numbers: dict[int, int] = {}
    self._lent: dict[int, Lent] = {}

  def serve(self) -> None:
    """Answers until the other process is gone."""
    while True:
      self._answer(values.receive(self._read_fd))

  def ask(self, request: list[Any]) -> Any:
    """Sends a request to the tests, answers those that come meanwhile, and returns its value."""
    self._send(request)
    while True:
      message = values.receive(self._read_fd)
      if message[0] == "value":
        return self._decode(message[1])
      if message[0] == "raise":
        raise self._decode(message[1])(*self._decode(message[2]))
      self._answer(message)

  def _send(self, message: list[Any]) -> None:
    values.send(self._write_fd, [message[0], *map(self._encode, message[1:])])

  def _answer(self, request: list[Any]) -> None:
    try:
      verb, *operands = request
      operands = [self._decode(operand) for operand in operands]
      arguments = operands[1] if verb == "call" else []
      before = self._held(arguments)
      value = _VERBS[verb](*operands)
      after = self._held(arguments)
      changed = [now for old, now in zip(before, after, strict=True) if old != now]
      values.send(self._write_fd, ["value", self._encode(value), changed])
    except values.Broken:
      raise
    except BaseException as error:
      self._tell(error)

  def _held(self, arguments: list[Any]) -> list[list[Any]]:
    """[i, what argument i holds] of the mutable ones."""
    return [[i, self._encode(a)] for i, a in enumerate(arguments) if type(a) in _MUTABLE]

  def _tell(self, error: BaseException) -> None:
    try:
      parts = [self._encode(list(error.args)), str(error), self._encode(dict(vars(error)))]
    except Exception:
      parts = [["l", []], "", ["d", []]]
    values.send(self._write_fd, ["raise", self._class(type(error)), *parts])

  def _encode(self, value: Any) -> Any:
    return values.encode(value, self._refer)

  def _refer(self, value: Any) -> list[Any]:
    if isinstance(value, Lent):
      return ["yours", value.__dict__["_number"]]
    if isinstance(value, type) and issubclass(value, BaseException):
      return ["class", self._class(value)]
    if type(value) in values.DICTIONARIES:
      return [values.DICTIONARIES[type(value)], self._encode(dict(value))[1]]
    return ["mine", self._reference(value)]

  def _class(self, kind: type) -> list[list[Any]]:
    """The classes of exceptions from `kind` up to the first one that is built in."""
    chain: list[list[Any]] = []
    for each in kind.__mro__:
      if getattr(builtins, each.__name__, None) is each:
        return [*chain, ["built in", each.__name__]]
      if issubclass(each, BaseException):
        chain.append(["own", self._reference(each), each.__name__])
    return [*chain, ["built in", "Exception"]]

  def _reference(self, value: Any) -> int:
    number = self._numbers.setdefault(id(value), len(self._objects))
    if number == len(self._objects):
      self._objects.append(value)
    return number

  def _decode(self, sent: Any) -> Any:
    return values.decode(sent, self._resolve)

  def _resolve(self, sent: list[Any]) -> Any:
    tag, *rest = sent
    if tag == "yours":
      return self._objects[rest[0]]
    if tag == "mine":
      return self._lent.setdefault(rest[0], Lent(self, rest[0]))
    if tag == "name":
      found: Any = importlib.import_module(rest[0])
      for part in rest[1].split("."):
        found = getattr(found, part)
      return found
    raise ValueError(tag)


_VERBS: dict[str, Callable[..., Any]] = {
  "import": importlib.import_module,
  "get": getattr,
  "set": setattr,
  "del": delattr,
  "call": lambda function, arguments, named: function(*arguments, **named),
  "op": lambda name, operands: OPERATIONS[name](*operands),
}


def main() -> None:
  """Serves two inherited pipes; the command line has their numbers and the folder of the code."""
  read_fd, write_fd, folder, place = sys.argv[1:]
  sys.path[:] = [folder, *(path for path in sys.path if path != place)]
  os.chdir(folder)
  Service(int(read_fd), int(write_fd)).serve()
