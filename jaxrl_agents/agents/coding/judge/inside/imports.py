"""Imports of test modules: tests come from memory, and stand-ins for the modules of tested code."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding.judge.inside.stand_ins import Link, StandIn

_NAMES_OF_IMPORT = (
  "__all__",
  "__path__",
  "__file__",
  "__spec__",
  "__loader__",
  "__package__",
  "__cached__",
)
_ORIGINAL = "_original"
"""The name under which a stand-in for a module keeps the stand-in for its object."""


class StandInModule(types.ModuleType):
  """A module of the tested code."""

  def __getattr__(self, name: str) -> Any:
    if name in _NAMES_OF_IMPORT:
      raise AttributeError(name)
    return getattr(self.__dict__[_ORIGINAL], name)

  def __setattr__(self, name: str, value: Any) -> None:
    is_submodule = isinstance(value, types.ModuleType)
    if name in _NAMES_OF_IMPORT or is_submodule or _ORIGINAL not in self.__dict__:
      super().__setattr__(name, value)
    else:
      setattr(self.__dict__[_ORIGINAL], name, value)

  def __delattr__(self, name: str) -> None:
    if name in self.__dict__:
      super().__delattr__(name)
    else:
      delattr(self.__dict__[_ORIGINAL], name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds test modules in memory, and stand-ins for the modules of the tested code.

  Args:
    link: to the tested code.
    tests: {path: text} of test modules.
    sources: names of the modules of the tested code.
  """

  def __init__(self, link: Link, tests: Mapping[str, str], sources: Sequence[str]):
    self._link = link
    self._tests = {_module_of(path): (path, text) for path, text in tests.items()}
    self._sources = _with_parents(sources)
    self._taken = _names_from_elsewhere(tests.values(), self._sources)
    self._folders = _with_parents(self._tests) - set(self._tests) - self._sources
    link.test_modules = frozenset(self._tests)

  @contextlib.contextmanager
  def installed(self) -> Iterator[None]:
    """Imports go here first; afterwards all is as it was before."""
    names = {*self._tests, *self._sources, *self._folders}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.meta_path.insert(0, self)
    try:
      yield
    finally:
      sys.meta_path.remove(self)
      for name in names:
        sys.modules.pop(name, None)
      sys.modules.update(before)

  def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
    if fullname not in self._tests and fullname not in self._sources | self._folders:
      return None
    is_package = fullname not in self._tests or self._tests[fullname][0].endswith("__init__.py")
    return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

  def create_module(self, spec: Any) -> types.ModuleType | None:
    if spec.name not in self._sources:
      return None
    made = StandInModule(spec.name)
    original = self._link.ask("import", spec.name)
    if not isinstance(original, StandIn):
      raise ImportError(f"{spec.name} of the tested code is no module")
    made.__dict__[_ORIGINAL] = original
    names = getattr(original, "__all__", None)
    if isinstance(names, (list, tuple)):
      made.__dict__["__all__"] = [name for name in names if self._may_be_given(name)]
    return made

  def _may_be_given(self, name: Any) -> bool:
    """Whether `import *` gives a name: none that a test module got from elsewhere."""
    return isinstance(name, str) and name[:2] != "__" and name not in self._taken

  def exec_module(self, module: types.ModuleType) -> None:
    if module.__name__ in self._tests:
      path, text = self._tests[module.__name__]
      module.__file__ = path
      exec(compile(text, path, "exec"), module.__dict__)


def _module_of(path: str) -> str:
  return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _with_parents(names: Iterable[str]) -> set[str]:
  found: set[str] = set()
  for name in names:
    parts = name.split(".")
    found.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
  return found


def _names_from_elsewhere(texts: Iterable[str], sources: Collection[str]) -> set[str]:
  """Built-in names, and those that test modules import from other modules than the tested ones."""
  found = set(dir(builtins))
  for text in texts:
    try:
      nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
      continue
    for node in nodes:
      if isinstance(node, ast.Import):
        others = [each for each in node.names if each.name not in sources]
      elif isinstance(node, ast.ImportFrom) and not node.level and node.module not in sources:
        others = node.names
      else:
        continue
      found.update(each.asname or each.name.partition(".")[0] for each in others)
  return found
