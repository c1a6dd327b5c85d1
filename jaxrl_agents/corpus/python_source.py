"""Parsed Python modules: positions of definitions, docstrings and lines, and the meaning of
names.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence

from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.entities import Entity, Span

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)[.!?](?=\s|$)|\n[ \t]*\n")
_SIGNATURE = re.compile(r"^[\w.]+\s*\(|->|^[\w.]+\s*$|^>>>|^[-=*:@]")


class ParsedModule:
  """One parsed module: the offsets of its lines, and the meaning of its names."""

  def __init__(self, document: Document, is_package: bool):
    self.id, self.name, self.text = document.id, module_name(document), document.text
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # invalid escapes in old modules
      self.tree = ast.parse(self.text)
    self.starts = [0] + [match.end() for match in re.finditer(r"\r\n|\r|\n", self.text)]
    self.starts.append(len(self.text) + 1)
    self.imports: dict[str, str] = {}
    self.stars: list[str] = []
    package = self.name if is_package else self.name.rpartition(".")[0]
    for node in ast.walk(self.tree):
      if isinstance(node, ast.Import):
        for alias in node.names:
          local = alias.asname or alias.name.partition(".")[0]
          self.imports.setdefault(local, alias.name if alias.asname else local)
      elif isinstance(node, ast.ImportFrom):
        self._import_from(node, package)

  def _import_from(self, node: ast.ImportFrom, package: str) -> None:
    origin = node.module or ""
    if node.level:
      parts = package.split(".")
      parts = parts[: len(parts) - node.level + 1]
      origin = ".".join(parts + ([node.module] if node.module else []))
    for alias in node.names:
      if alias.name == "*":
        self.stars.append(origin)
      else:
        self.imports.setdefault(alias.asname or alias.name, f"{origin}.{alias.name}")

  def offset(self, line: int, column: int) -> int:
    """The character offset of ast's (1-based line, utf-8 byte column)."""
    start = self.starts[line - 1]
    text = self.text[start : self.starts[line]]
    if text.isascii():
      return start + column
    return start + len(text.encode()[:column].decode(errors="ignore"))

  def line(self, number: int) -> Span:
    """A source line without the white space around it."""
    start, end = self.starts[number - 1], self.starts[number] - 1
    text = self.text[start:end]
    start += len(text) - len(text.lstrip())
    return Span(self.id, start, start + len(text.strip()))

  def summary(self, node: ast.AST) -> Span | None:
    """The first sentence of a docstring, verbatim in the source."""
    body = getattr(node, "body", None)
    if not body or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Constant):
      return None
    value = body[0].value
    if not isinstance(value.value, str):
      return None
    start = self.offset(value.lineno, value.col_offset)
    end = self.offset(value.end_lineno or value.lineno, value.end_col_offset or 0)
    raw = self.text[start:end]
    prefix = re.match(r"[rRuU]?(\"\"\"|'''|\"|')\\?", raw)
    if prefix is None:
      return None
    start += prefix.end()
    return _first_sentence(self.id, raw[prefix.end() : len(raw) - len(prefix[1])], start)


def _first_sentence(doc_id: str, text: str, start: int) -> Span | None:
  """The first sentence of one of the first two paragraphs that is prose, not a signature."""
  for paragraph in list(re.finditer(r"\S(?:.|\n(?!\s*\n))*", text))[:2]:
    words = paragraph[0]
    if _SIGNATURE.match(words) or "->" in words.partition("\n")[0]:
      continue
    end = _SENTENCE_END.search(words)
    sentence = words[: end.end()] if end else words
    sentence = sentence.rstrip()
    if "\\" in sentence:
      return None
    begin = start + paragraph.start()
    return Span(doc_id, begin, begin + len(sentence))
  return None


def module_name(document: Document) -> str:
  """The dotted module name of a Python document, from its source path."""
  source = str(document.metadata["source"])
  if not source.endswith(".py"):
    return source
  return source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def definitions(source: ParsedModule) -> Iterator[tuple[str, ast.AST, str]]:
  """Yields (key, node, key of the class or module that holds it) of every entity of a module."""
  yield f"{source.name}:", source.tree, ""
  seen = set()
  waiting: list[tuple[str, ast.AST, str]] = [("", source.tree, f"{source.name}:")]
  while waiting:
    path, parent, owner = waiting.pop()
    for node in getattr(parent, "body", []):
      if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        name = f"{path}{node.name}"
        key = f"{source.name}:{name}"
        if key in seen:  # the other branch of an `if`, or a property's setter
          continue
        seen.add(key)
        yield key, node, owner
        if isinstance(node, ast.ClassDef):
          waiting.append((f"{name}.", node, key))
      elif isinstance(node, (ast.If, ast.Try)) and parent is source.tree:
        for branch in (node.body, node.orelse):
          waiting.append((path, ast.Module(branch, []), owner))


def dotted(node: ast.AST) -> list[str]:
  """The names of `a.b.c`; empty for anything else."""
  parts: list[str] = []
  while isinstance(node, ast.Attribute):
    parts.append(node.attr)
    node = node.value
  return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _resolve(
  module: str,
  parts: Sequence[str],
  entities: Mapping[str, Entity],
  sources: Mapping[str, ParsedModule],
  depth: int = 0,
) -> str:
  """The key of the entity that a dotted name means in a module, through imports; "" if unknown."""
  source = sources.get(module)
  if source is None or depth > 4:
    return ""
  if not parts:
    return f"{module}:"
  key = f"{module}:{'.'.join(parts)}"
  if key in entities:
    return key
  if f"{module}:{parts[0]}" in entities:
    return ""
  if parts[0] in source.imports:
    path = [*source.imports[parts[0]].split("."), *parts[1:]]
    for cut in range(len(path), 0, -1):
      if ".".join(path[:cut]) in sources:
        return _resolve(".".join(path[:cut]), path[cut:], entities, sources, depth + 1)
    return ""
  for star in source.stars:
    found = _resolve(star, parts, entities, sources, depth + 1)
    if found:
      return found
  return ""


def meant(
  source: ParsedModule,
  parts: Sequence[str],
  owner: str,
  entities: Mapping[str, Entity],
  sources: Mapping[str, ParsedModule],
) -> str:
  """The entity that a dotted name means inside a definition of `owner`; "" if unknown."""
  if not parts:
    return ""
  if parts[0] in ("self", "cls") and len(parts) == 2:
    key = f"{owner}.{parts[1]}"
    return key if key in entities else ""
  key = _resolve(source.name, parts, entities, sources)
  return key if key in entities else ""
