"""What test modules see in place of the tested code, which runs in another process.

A stand-in passes on what is done with it. It decides nothing: it cannot be compared, hashed, tested
for truth or class, or searched, because its answer would be the tested code's own verdict. Only
plain data that came out of the tested code can be asserted (`tester`).
"""

from __future__ import annotations

import builtins
import io
import sys
import types
import unittest
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_agents.agents.coding.judge.inside import values

_FORWARDED = (
  "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor divmod iadd isub imul iand "
  "ior ixor ilshift irshift itruediv ifloordiv imod neg pos invert abs round index int float bytes "
  "len iter next reversed getitem setitem delitem repr str format"
)
_REFLECTED = "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor divmod"
_REFUSED = (
  "eq ne lt le gt ge bool hash contains instancecheck subclasscheck reduce_ex copy deepcopy"
)
_OPERATOR = {"and": "and_", "or": "or_"}
_ITERATORS: tuple[type, ...] = (
  types.GeneratorType,
  type(iter([])),
  type(iter(())),
  map,
  filter,
  zip,
)
_STREAMS = (io.StringIO, io.BytesIO)


class Opaque(BaseException):
  """A test would rest on an object of the tested code, which must not decide an outcome."""


class Link:
  """Passes requests to the process that runs the tested code.

  Invariant: `is_broken` once the process has ended or broke the protocol; then nothing is sent any
  more. `is_opaque` is set when an outcome would rest on the tested code's own word.
  """

  def __init__(self, read_fd: int, write_fd: int):
    self._read_fd, self._write_fd = read_fd, write_fd
    self._mine: list[Any] = []
    self._numbers: dict[int, int] = {}
    self._stand_ins: dict[int, StandIn] = {}
    self._classes: dict[int, type] = {}
    self._class_numbers: dict[type, int] = {}
    self.test_modules: frozenset[str] = frozenset()
    self.is_broken = self.is_opaque = False

  def refuse(self, what: str) -> Any:
    """Raises Opaque."""
    self.is_opaque = True
    raise Opaque(what)

  def ask(self, verb: str, *operands: Any) -> Any:
    """Sends a request, answers those that come meanwhile, and returns its value or raises."""
    if self.is_broken:
      raise values.Broken("the tested code has ended")
    try:
      values.send(self._write_fd, [verb, *map(self._encode, operands)])
      while True:
        message = values.receive(self._read_fd)
        if message[0] == "value":
          _, value, changed = message
          for index, now in changed if verb == "call" else ():
            _become(operands[1][index], self._decode(now))
          return self._decode(value)
        if message[0] == "raise":
          error = self._error(*message[1:])
          break
        self._answer(message)
    except (values.Broken, TypeError, ValueError, IndexError, KeyError) as fault:
      self.is_broken = True
      raise values.Broken(f"the tested code broke the protocol: {fault}") from None
    raise error

  def _answer(self, message: list[Any]) -> None:
    """Does what the tested code asks with an object of the tests that was passed to it."""
    try:
      verb, target, *operands = message
      if verb == "call":
        function = self._decode(target)
        value = function(*self._decode(operands[0]), **self._decode(operands[1]))
      else:
        value = _LENT_OPERATIONS[target](*self._decode(operands[0]))
      answer = ["value", self._encode(value)]
    except Exception as error:
      kind = type(error) if vars(builtins).get(type(error).__name__) is type(error) else Exception
      answer = ["raise", ["name", "builtins", kind.__name__], ["l", [str(error)]]]
    values.send(self._write_fd, answer)

  def _encode(self, value: Any) -> Any:
    return values.encode(value, self._refer)

  def _decode(self, sent: Any) -> Any:
    return values.decode(sent, self._resolve)

  def _refer(self, value: Any) -> list[Any]:
    if type(value) is StandIn:
      return ["yours", object.__getattribute__(value, "_stand_in")[1]]
    if isinstance(value, type) and value in self._class_numbers:
      return ["yours", self._class_numbers[value]]
    if self._may_be_lent(value):
      number = self._numbers.setdefault(id(value), len(self._mine))
      if number == len(self._mine):
        self._mine.append(value)
      return ["mine", number]
    owner = getattr(value, "__objclass__", value)  # of a method like str.upper
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and module not in self.test_modules:
      found: Any = sys.modules.get(module)
      for part in name.split("."):
        found = getattr(found, part, None)
      if found is value:
        return ["name", module, name]
    return self.refuse(f"{type(value).__name__} cannot be passed to the tested code")

  def _may_be_lent(self, value: Any) -> bool:
    """Functions, classes and instances that the test modules define; streams and iterators."""
    is_case = isinstance(value, type) and issubclass(value, unittest.TestCase)
    if is_case or isinstance(value, (unittest.TestCase, types.ModuleType)):
      return False
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)):
      return self._may_be_lent(value.__self__)
    if isinstance(value, (types.FunctionType, type)):
      return value.__module__ in self.test_modules
    if type(value) in _STREAMS or isinstance(value, _ITERATORS):
      return True
    return type(value).__module__ in self.test_modules

  def _resolve(self, sent: list[Any]) -> Any:
    tag, *rest = sent
    if tag == "mine":
      if type(rest[0]) is not int:
        raise ValueError(tag)
      return self._stand_ins.setdefault(rest[0], StandIn(self, rest[0]))
    if tag == "yours":
      return self._mine[rest[0]]
    if tag == "class":
      return self._class(rest[0])
    raise ValueError(tag)

  def _class(self, chain: Sequence[Sequence[Any]]) -> type:
    """A class of exceptions for one of the tested code, below the same built-in one."""
    tag, *rest = chain[0]
    if tag == "built in":
      found = vars(builtins)[rest[0]]
      if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(rest[0])
      return found
    number, name = rest
    if number not in self._classes:
      text = lambda error: error.__dict__.get("_text") or ""
      made = type(str(name), (self._class(chain[1:]),), {"__str__": text})
      self._classes[number], self._class_numbers[made] = made, number
    return self._classes[number]

  def _error(self, chain: Any, arguments: Any, text: Any, attributes: Any) -> BaseException:
    """An exception as the tested code raised it."""
    kind, given = self._class(chain), self._decode(arguments)
    try:
      error = kind(*given)
    except Exception:  # a class that takes other arguments than it keeps
      error = Exception(str(text))
    if kind in self._class_numbers:
      error.__dict__.update(self._decode(attributes), _text=str(text))
    return error


