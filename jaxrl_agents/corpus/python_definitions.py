"""Cuts Python source at its definitions.

A definition that fits is one piece. Of a larger one the signature and the first paragraph of its
docstring come first, then the rest of the docstring, the runs of its body and its definitions.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
import itertools
import warnings
from collections.abc import Iterable, Iterator

from jaxrl_agents.corpus.halving import Atoms, Cutter

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse(text: str) -> ast.Module | None:
  """The syntax tree; None if this Python cannot parse the source, which is then cut as prose."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
      return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
      return None


@dataclasses.dataclass(frozen=True)
class _Lines:
  """Where the lines of a source, counted from 1, are among its atoms."""

  texts: list[str]
  firsts: list[int]  # line number at which each atom starts

  def atom(self, line: int) -> int:
    """The first atom of a line; the number of atoms where the text has no such line."""
    if line > len(self.texts):
      return len(self.firsts)
    at = bisect.bisect_left(self.firsts, line)
    starts_here = at < len(self.firsts) and self.firsts[at] == line
    return at if starts_here else at - 1  # else a blank line that was joined to the atom before

  def blank(self, line: int) -> bool:
    return not self.texts[line - 1].strip()

  def after_blanks(self, line: int) -> int:
    while line <= len(self.texts) and self.blank(line):
      line += 1
    return line

  def definition_start(self, node: _Definition) -> int:
    """The line of the first decorator, or of the comment that stands right above."""
    line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    while line > 1 and self._comment_at(line - 1, node.col_offset):
      line -= 1
    return line

  def _comment_at(self, line: int, column: int) -> bool:
    text = self.texts[line - 1]
    return text[column : column + 1] == "#" and not text[:column].strip()


def spans(cutter: Cutter, atoms: Atoms, tree: ast.Module) -> list[tuple[int, int]]:
  """Returns spans (start, end) of atoms, the lines of the source, cut at definitions."""
  newlines = itertools.accumulate((text.count("\n") for text in atoms.texts), initial=0)
  firsts = [1 + count for count in newlines][: len(atoms.texts)]
  lines = _Lines("".join(atoms.texts).split("\n"), firsts)
  parts = _parts(cutter, atoms, lines, tree, 0, len(atoms.texts))
  return [span for span, _ in parts]


def _parts(
  cutter: Cutter, atoms: Atoms, lines: _Lines, node: ast.AST, start: int, end: int
) -> list[tuple[tuple[int, int], bool]]:
  """Cuts one definition (or the module) to (span, whether a definition starts there)."""
  if cutter.fits_span(atoms, start, end):
    return [((start, end), True)]
  heads = [lines.atom(line) for line in _head_ends(lines, node)]
  parts: list[tuple[tuple[int, int], bool]] = []

  def add_run(low: int, high: int) -> None:
    edges = [low, *(head for head in heads if low < head < high), high]
    for left, right in itertools.pairwise(edges):
      if left < right:
        parts.extend((span, False) for span in cutter.halves(atoms, left, right))

  at = start
  for child in _definitions_in(node):
    low = max(at, lines.atom(lines.definition_start(child)))
    high = lines.atom(lines.after_blanks((child.end_lineno or child.lineno) + 1))
    add_run(at, low)
    parts += _parts(cutter, atoms, lines, child, low, high)
    at = high
  add_run(at, end)
  return _merged(cutter, atoms, parts)


def _merged(
  cutter: Cutter, atoms: Atoms, parts: Iterable[tuple[tuple[int, int], bool]]
) -> list[tuple[tuple[int, int], bool]]:
  """Joins neighbours that fit in one chunk, unless a definition starts at the second."""
  merged: list[tuple[tuple[int, int], bool]] = []
  for (start, end), starts_definition in parts:
    if merged and not starts_definition and cutter.fits_span(atoms, merged[-1][0][0], end):
      merged[-1] = ((merged[-1][0][0], end), merged[-1][1])
    else:
      merged.append(((start, end), starts_definition))
  return merged


def _definitions_in(node: ast.AST) -> Iterator[_Definition]:
  """The definitions directly inside a node, also below if, try, with and loops, in order."""
  stack = _statements(node)[::-1]
  while stack:
    child = stack.pop()
    if isinstance(child, _Definition):
      yield child
    else:
      stack += _statements(child)[::-1]


def _statements(node: ast.AST) -> list[ast.AST]:
  blocks = ("body", "handlers", "cases", "orelse", "finalbody")
  return [child for name in blocks for child in _block(node, name)]


def _block(node: ast.AST, name: str) -> list[ast.AST]:
  block = getattr(node, name, None)
  return block if isinstance(block, list) else []


def _head_ends(lines: _Lines, node: ast.AST) -> list[int]:
  """The lines after the docstring's first paragraph, and after the docstring; empty without one."""
  body = getattr(node, "body", None)
  if not body or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Constant):
    return []
  if not isinstance(body[0].value.value, str):
    return []
  first, last = body[0].lineno, body[0].end_lineno or body[0].lineno
  blanks = (line for line in range(first + 1, last + 1) if lines.blank(line))
  return sorted({lines.after_blanks(next(blanks, last + 1)), lines.after_blanks(last + 1)})
