"""Finds the answer to a task in the sandbox's own library.

Source files that contain it are masked. What is compiled into Python itself cannot be: no task is
made of it.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import json
import pathlib
import re
import subprocess
import sys
import sysconfig
from collections.abc import Collection

from jaxrl_agents.corpus.python_source import Function, ParsedModule

MIN_CHARACTERS = 60
"""Two lines with fewer characters could occur anywhere."""
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PLACE = f"/usr/lib/python{_VERSION}"
"""Location of the library in a sandbox."""


def masks(path: str) -> tuple[str, ...]:
  """A source file of the library in the sandbox, and its compiled files."""
  file = pathlib.PurePosixPath(path)
  tag = f"cpython-{_VERSION.replace('.', '')}"
  compiled = (f"{file.stem}.{tag}{level}.pyc" for level in ("", ".opt-1", ".opt-2"))
  return (path, *(str(file.parent / "__pycache__" / name) for name in compiled))


def telling(source: ParsedModule, function: Function) -> str:
  """The longest two consecutive lines of a function's body, by which a copy is recognised; "" if
  they are too short.
  """
  body = function.body
  if ast.get_docstring(function, clean=False) is not None:
    body = body[1:]
  if not body:
    return ""
  start = source.starts[body[0].lineno - 1]
  end = source.starts[body[-1].end_lineno or body[-1].lineno]
  lines = source.text[start:end].split("\n")
  pairs = [f"{a}\n{b}" for a, b in zip(lines, lines[1:], strict=False) if a.strip() and b.strip()]
  best = max(pairs, key=len, default="")
  return best if len(best) >= MIN_CHARACTERS else ""


def is_elsewhere(text: str, mask: Collection[str]) -> bool:
  """Whether a text occurs in a file of the library that is not masked."""
  return bool(text) and any(
    text in content for path, content in _library().items() if path not in mask
  )


@functools.cache
def _library() -> dict[str, str]:
  """{path in a sandbox: text} of the interpreter's library, of which sandboxes have a copy."""
  root = pathlib.Path(sysconfig.get_paths()["stdlib"])
  texts = {}
  for path in sorted(root.rglob("*.py")):
    inner = path.relative_to(root).as_posix()
    if not re.match(r"(site|dist)-packages/|test/test_|config-", inner):
      texts[f"{PLACE}/{inner}"] = path.read_text("utf-8", "replace")
  return texts


def has_twin(module: str) -> bool:
  """Whether a module of the library is compiled into Python, or has a counterpart in C.

  Masking its source would leave the counterpart, which does the same.
  """
  return module in _unmaskable() or f"_{module}" in _unmaskable()


@functools.cache
def offered() -> dict[str, tuple[str, ...]]:
  """{name of a callable: modules that offer it although no source file of theirs can be read}.

  These are built-in, extension and frozen modules.

  Raises:
    RuntimeError: this Python did not list them.
  """
  command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", _LIST, *sorted(_unmaskable())]
  shown = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_S)
  if shown.returncode:
    raise RuntimeError(f"{sys.executable} did not list its modules: {shown.stderr[-300:]}")
  found: dict[str, tuple[str, ...]] = {}
  for module, names in json.loads(shown.stdout.splitlines()[-1]).items():
    for name in names:
      found[name] = (*found.get(name, ()), module)
  return found


_LIST_S = 60.0
_LIST = """\
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
  try:
    module = importlib.import_module(name)
  except BaseException:
    continue
  found[name] = [key for key, value in vars(module).items() if callable(value)]
print(json.dumps(found))
"""
_WITH_EFFECTS = ("__hello__", "__phello__", "antigravity", "this", "_tkinter", "readline")


@functools.cache
def _unmaskable() -> frozenset[str]:
  import _imp  # the list of frozen modules has no public name

  names = {*sys.builtin_module_names, *getattr(_imp, "_frozen_module_names")()}  # noqa: B009
  suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
  for folder in (sysconfig.get_path("platstdlib"), sysconfig.get_config_var("DESTSHARED")):
    for path in pathlib.Path(folder or "/nowhere").glob("*"):
      if path.name.endswith(suffixes):
        names.add(path.name.partition(".")[0])
  return frozenset(name for name in names if not name.startswith(_WITH_EFFECTS))