def _become(target: Any, now: Any) -> None:
  """Gives a mutable argument the content that the tested code gave it."""
  if type(target) is not type(now):
    raise ValueError("an argument changed its type")
  if isinstance(target, (list, bytearray)):
    target[:] = now
  else:
    target.clear()
    target.update(now)


_LENT_OPERATIONS: dict[str, Callable[..., Any]] = {
  "attribute": lambda value, name: _public(value, name),
  "iter": iter,
  "next": next,
  "len": len,
  "str": str,
  "getitem": lambda value, key: value[key],
}


def _public(value: Any, name: Any) -> Any:
  if type(name) is not str or name.startswith("_"):
    raise AttributeError(f"{name!r} of an object of the tests is not for the tested code")
  return getattr(value, name)


class StandIn:
  """An object of the tested code. What is done with it is done there, or refused."""

  __slots__ = ("_stand_in",)

  def __init__(self, link: Link, number: int):
    object.__setattr__(self, "_stand_in", (link, number))

  def __getattr__(self, name: str) -> Any:
    return _link(self).ask("get", self, name)

  def __setattr__(self, name: str, value: Any) -> None:
    _link(self).ask("set", self, name, value)

  def __delattr__(self, name: str) -> None:
    _link(self).ask("del", self, name)

  def __call__(self, *arguments: Any, **named: Any) -> Any:
    return _link(self).ask("call", self, list(arguments), named)

  def __enter__(self) -> Any:
    return _link(self).ask("op", "enter", [self])

  def __exit__(self, kind: Any, *_: Any) -> Any:
    if kind is not None:
      _link(self).refuse("__exit__ could swallow what a test raised")
    _link(self).ask("op", "leave", [self])

  def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
    """A test module may define subclasses of the tested code's classes, but not use them."""
    link = _link(self)
    refuse = lambda *_, **__: link.refuse("a subclass of a class of the tested code")
    return (type("Refused", (), {"__new__": refuse, "__getattr__": refuse}),)


def _link(value: StandIn) -> Link:
  return object.__getattribute__(value, "_stand_in")[0]


def _forward(name: str) -> Callable[..., Any]:
  operation = _OPERATOR.get(name, name)
  return lambda self, *others: _link(self).ask("op", operation, [self, *others])


def _forward_reflected(name: str) -> Callable[..., Any]:
  operation = _OPERATOR.get(name, name)
  return lambda self, other: _link(self).ask("op", operation, [other, self])


def _refuse(name: str) -> Callable[..., Any]:
  return lambda self, *others: _link(self).refuse(f"__{name}__ of an object of the tested code")


for _name in _FORWARDED.split():
  setattr(StandIn, f"__{_name}__", _forward(_name))
for _name in _REFLECTED.split():
  setattr(StandIn, f"__r{_name}__", _forward_reflected(_name))
for _name in _REFUSED.split():
  setattr(StandIn, f"__{_name}__", _refuse(_name))


def refuse_inside(value: Any, depth: int = 0) -> None:
  """Raises Opaque if a stand-in is in `value`, a container or not."""
  if type(value) is StandIn:
    _link(value).refuse("an assertion about an object of the tested code")
  if depth < 6 and isinstance(value, (list, tuple, set, frozenset)):
    for item in value:
      refuse_inside(item, depth + 1)
  elif depth < 6 and isinstance(value, dict):
    for key, item in value.items():
      refuse_inside((key, item), depth + 1)
