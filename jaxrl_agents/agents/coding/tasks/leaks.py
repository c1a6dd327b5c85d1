"""Finds the answer to a task in the sandbox's own library, which must then be masked."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
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
