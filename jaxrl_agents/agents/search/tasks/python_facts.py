"""Facts of python source, read from its syntax tree.

Entities are modules, classes, exceptions, routines and methods; a docstring's first sentence
describes them and the `def` or `class` line names them. Relations: calls, makes (calls a class),
raises, catches, extends, holds, and two that tie neighbours which never meet: a parameter name or a
constant that only a few of them use.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.entities import Domain, Entity, Relation, Span
from jaxrl_agents.corpus.python_source import (
  FUNCTIONS,
  Function,
  ParsedModule,
  definitions,
  dotted,
  meant,
  module_name,
)

MAX_SHARERS = 4
"""A parameter name or a constant that more documented entities use ties nothing together."""

MIN_SHARED_NAME = 6
"""Characters of the shortest parameter or constant name that ties entities together."""

_EXCEPTION_NAME = re.compile(r"(Error|Exception|Warning|Interrupt)$")


def read(documents: Iterable[Document]) -> Domain:
  """Reads the facts of python modules. One that does not parse (another version's) is skipped."""
  documents = list(documents)
  packages = {module_name(document).rpartition(".")[0] for document in documents}
  sources = {}
  for document in documents:
    name = module_name(document)
    try:
      sources[name] = ParsedModule(document, name in packages)
    except (SyntaxError, ValueError):
      continue
  entities = {entity.key: entity for source in sources.values() for entity in _entities(source)}
  for key in _exceptions(entities, sources):
    entities[key] = dataclasses.replace(entities[key], kind="exception")
  relations: dict[tuple[str, str, str], Relation] = {}
  inputs: dict[str, dict[str, Span]] = {}
  constants: dict[str, dict[str, Span]] = {}
  for source in sources.values():
    for key, node, owner in definitions(source):
      for kind, target, evidence in _relations_of(source, node, owner, entities, sources):
        if target != key:
          relations.setdefault((kind, key, target), Relation(kind, key, target, evidence))
      if entities[key].summary is not None and isinstance(node, FUNCTIONS):
        for name, evidence in _inputs(source, node):
          inputs.setdefault(name, {}).setdefault(key, evidence)
        for name, evidence in _constants(source, node):
          constants.setdefault(name, {}).setdefault(key, evidence)
  shared = [*_shared("shares_input", inputs), *_shared("shares_constant", constants)]
  return Domain(entities, (*relations.values(), *shared))


def _exceptions(
  entities: Mapping[str, Entity], sources: Mapping[str, ParsedModule]
) -> Collection[str]:
  """The classes that are called as exceptions are, or are built on one."""
  found: set[str] = set()
  bases: dict[str, list[str]] = {}
  for source in sources.values():
    for key, node, _ in definitions(source):
      if isinstance(node, ast.ClassDef):
        names = [dotted(base) for base in node.bases]
        if any(_EXCEPTION_NAME.search(name) for name in (node.name, *(n[-1] for n in names if n))):
          found.add(key)
        bases[key] = [meant(source, name, "", entities, sources) for name in names]
  while more := {key for key, each in bases.items() if key not in found and found & set(each)}:
    found |= more
  return found


def _entities(source: ParsedModule) -> Iterator[Entity]:
  for key, node, owner in definitions(source):
    summary = source.summary(node)
    if isinstance(node, ast.Module):
      name = source.name.rpartition(".")[2]
      truth = _module_truth(source, name, summary)
      yield Entity(key, name, "module", source.name, summary, truth)
      continue
    assert isinstance(node, (*FUNCTIONS, ast.ClassDef))
    if isinstance(node, ast.ClassDef):
      kind = "class"
    else:
      kind = "routine" if owner.endswith(":") else "method"
    special = node.name.startswith("__")
    truth = None if special else source.line(node.lineno)
    yield Entity(key, node.name, kind, source.name, None if special else summary, truth)


def _module_truth(source: ParsedModule, name: str, summary: Span | None) -> Span | None:
  """The line of the module's docstring that names it outside its first sentence, if one does."""
  if summary is None or len(name) < 4:
    return None
  docstring = source.tree.body[0]
  for number in range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1):
    line = source.line(number)
    if line.start >= summary.end and re.search(
      rf"\b{re.escape(name)}\b", source.text[line.start : line.end]
    ):
      return line
  return None


def _relations_of(
  source: ParsedModule,
  node: ast.AST,
  owner: str,
  entities: Mapping[str, Entity],
  sources: Mapping[str, ParsedModule],
) -> Iterator[tuple[str, str, Span]]:
  """Yields (kind, target key, evidence line) for one definition."""
  if isinstance(node, ast.ClassDef):
    for base in node.bases:
      target = meant(source, dotted(base), "", entities, sources)
      if target:
        yield "extends", target, source.line(base.lineno)
  if isinstance(node, (ast.ClassDef, ast.Module)):
    path = "" if isinstance(node, ast.Module) else f"{_path(owner, node.name)}."
    for child in node.body:
      if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
        target = f"{source.name}:{path}{child.name}"
        if target in entities:
          yield "holds", target, source.line(child.lineno)
    return
  for kind, parts, line in _uses(node):
    target = meant(source, parts, owner, entities, sources)
    named = _USE_OF.get((kind, entities[target].kind)) if target else None
    if named is not None:
      yield named, target, source.line(line)


_USE_OF = {
  ("call", "routine"): "calls",
  ("call", "method"): "calls",
  ("call", "class"): "makes",
  ("raise", "exception"): "raises",
  ("except", "exception"): "catches",
}
"""(How a name is used, what it means) -> relation; any other use states none."""


def _uses(node: ast.AST) -> Iterator[tuple[str, list[str], int]]:
  """Yields (use, the dotted name used, its line) for what a body calls, raises and catches."""
  for inner in ast.walk(node):
    if isinstance(inner, ast.Call):
      yield "call", dotted(inner.func), inner.func.end_lineno or inner.lineno
    elif isinstance(inner, ast.Raise) and inner.exc is not None:
      name = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
      yield "raise", dotted(name), inner.lineno
    elif isinstance(inner, ast.ExceptHandler) and inner.type is not None:
      yield "except", dotted(inner.type), inner.lineno


def _path(owner: str, name: str) -> str:
  """The dotted path of a class inside its module."""
  outer = owner.partition(":")[2]
  return f"{outer}.{name}" if outer else name


def _inputs(source: ParsedModule, node: Function) -> Iterator[tuple[str, Span]]:
  """Yields (parameter name, the line it stands on)."""
  for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
    if len(argument.arg) >= MIN_SHARED_NAME:
      yield argument.arg, source.line(argument.lineno)


def _constants(source: ParsedModule, node: ast.AST) -> Iterator[tuple[str, Span]]:
  """Yields (name in capitals, the line that reads it)."""
  for inner in ast.walk(node):
    if not isinstance(inner, (ast.Name, ast.Attribute)) or not isinstance(inner.ctx, ast.Load):
      continue
    name = inner.id if isinstance(inner, ast.Name) else inner.attr
    if len(name) >= MIN_SHARED_NAME and name.isupper():
      yield name, source.line(inner.end_lineno or inner.lineno)


def _shared(kind: str, users: dict[str, dict[str, Span]]) -> Iterator[Relation]:
  """Ties every two of the few users of a name."""
  for lines in users.values():
    if 2 <= len(lines) <= MAX_SHARERS:
      keys = list(lines)
      for index, key in enumerate(keys):
        for other in keys[index + 1 :]:
          yield Relation(kind, key, other, lines[key])
