"""A digest of the code that produces something, as part of the key of a cache."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import pathlib

APART = ("jaxrl_agents.config", "jaxrl_agents.agents.scores", "jaxrl_agents.agents.formats")
"""Modules that have no influence on what is produced; options count by their values."""


@functools.cache
def of(*modules: str, alone: str = "") -> str:
  """A digest of modules and of all that they import from their own packages, at any depth.

  Comments, docstrings and layout do not count, and neither do APART and modules called "story".

  Args:
    modules: dotted names.
    alone: a further module, without its imports.
  """
  found: dict[str, ast.Module] = {}
  waiting = list(modules)
  packages = {name.partition(".")[0] for name in (*modules, "jaxrl_agents.")}
  while waiting:
    name = waiting.pop()
    if name in found or name.startswith(APART) or name.endswith(".story"):
      continue
    path = _file(name)
    if path is not None:
      found[name] = tree = ast.parse(path.read_text("utf-8"))
      package = name if path.name == "__init__.py" else name.rpartition(".")[0]
      imported = _imported(tree, package)
      waiting += (each for each in imported if each.partition(".")[0] in packages)
  if alone and (path := _file(alone)):
    found[alone] = ast.parse(path.read_text("utf-8"))
  digest = hashlib.sha256()
  for name, tree in sorted(found.items()):
    digest.update(f"{name}\0{ast.dump(_without_docstrings(tree))}\0".encode())
  return digest.hexdigest()


def _file(module: str) -> pathlib.Path | None:
  """The file of a module; None if the name is not that of a module."""
  try:
    spec = importlib.util.find_spec(module)
  except ModuleNotFoundError:
    return None
  if spec is None or not (spec.origin or "").endswith(".py"):
    return None
  return pathlib.Path(str(spec.origin))


def _imported(tree: ast.Module, package: str) -> list[str]:
  """Names that may be modules: `from a import b` gives a and a.b. Relative ones are those of
  `package`.
  """
  names = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      above = package.split(".")
      above = above[: len(above) + 1 - node.level] if node.level else []
      base = ".".join([*above, *([node.module] if node.module else [])])
      names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
  return names


def _without_docstrings(tree: ast.Module) -> ast.Module:
  for node in ast.walk(tree):
    body = getattr(node, "body", None)
    if isinstance(body, list):
      node.body = [  # type: ignore[attr-defined]
        each
        for each in body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
      ]
  return tree
