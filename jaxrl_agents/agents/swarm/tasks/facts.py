"""Short facts of Python source for tables: base classes, first arguments, values of constants.

A fact stands on the line that defines its name, so that whoever finds the line can copy it, and no
other definition of its kind has that name. Names and values begin and end with a letter or digit:
an underscore may be one token with the character beside it, and would then be another token
elsewhere.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator

from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.entities import Span
from jaxrl_agents.corpus.python_source import FUNCTIONS, ParsedModule, module_name

MAX_NUMBER = 999
"""The greatest value of a constant; greater ones are hard to copy."""

_COPIED = re.compile(r"[A-Za-z0-9](\w*[A-Za-z0-9])?")

UNTOLD = frozenset({"object", "self", "cls"})
"""Values without information."""


@dataclasses.dataclass(frozen=True)
class Fact:
  """`name` is defined with `value`, on `line`.

  Attributes:
    kind: "class" (value: its base class), "def" (value: its first argument), "constant".
    query: the text to search for.
    group: the module, which decides the split.
  """

  kind: str
  name: str
  value: str
  group: str
  line: Span

  @property
  def query(self) -> str:
    """The words of the line that hold the name, with the space before them: a word and its space
    are one token, which is the same in the line, in a question and in a query.
    """
    return f" {self.name}" if self.kind == "constant" else f" {self.kind} {self.name}"


def read(documents: Iterable[Document]) -> list[Fact]:
  """The facts of Python documents whose name is unique among their kind, in order."""
  documents = [d for d in documents if d.metadata.get("kind") == "python"]
  packages = {module_name(document).rpartition(".")[0] for document in documents}
  found: list[Fact] = []
  names: collections.Counter[tuple[str, str]] = collections.Counter()
  for document in documents:
    try:
      source = ParsedModule(document, module_name(document) in packages)
    except (SyntaxError, ValueError):
      continue
    for kind, name, value, line in _definitions(source):
      names[kind, name] += 1
      text = source.text[line.start : line.end]
      copied = _COPIED.fullmatch(name) and _COPIED.fullmatch(value) and value not in UNTOLD
      if copied and _states(text, kind, name, value):
        found.append(Fact(kind, name, value, source.name, line))
  return [fact for fact in found if names[fact.kind, fact.name] == 1]


def _definitions(source: ParsedModule) -> Iterator[tuple[str, str, str, Span]]:
  """Yields (kind, name, value, line) of every class, function and assigned name of a module; the
  value is "" if it is not short.
  """
  for node in ast.walk(source.tree):
    if isinstance(node, ast.ClassDef):
      yield "class", node.name, _only_base(node), source.line(node.lineno)
    elif isinstance(node, FUNCTIONS):
      yield "def", node.name, _first_argument(node), source.line(node.lineno)
    elif isinstance(node, ast.Assign):
      for target in node.targets:
        if isinstance(target, ast.Name):
          yield "constant", target.id, _number(node), source.line(node.lineno)


def _only_base(node: ast.ClassDef) -> str:
  base = node.bases[0] if len(node.bases) == 1 and not node.keywords else None
  return base.id if isinstance(base, ast.Name) else ""


def _first_argument(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
  arguments = [*node.args.posonlyargs, *node.args.args]
  return arguments[0].arg if arguments else ""


def _number(node: ast.Assign) -> str:
  value = node.value.value if isinstance(node.value, ast.Constant) else None
  plain = type(value) is int and 0 <= value <= MAX_NUMBER
  return str(value) if plain and len(node.targets) == 1 else ""


def _states(line: str, kind: str, name: str, value: str) -> bool:
  """Whether a line reads as a definition from which the value can be copied."""
  if kind == "constant":
    left, equals, right = line.partition("=")
    return bool(equals) and left.strip() == name and right.split("#")[0].strip() == value
  return line.startswith(f"{kind} {name}({value}")
