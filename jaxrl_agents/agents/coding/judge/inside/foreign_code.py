"""Keeps code that is made of data out of the process that runs tests.

Tests evaluate texts and load pickles, and these may come out of the tested code. Whoever chooses
them would run code where outcomes are decided, so that a test which does so is refused.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

_LIBRARY = os.path.dirname(os.__file__) + "/"
_IMPORTERS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_GENERATORS = ("collections", "dataclasses")
"""Modules of the library that run text of their own, with names that they check."""
_ALWAYS_REFUSED = ("pickle.find_class", "function.__new__")

refusals: list[str] = []
"""What was refused: a test may catch the exception."""


class Refused(BaseException):
  """A test would run code that may have come out of the tested code."""


def refuse_from_now_on(may_run: types.CodeType) -> None:
  """Refuses such code, also what imports it, until the process ends.

  Args:
    may_run: the code of the function that runs test modules.
  """

  def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _ALWAYS_REFUSED:
      _refuse(event)
    elif event in ("marshal.load", "marshal.loads"):
      if sys._getframe(1).f_code.co_filename not in _IMPORTERS:
        _refuse(event)
    elif event == "exec":
      caller = sys._getframe(1)
      if caller.f_code is not may_run and not _is_harmless(arguments[0], caller):
        _refuse(event)

  sys.addaudithook(hook)


def _refuse(event: str) -> None:
  refusals.append(event)
  raise Refused(event)


def _is_harmless(code: types.CodeType, caller: types.FrameType) -> bool:
  """Whether the library runs code of its own, or the code names nothing, as plain data does."""
  path = caller.f_code.co_filename
  if path in _IMPORTERS:
    return code.co_filename.startswith((_LIBRARY, "<frozen "))
  if path.startswith(_LIBRARY) and caller.f_globals.get("__name__") in _GENERATORS:
    return True
  return _names_nothing(code)


def _names_nothing(code: types.CodeType) -> bool:
  inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
  return not code.co_names and all(map(_names_nothing, inner))
