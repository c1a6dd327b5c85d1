"""Finds sources that could search for a repair by themselves, when they run.

Where test runs are counted, a source that tries edits of its own text against the shown values,
whenever it is imported, would pass the hidden tests without a single run. Extracted functions use
neither text as code, nor files, nor what is inside of Python; a change that newly does is no
repair. This reads names and is no wall; what it misses is bounded by the length of the edits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from jaxrl_agents.agents.coding.judge.repo import Repo, module_of
from jaxrl_agents.agents.coding.tasks.functions import FORBIDDEN, PURE_MODULES

_INSIDE = frozenset({
  "getattr", "setattr", "delattr", "sys", "os", "io", "modules", "builtins", "attrgetter",
  "methodcaller",
})  # fmt: skip


def searching(repo: Repo, changes: Mapping[str, bytes | None]) -> list[str]:
  """The changed Python files that newly use what extracted functions may not.

  Args:
    repo: a repository of calls.
    changes: {path below /work: content, None for removed} of the files that differ from `repo`.
  """
  own = {module_of(path) for path in repo.sources} | {"main"}
  found = []
  for path, content in sorted(changes.items()):
    if content is None or not path.endswith(".py"):
      continue
    # As Python does, without a byte order mark.
    now, before = content.decode("utf-8-sig", "replace"), repo.files.get(path, "")
    if set(_uses(now, own)) - set(_uses(before, own)):
      found.append(path)
  return found


def _uses(text: str, own: set[str]) -> Iterator[str]:
  """The names, modules and texts of a source that reach beyond plain computation."""
  try:
    nodes = list(ast.walk(ast.parse(text)))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return
  for node in nodes:
    if isinstance(node, ast.Import):
      names = [alias.name.partition(".")[0] for alias in node.names]
      yield from (f"import {name}" for name in names if name not in PURE_MODULES | own)
    elif isinstance(node, ast.ImportFrom):
      module = (node.module or "").partition(".")[0]
      if node.level or module not in PURE_MODULES | own:
        yield f"from {module}"
      yield from (name.name for name in node.names if name.name in FORBIDDEN | _INSIDE)
    elif isinstance(node, ast.Name):
      if node.id in FORBIDDEN | _INSIDE or node.id.startswith("__"):
        yield node.id
    elif isinstance(node, ast.Attribute):
      if node.attr in FORBIDDEN | _INSIDE or node.attr.startswith("_"):
        yield f".{node.attr}"
    elif isinstance(node, ast.MatchClass):
      names = [name for name in node.kwd_attrs if name in FORBIDDEN | _INSIDE or name[0] == "_"]
      yield from (f".{name}" for name in names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "__" in node.value:
      yield repr(node.value)
