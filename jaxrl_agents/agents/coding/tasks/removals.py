"""Features removed from Python source: bodies of functions; signatures and docstrings stay."""

from __future__ import annotations

import ast
import dataclasses
import random
from collections.abc import Sequence

from jaxrl_agents.agents.coding.tasks.mutations import functions
from jaxrl_agents.corpus.python_source import Function, ParsedModule

MISSING = "raise NotImplementedError"


@dataclasses.dataclass(frozen=True)
class Removal:
  """The body of one function: the characters [start, end) of its text, `lines` lines."""

  name: str
  start: int
  end: int
  lines: int

  def applied(self, text: str, line: str = MISSING) -> str:
    """The text with the body replaced by one line."""
    return text[: self.start] + line + text[self.end :]


def removals(source: ParsedModule, min_lines: int = 2) -> list[Removal]:
  """The removable bodies of a module's functions and methods, in the order of the text.

  A body begins after the docstring, on a line of its own.
  """
  found = []
  for name, function in functions(source):
    removal = body(source, name, function)
    is_there = removal and source.text[removal.start : removal.end] != MISSING
    if removal and is_there and removal.lines >= min_lines:
      found.append(removal)
  return sorted(found, key=lambda r: r.start)


def body(source: ParsedModule, name: str, function: Function) -> Removal | None:
  """The body of a function; None if it has nothing but a docstring, or begins on another's line."""
  statements: Sequence[ast.stmt] = function.body
  if ast.get_docstring(function, clean=False) is not None:
    statements = statements[1:]
  if not statements:
    return None
  first, last = statements[0], statements[-1]
  decorators = getattr(first, "decorator_list", [])
  line = min([first.lineno, *(d.lineno for d in decorators)])
  start = source.offset(line, first.col_offset)
  if source.text[source.starts[line - 1] : start].strip():
    return None
  end = source.offset(last.end_lineno or last.lineno, last.end_col_offset or 0)
  text = source.text[start:end]
  return Removal(name, start, end, sum(bool(each.strip()) for each in text.split("\n")))


def pick(found: Sequence[Removal], lines: int, draw: random.Random) -> list[Removal]:
  """Random bodies with at most `lines` lines together."""
  left, picked = lines, []
  for removal in draw.sample(list(found), len(found)):
    if removal.lines <= left:
      picked.append(removal)
      left -= removal.lines
    if left < 2:
      break
  return sorted(picked, key=lambda r: r.start)
