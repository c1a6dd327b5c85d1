"""Short pure functions extracted from real modules, each with everything it needs to run alone."""

from __future__ import annotations

import ast
import builtins
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from jaxrl_agents.corpus.python_source import FUNCTIONS, Function, ParsedModule

PURE_MODULES = frozenset({
  "math", "re", "string", "operator", "itertools", "functools", "collections", "bisect",
  "heapq", "textwrap", "binascii", "unicodedata", "fractions", "decimal", "numbers", "keyword",
  "html", "colorsys", "statistics", "struct", "copy",
})  # fmt: skip
"""Modules that an extracted function may import."""
FORBIDDEN = frozenset({
  "open", "exec", "eval", "compile", "input", "print", "breakpoint", "globals", "locals",
  "vars", "__import__", "exit", "quit", "id", "hash", "object", "super", "memoryview",
})  # fmt: skip
"""Builtins that it may not use."""
_BUILTINS = frozenset(dir(builtins)) - FORBIDDEN
_UNFIT = (
  ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom,
  ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.With, ast.Delete,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cut:
  """A function and what it needs, as the source of a module.

  Attributes:
    name: of the function.
    module: dotted name of the module it comes from.
    text: imports, constants, helpers and the function, unchanged except for docstrings.
    parameters: (name, source of its default or "") of the positional parameters.
    examples: calls in the examples of its docstring.
  """

  name: str
  module: str
  text: str
  parameters: tuple[tuple[str, str], ...]
  examples: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Pieces:
  """The top-level definitions of a module: its statements, and the origin of imported names."""

  source: ParsedModule
  statements: Mapping[str, ast.stmt]
  imports: Mapping[str, tuple[str, str]]  # name -> (module, line that imports it)


def pieces(source: ParsedModule) -> Pieces:
  """The functions, constants and imports at the top level of a module."""
  statements: dict[str, ast.stmt] = {}
  imports: dict[str, tuple[str, str]] = {}
  twice: set[str] = set()
  for node in source.tree.body if isinstance(source.tree, ast.Module) else ():
    names: list[str] = []
    if isinstance(node, ast.FunctionDef):
      names = [node.name]
    elif isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
      names = [t.id for t in node.targets if isinstance(t, ast.Name)]
    elif isinstance(node, ast.Import):
      for alias in node.names:
        whole = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        imports[alias.asname or alias.name] = (alias.name, f"import {whole}")
    elif isinstance(node, ast.ImportFrom) and not node.level:
      for alias in node.names:
        whole = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        line = f"from {node.module} import {whole}"
        imports[alias.asname or alias.name] = (node.module or "", line)
    twice.update(name for name in names if name in statements)
    statements.update(dict.fromkeys(names, node))
  kept = {name: node for name, node in statements.items() if name not in twice}
  return Pieces(source, kept, imports)


def cuts(
  source: ParsedModule, *, min_lines: int = 2, max_lines: int = 14, max_text_lines: int = 40
) -> Iterator[Cut]:
  """Yields the functions of the module that can be extracted.

  Args:
    source: the module.
    min_lines, max_lines: of the function without its docstring.
    max_text_lines: of the whole extracted text.
  """
  found = pieces(source)
  for name, node in found.statements.items():
    if not isinstance(node, ast.FunctionDef) or not _fits(node):
      continue
    length = len(without_docstring(source, node).splitlines())
    needed = _needed(found, name) if min_lines <= length <= max_lines else None
    if needed is None:
      continue
    text = _text(found, needed)
    if len(text.splitlines()) <= max_text_lines:
      yield Cut(name, source.name, text, _parameters(node), tuple(_examples(node)))


def key(function: Function) -> str:
  """A key that is equal for functions with the same code, whatever their names, docstrings,
  comments and layout.
  """
  body = function.body[ast.get_docstring(function, clean=False) is not None :]
  return "\n".join(map(ast.dump, [function.args, *body]))


def keys(text: str) -> set[str]:
  """The keys of the functions and methods in a module's text."""
  return {key(node) for node in ast.walk(ast.parse(text)) if isinstance(node, FUNCTIONS)}


def merged(cuts: Iterable[Cut]) -> str:
  """One module made of several extracts of the same module: imports first, each line once."""
  imports: dict[str, None] = {}
  blocks: dict[str, None] = {}
  for cut in cuts:
    head, _, body = cut.text.partition("\n\n") if cut.text.startswith(("import", "from")) else (
      "", "", cut.text
    )  # fmt: skip
    imports.update(dict.fromkeys(filter(None, head.split("\n"))))
    blocks.update(dict.fromkeys(body.strip("\n").split("\n\n\n")))
  return "\n\n\n".join(filter(None, ["\n".join(imports), *blocks])) + "\n"


def _fits(node: ast.FunctionDef) -> bool:
  arguments = node.args
  by_position = [*arguments.posonlyargs, *arguments.args]
  required = len(by_position) - len(arguments.defaults)
  inner = [n for statement in node.body for n in ast.walk(statement)]
  returns = any(isinstance(n, ast.Return) and n.value is not None for n in inner)
  return (
    bool(by_position)
    and required <= 4
    and None not in arguments.kw_defaults
    and not node.decorator_list
    and returns
    and not any(isinstance(n, _UNFIT) for n in inner)
    and not any(isinstance(n, ast.Attribute) and n.attr.startswith("__") for n in inner)
  )


def _needed(found: Pieces, name: str) -> list[str] | None:
  """The function and the names that it needs; None if one of them cannot be extracted."""
  needed: list[str] = []
  waiting = [name]
  while waiting:
    name = waiting.pop()
    if name in needed:
      continue
    if name in found.imports:
      if found.imports[name][0].partition(".")[0] not in PURE_MODULES:
        return None
    elif name in found.statements:
      node = found.statements[name]
      if isinstance(node, ast.FunctionDef) and (node.decorator_list or not _pure(node)):
        return None
      waiting += sorted(_free_names(node))
    elif name not in _BUILTINS:
      return None
    needed.append(name)
  return [each for each in needed if each in found.imports or each in found.statements]


def _pure(node: ast.AST) -> bool:
  return not any(isinstance(n, (ast.Global, ast.Nonlocal, ast.Await)) for n in ast.walk(node))


def _free_names(node: ast.AST) -> set[str]:
  loaded, bound = set[str](), set[str]()
  for each in ast.walk(node):
    if isinstance(each, ast.Name):
      (loaded if isinstance(each.ctx, ast.Load) else bound).add(each.id)
    elif isinstance(each, ast.arg):
      bound.add(each.arg)
    elif isinstance(each, ast.ExceptHandler) and each.name:
      bound.add(each.name)
  if not isinstance(node, ast.FunctionDef):
    bound = set()
  return loaded - bound


def _text(found: Pieces, needed: Iterable[str]) -> str:
  imports = sorted({found.imports[n][1] for n in needed if n in found.imports})
  nodes = {id(found.statements[n]): found.statements[n] for n in needed if n in found.statements}
  ordered = sorted(nodes.values(), key=lambda node: node.lineno)
  blocks = [without_docstring(found.source, node) for node in ordered]
  return "\n\n\n".join(filter(None, ["\n".join(imports), *blocks])) + "\n"


def without_docstring(source: ParsedModule, node: ast.stmt) -> str:
  """The text of a statement; for a function, without its docstring."""
  start = source.starts[node.lineno - 1]
  end = source.starts[node.end_lineno or node.lineno]
  text = source.text[start:end]
  if isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
    if len(node.body) == 1:
      return ""
    first = node.body[0]
    low = source.starts[first.lineno - 1]
    high = source.starts[first.end_lineno or first.lineno]
    text = source.text[start:low] + source.text[high:end]
  return text.strip("\n")


def _parameters(node: ast.FunctionDef) -> tuple[tuple[str, str], ...]:
  by_position = [*node.args.posonlyargs, *node.args.args]
  first = len(by_position) - len(node.args.defaults)
  defaults = ["", *map(ast.unparse, node.args.defaults)]
  return tuple(
    (argument.arg, defaults[max(0, i - first + 1)]) for i, argument in enumerate(by_position)
  )


def _examples(node: Function) -> Iterator[str]:
  """Calls of the function with literal arguments, from the examples of its docstring."""
  for line in (ast.get_docstring(node) or "").splitlines():
    if not line.strip().startswith(">>> "):
      continue
    try:
      call = ast.parse(line.strip()[4:], mode="eval").body
    except SyntaxError:
      continue
    if isinstance(call, ast.Call) and isinstance(call.func, (ast.Name, ast.Attribute)):
      name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
      values = [*call.args, *(keyword.value for keyword in call.keywords)]
      if name == node.name and all(_literal(value) for value in values):
        call.func = ast.Name(name)
        yield ast.unparse(call)


def _literal(node: ast.expr) -> bool:
  try:
    ast.literal_eval(node)
  except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
    return False
  return True
