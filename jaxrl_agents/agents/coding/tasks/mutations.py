"""Small damage to Python source: one token, or one statement, of a function.

A mutation replaces a span of the text and nothing else, so that comments and layout stay. The
result parses, and its syntax tree differs.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

from jaxrl_agents.corpus.python_source import FUNCTIONS, Function, ParsedModule

_COMPARISONS: dict[type[ast.AST], tuple[str, tuple[tuple[str, str], ...]]] = {
  # operator -> its text, and (kind, replacement)
  ast.Lt: ("<", (("boundary", "<="), ("comparison", ">"))),
  ast.LtE: ("<=", (("boundary", "<"), ("comparison", ">="))),
  ast.Gt: (">", (("boundary", ">="), ("comparison", "<"))),
  ast.GtE: (">=", (("boundary", ">"), ("comparison", "<="))),
  ast.Eq: ("==", (("comparison", "!="),)),
  ast.NotEq: ("!=", (("comparison", "=="),)),
  ast.In: ("in", (("negation", "not in"),)),
  ast.NotIn: ("not in", (("negation", "in"),)),
  ast.Is: ("is", (("negation", "is not"),)),
  ast.IsNot: ("is not", (("negation", "is"),)),
}
_OPERATORS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
  ast.Add: ("+", ("-",)),
  ast.Sub: ("-", ("+",)),
  ast.Mult: ("*", ("+", "//")),
  ast.Div: ("/", ("*",)),
  ast.FloorDiv: ("//", ("*",)),
  ast.Mod: ("%", ("//",)),
  ast.LShift: ("<<", (">>",)),
  ast.RShift: (">>", ("<<",)),
  ast.BitAnd: ("&", ("|",)),
  ast.BitOr: ("|", ("&",)),
}
_ALIKE = (
  ("min", "max"),
  ("any", "all"),
  ("lstrip", "rstrip"),
  ("startswith", "endswith"),
  ("find", "rfind"),
  ("index", "rindex"),
  ("split", "rsplit"),
  ("partition", "rpartition"),
  ("upper", "lower"),
  ("isupper", "islower"),
  ("keys", "values"),
  ("append", "extend"),
  ("floor", "ceil"),
)
_TWIN = {a: b for pair in _ALIKE for a, b in (pair, pair[::-1])}
_COUNTERPARTS = (
  *_ALIKE,
  ("<", "<="),
  (">", ">="),
  ("==", "!="),
  ("in", "not in"),
  ("is", "is not"),
  ("and", "or"),
  ("+", "-"),
  ("*", "//"),
  ("<<", ">>"),
  ("&", "|"),
  ("+=", "-="),
  ("*=", "//="),
  ("True", "False"),
  *((str(n), str(n + 1)) for n in range(0, 10, 2)),
)
_FLIPPED = {a: b for pair in _COUNTERPARTS for a, b in (pair, pair[::-1])}
ONE_TOKEN = ("boundary", "comparison", "negation", "operator", "logic", "constant", "name", "call")
STATEMENT = ("arguments", "statement", "return")


@dataclasses.dataclass(frozen=True)
class Mutation:
  """Replaces the characters [start, end) of a text by `new`."""

  kind: str
  start: int
  end: int
  new: str

  def applied(self, text: str) -> str:
    """The text with the damage."""
    return text[: self.start] + self.new + text[self.end :]


def mutations(source: ParsedModule, function: Function) -> list[Mutation]:
  """All mutations of a function's body that parse and change its syntax tree, kind by kind."""
  changes = changing(source, function)
  return [mutation for mutation in candidates(source, function) if changes(mutation)]


def is_flip(source: ParsedModule, mutation: Mutation) -> bool:
  """Whether one token is replaced by its counterpart, and that one's counterpart is the first token
  again. The damaged token then tells the original; only its place has to be found. It occurs once
  in its line, before and after.
  """
  text, start, end = source.text, mutation.start, mutation.end
  if _FLIPPED.get(text[start:end]) != mutation.new:
    return False
  start -= text[:start].endswith(" ")
  first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
  line = text[first : last if last >= 0 else len(text)]
  old, new = text[start:end], text[start : mutation.start] + mutation.new
  changed = line[: start - first] + new + line[end - first :]
  return line.count(old) == 1 and changed.count(new) == 1


def changing(source: ParsedModule, function: Function) -> Callable[[Mutation], bool]:
  """Tells whether a candidate parses and changes the syntax tree of the function."""
  return _Spot(source, function).changes


def candidates(source: ParsedModule, function: Function) -> list[Mutation]:
  """The candidate mutations of a function's body, kind by kind; some do not parse or change
  nothing.
  """
  body = (
    function.body[1:] if source.summary(function) or _has_docstring(function) else function.body
  )
  found: list[Mutation] = []
  known = local_names(function)
  for statement in body:
    for node in ast.walk(statement):
      for make in (_comparisons, _operators, _logic, _constants, _negations, _statements):
        found += make(source, node)
      found += _names(source, node, known)
  return sorted(set(found), key=dataclasses.astuple)


