"""Damage of whole statements: lines that are doubled, lost, swapped or moved, wrong branches, early
returns.

Like those of `mutations`, each replaces a span of the text and nothing else. A statement counts
only where it has its lines to itself. Unlike "pass" in the place of a statement, this damage leaves
ordinary code, so that it is found by what the code does and not by how it looks.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from jaxrl_agents.agents.coding.tasks.mutations import Mutation
from jaxrl_agents.corpus.python_source import Function, ParsedModule

KINDS = ("doubled", "removed", "swapped", "moved", "branches", "returned")
"""A statement is repeated, or missing, or changes places with the next one; the last one of a block
stands after it, or the one after a block is its last; the two branches of a condition are swapped;
a name that was just assigned is returned at once.
"""
REPAIRS = ("removed", "swapped", "moved", "branches")
"""The kinds that also undo damage, if "removed" takes any simple statement: "doubled" and
"returned" are undone by a removal, and the rest by itself. A removed statement has to be written
anew, which none of them does.
"""
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Raise, ast.Pass)
_BLOCKS = (ast.For, ast.While, ast.If)


def damages(source: ParsedModule, function: Function) -> list[Mutation]:
  """The candidates of a function's body of the kinds KINDS; some change no behaviour."""
  found = list(_all(source, function, (ast.Assign, ast.AugAssign, ast.Expr)))
  for block in _blocks(function):
    for statement in block:
      if _repeats(statement) and _owns_its_lines(source, statement):
        start, end = _lines(source, statement)
        found.append(Mutation("doubled", end, end, source.text[start:end]))
      found += _early_return(source, block, statement)
  return _sorted(source, function, found)


def repairs(source: ParsedModule, function: Function) -> list[Mutation]:
  """The candidates of the kinds REPAIRS: what one can try without writing a statement."""
  return _sorted(source, function, _all(source, function, _SIMPLE))


def _sorted(source: ParsedModule, function: Function, found: Iterable[Mutation]) -> list[Mutation]:
  """The distinct candidates that stand after the docstring, kind by kind."""
  first = 0
  if ast.get_docstring(function, clean=False) is not None:
    first = _lines(source, function.body[0])[1]
  return sorted({each for each in found if each.start >= first}, key=dataclasses.astuple)


def _all(
  source: ParsedModule, function: Function, removable: tuple[type[ast.stmt], ...]
) -> Iterator[Mutation]:
  """The candidates of the kinds REPAIRS; only statements of the types `removable` are removed."""
  for block in _blocks(function):
    alone = [each if _owns_its_lines(source, each) else None for each in block]
    for one in alone if len(block) > 1 else ():
      if isinstance(one, removable):
        yield Mutation("removed", *_lines(source, one), "")
    for one, two in zip(alone, alone[1:], strict=False):
      if isinstance(one, _SIMPLE) and isinstance(two, _SIMPLE):
        yield _exchanged("swapped", source.text, _lines(source, one), _lines(source, two))
      if isinstance(one, _BLOCKS) and isinstance(two, _SIMPLE) and not one.orelse:
        yield from _reindented(source, two, one.body[-1].col_offset - two.col_offset)
    for statement in block:
      if isinstance(statement, _BLOCKS) and not statement.orelse and len(statement.body) > 1:
        last = statement.body[-1]
        if isinstance(last, _SIMPLE) and _owns_its_lines(source, last):
          yield from _reindented(source, last, statement.col_offset - last.col_offset)
  for node in ast.walk(function):
    if isinstance(node, (ast.If, ast.IfExp)):
      yield from _branches(source, node)


def _exchanged(kind: str, text: str, one: tuple[int, int], two: tuple[int, int]) -> Mutation:
  """Two spans change places; what stands between them stays."""
  (a, b), (c, d) = one, two
  return Mutation(kind, a, d, text[c:d] + text[b:c] + text[a:b])


def _blocks(function: Function) -> Iterator[Sequence[ast.stmt]]:
  """The lists of statements in a function, its own body first."""
  for node in ast.walk(function):
    for name in ("body", "orelse", "finalbody"):
      block = getattr(node, name, None)
      if isinstance(block, list) and block:
        yield block


def _lines(source: ParsedModule, statement: ast.stmt) -> tuple[int, int]:
  """The span of the whole lines of a statement, with their ends."""
  last = source.starts[statement.end_lineno or statement.lineno]
  return source.starts[statement.lineno - 1], min(last, len(source.text))


def _owns_its_lines(source: ParsedModule, statement: ast.stmt) -> bool:
  """Whether nothing but blanks stands before and after a statement in its lines."""
  start, end = _lines(source, statement)
  low = source.offset(statement.lineno, statement.col_offset)
  high = source.offset(statement.end_lineno or statement.lineno, statement.end_col_offset or 0)
  return source.text[end - 1 : end] == "\n" and not (
    source.text[start:low].strip() or source.text[high:end].strip()
  )


def _repeats(statement: ast.stmt) -> bool:
  """Whether a statement may do something else the second time: it changes what it reads."""
  if isinstance(statement, ast.AugAssign):
    return True
  if isinstance(statement, ast.Expr):
    return isinstance(statement.value, ast.Call)
  if not isinstance(statement, ast.Assign):
    return False
  names = [{n.id for n in ast.walk(t) if isinstance(n, ast.Name)} for t in statement.targets]
  read = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
  return any(each & read for each in names)


def _early_return(
  source: ParsedModule, block: Sequence[ast.stmt], statement: ast.stmt
) -> Iterator[Mutation]:
  if not isinstance(statement, ast.Assign) or not _owns_its_lines(source, statement):
    return
  target, last = statement.targets[0], statement is block[-1]
  if isinstance(target, ast.Name) and not last:
    following = block[block.index(statement) + 1]
    if not isinstance(following, ast.Return):
      _, end = _lines(source, statement)
      line = f"{' ' * statement.col_offset}return {target.id}\n"
      yield Mutation("returned", end, end, line)


def _reindented(source: ParsedModule, statement: ast.stmt, by: int) -> Iterator[Mutation]:
  """The lines of a statement with `by` more blanks before each, or fewer."""
  start, end = _lines(source, statement)
  lines = source.text[start:end].splitlines(keepends=True)
  if by < 0 and any(line[:-by].strip() for line in lines):
    return
  moved = [(" " * by + line if by > 0 else line[-by:]) for line in lines]
  yield Mutation("moved", start, end, "".join(moved))


def _branches(source: ParsedModule, node: ast.If | ast.IfExp) -> Iterator[Mutation]:
  """A condition with its two branches swapped, unless one is a further condition."""
  if isinstance(node, ast.IfExp):
    one, two = _expression(source, node.body), _expression(source, node.orelse)
    yield _exchanged("branches", source.text, one, two)
    return
  parts = (node.body, node.orelse)
  if not node.orelse or isinstance(node.orelse[0], ast.If):
    return
  if all(_owns_its_lines(source, each) for part in parts for each in (part[0], part[-1])):
    one, two = ((_lines(source, part[0])[0], _lines(source, part[-1])[1]) for part in parts)
    yield _exchanged("branches", source.text, one, two)


def _expression(source: ParsedModule, node: ast.expr) -> tuple[int, int]:
  start = source.offset(node.lineno, node.col_offset)
  return start, source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