class _Spot:
  """A function extracted from its text, so that it can be parsed alone."""

  def __init__(self, source: ParsedModule, function: Function):
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    self.start = source.starts[first - 1]
    self.end = source.offset(function.end_lineno or first, function.end_col_offset or 0)
    self._text = source.text[self.start : self.end]
    self._indent = function.col_offset
    self._tree = self._parsed(self._text)

  def changes(self, mutation: Mutation) -> bool:
    start, end = mutation.start - self.start, mutation.end - self.start
    tree = self._parsed(self._text[:start] + mutation.new + self._text[end:])
    return bool(tree) and tree != self._tree

  def _parsed(self, text: str) -> str:
    wrapped = f"if 1:\n{text}\n" if self._indent else text
    try:
      return ast.dump(ast.parse(wrapped))
    except (SyntaxError, ValueError):
      return ""


def _has_docstring(function: Function) -> bool:
  return ast.get_docstring(function, clean=False) is not None


def _span(source: ParsedModule, node: ast.expr | ast.stmt) -> tuple[int, int]:
  start = source.offset(node.lineno, node.col_offset)
  return start, source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _between(
  source: ParsedModule, left: ast.expr, right: ast.expr, operator: str
) -> tuple[int, int] | None:
  """The span of the operator between two operands; None where comments make it uncertain."""
  start, end = _span(source, left)[1], _span(source, right)[0]
  pattern = r"[\s)\\]*(" + re.escape(operator).replace(r"\ ", r"\s+") + r")[\s(\\]*"
  match = re.fullmatch(pattern, source.text[start:end])
  return (start + match.start(1), start + match.end(1)) if match else None


def _comparisons(source: ParsedModule, node: ast.AST) -> Iterator[Mutation]:
  if not isinstance(node, ast.Compare):
    return
  operands = [node.left, *node.comparators]
  for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
    text, changes = _COMPARISONS[type(operator)]
    span = _between(source, left, right, text)
    if span:
      yield from (Mutation(kind, *span, new) for kind, new in changes)


def _operators(source: ParsedModule, node: ast.AST) -> Iterator[Mutation]:
  if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
    text, changes = _OPERATORS[type(node.op)]
    span = _between(source, node.left, node.right, text)
    if span and not isinstance(node.left, ast.JoinedStr):
      yield from (Mutation("operator", *span, new) for new in changes)
  elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
    text, changes = _OPERATORS[type(node.op)]
    span = _between(source, node.target, node.value, text + "=")
    if span:
      yield from (Mutation("operator", *span, new + "=") for new in changes)
  elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    start, _ = _span(source, node)
    yield Mutation("operator", start, start + 1, "")


def _logic(source: ParsedModule, node: ast.AST) -> Iterator[Mutation]:
  if isinstance(node, ast.BoolOp):
    text, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in zip(node.values, node.values[1:], strict=False):
      span = _between(source, left, right, text)
      if span:
        yield Mutation("logic", *span, new)


def _constants(source: ParsedModule, node: ast.AST) -> Iterator[Mutation]:
  if not isinstance(node, ast.Constant):
    return
  span = _span(source, node)
  if isinstance(node.value, bool):
    yield Mutation("constant", *span, str(not node.value))
  elif isinstance(node.value, int) and source.text[slice(*span)].isdigit():
    yield Mutation("constant", *span, str(node.value + 1))
    if node.value:
      yield Mutation("constant", *span, str(node.value - 1))


def _names(source: ParsedModule, node: ast.AST, known: Sequence[str]) -> Iterator[Mutation]:
  if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
    span = _span(source, node)
    if node.id in _TWIN:
      yield Mutation("call", *span, _TWIN[node.id])
    if node.id in known:
      yield from (Mutation("name", *span, other) for other in known if other != node.id)
  elif isinstance(node, ast.Attribute) and node.attr in _TWIN:
    _, end = _span(source, node)
    yield Mutation("call", end - len(node.attr), end, _TWIN[node.attr])


def local_names(function: Function) -> list[str]:
  """The parameters of a function and the names it assigns to, in the order of the text."""
  arguments = function.args
  names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
  for node in ast.walk(function):
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      names.append(node.id)
  return [name for name in dict.fromkeys(names) if name not in ("self", "cls")]


def _negations(source: ParsedModule, node: ast.AST) -> Iterator[Mutation]:
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
    yield Mutation("negation", _span(source, node)[0], _span(source, node.operand)[0], "")
  if isinstance(node, (ast.If, ast.While, ast.IfExp)) and isinstance(
    node.test, (ast.Name, ast.Call, ast.Attribute)
  ):
    start, _ = _span(source, node.test)
    yield Mutation("negation", start, start, "not ")


def _statements(source: ParsedModule, node: ast.AST) -> Iterator[Mutation]:
  if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
    (a, b), (c, d) = (_span(source, argument) for argument in node.args)
    text = source.text
    yield Mutation("arguments", a, d, text[c:d] + text[b:c] + text[a:b])
  if isinstance(node, ast.Return) and node.value is not None:
    start, end = _span(source, node.value)
    if source.text[start:end] != "None":
      yield Mutation("return", start, end, "None")
  if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.For, ast.While)):
    yield Mutation("statement", *_span(source, node), "pass")


def functions(source: ParsedModule) -> Iterator[tuple[str, Function]]:
  """Yields (dotted name, function) for the functions of a module and the methods of its classes."""
  waiting: list[tuple[str, ast.AST]] = [("", source.tree)]
  while waiting:
    prefix, parent = waiting.pop(0)
    for node in getattr(parent, "body", []):
      if isinstance(node, FUNCTIONS):
        yield prefix + node.name, node
      elif isinstance(node, ast.ClassDef):
        waiting.append((f"{prefix}{node.name}.", node))
