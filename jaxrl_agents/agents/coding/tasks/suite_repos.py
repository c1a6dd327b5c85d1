"""Small repositories for tasks: sources, visible tests, and held-back tests.

There are two kinds. "calls": functions extracted from a module (`functions`) with their values for
random arguments; check.py shows half of the values. "suite": a module or package as it is, with its
own tests, a third of which is held back.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import pathlib
import sysconfig
from collections.abc import Iterator, Mapping, Sequence

from jaxrl_agents.agents.coding.judge.repo import (
  CHECK,
  HELD_BACK,
  Repo,
  is_setting,
  is_test,
  is_test_module,
  module_of,
)
from jaxrl_agents.agents.coding.tasks import archives, leaks
from jaxrl_agents.corpus import folder_files, readers
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.python_source import FUNCTIONS, ParsedModule

MAIN = "main.py"
_CHECK = """\
import signal

import main

CASES = [
{cases}
]
signal.signal(signal.SIGALRM, signal.default_int_handler)
failed = 0
for call, want in CASES:
  try:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    got = repr(eval(call, dict(vars(main))))
  except BaseException as error:
    got = "!" + type(error).__name__
  signal.setitimer(signal.ITIMER_REAL, 0)
  if got != want:
    failed += 1
    if failed < 4:
      print(call, "gives", got, "not", want)
print(failed, "of", len(CASES), "fail")
"""
_CHECK_SUITE = '''\
"""Runs the tests of the modules named on the command line, or of all."""

import importlib
import inspect
import sys
import traceback
import unittest

MODULES = {modules!r}


def report(name, text):
  lines = [line for line in text.strip().splitlines() if line.strip()]
  print("FAIL", name, "|", lines[-1] if lines else "")


def cases(module):
  for key, value in sorted(vars(module).items()):
    if getattr(value, "__module__", None) != module.__name__:
      continue
    if inspect.isfunction(value) and key.startswith("test"):
      yield key, value
    elif inspect.isclass(value) and key.startswith("Test"):
      if not issubclass(value, unittest.TestCase):
        for inner in sorted(vars(value)):
          if inner.startswith("test"):
            yield f"{{key}}.{{inner}}", getattr(value(), inner)


ran = failed = 0
for name in sys.argv[1:] or MODULES:
  try:
    module = importlib.import_module(name)
  except Exception:
    failed += 1
    report(name, traceback.format_exc())
    continue
  result = unittest.TestResult()
  unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
  ran += result.testsRun
  for test, text in result.failures + result.errors:
    failed += 1
    report(test.id(), text)
  for key, run in cases(module):
    if all(p.default is not p.empty for p in inspect.signature(run).parameters.values()):
      ran += 1
      try:
        run()
      except Exception:
        failed += 1
        report(f"{{name}}.{{key}}", traceback.format_exc())
print(failed, "of", ran, "fail")
'''
_MAX_FILE_BYTES = 400_000
_MAX_REPO_BYTES = 4_000_000


def of_files(
  name: str,
  group: str,
  texts: Mapping[str, str],
  kept: Sequence[tuple[str, str]],
  mask: tuple[str, ...],
) -> Repo:
  """A repository of extracted functions in the files `texts`; every second pair (call, value) of
  `kept` is visible.

  Without a main.py among them, each is named after its function, and main.py imports all.
  """
  seen, hidden = dict(kept[::2]), dict(kept[1::2])
  files = {**texts, CHECK: check_text(seen)}
  if MAIN not in texts:
    names = [path.removesuffix(".py") for path in texts]
    files[MAIN] = "".join(f"from {name} import {name}\n" for name in names)
  sources = tuple(texts)
  return Repo(name, group, "calls", files, sources, values=seen, hidden_values=hidden, mask=mask)


def check_text(values: Mapping[str, str]) -> str:
  """A program that prints the calls that do not give the expected value, at most three of them."""
  cases = "\n".join(f"  ({call!r}, {value!r})," for call, value in values.items())
  return _CHECK.format(cases=cases)


def parsed(path: str, text: str) -> ParsedModule | None:
  """A parsed Python file; None if this Python cannot parse it."""
  try:
    return ParsedModule(Document("", path, text, {"source": path, "kind": "python"}), False)
  except (SyntaxError, ValueError, RecursionError):
    return None


def library(names: Sequence[str] = ()) -> Iterator[Repo]:
  """Yields the modules of this interpreter's library that are one file and have tests.

  Modules that every Python program imports are left out, because their damage would break the judge
  as well; and so are those that a sandbox offers in another form (`leaks.has_twin`).

  Args:
    names: of the wanted modules, in order; empty for all.
  """
  root = pathlib.Path(sysconfig.get_paths()["stdlib"])
  for path in [root / f"{name}.py" for name in names] or sorted(root.glob("*.py")):
    name, test = path.stem, root / "test" / f"test_{path.stem}.py"
    if name.startswith("_") or not test.is_file():
      continue
    if name in _ALWAYS_IMPORTED or leaks.has_twin(name):
      continue
    texts = [_read(each) for each in (path, test)]
    if not all(texts):
      continue
    files = {path.name: texts[0], test.name: texts[1]}
    mask = leaks.masks(f"{leaks.PLACE}/{path.name}")
    yield with_tests_held_back(Repo(name, name, "suite", files, (path.name,), mask=mask))


_ALWAYS_IMPORTED = frozenset({
  "abc", "argparse", "ast", "asyncio", "bisect", "bdb", "codecs", "collections", "contextlib",
  "copy", "copyreg", "dataclasses", "difflib", "dis", "enum", "fnmatch", "functools",
  "genericpath", "gettext", "glob", "hashlib", "heapq", "importlib", "inspect", "io", "json",
  "keyword", "linecache", "locale", "logging", "ntpath", "opcode", "operator", "os", "pathlib",
  "pickle", "platform", "posixpath", "pprint", "queue", "random", "re", "reprlib", "runpy",
  "selectors", "shutil", "signal", "site", "socket", "stat", "string", "struct", "subprocess",
  "sysconfig", "tempfile", "textwrap", "threading", "token", "tokenize", "traceback", "types",
  "typing", "unittest", "urllib", "warnings", "weakref", "zipfile", "zipimport",
})  # fmt: skip


def folder(place: str | pathlib.Path) -> Repo:
  """The repository in a folder or an sdist (.tar.gz, .zip): its Python files, which are not run.

  Raises:
    ValueError: there are no Python files, or they have more than four million bytes.
  """
  place = pathlib.Path(place).expanduser()
  if place.is_dir():
    files = _of_folder(place)
  else:
    files = _unpacked(place)
  files = {path: text for path, text in files.items() if text}
  size = sum(map(len, files.values()))
  if not files or size > _MAX_REPO_BYTES:
    raise ValueError(
      f"{place}: {len(files)} Python files of {size} characters; name a folder or an sdist of one "
      f"package, of at most {_MAX_REPO_BYTES} characters"
    )
  files = _without_src(files)
  sources = tuple(
    path for path in files if not (is_test(path) or is_setting(path) or path == "versioneer.py")
  )
  tests = [module_of(path) for path in files if is_test_module(path)]
  files.setdefault(CHECK, _CHECK_SUITE.format(modules=tests))
  repo = Repo(place.name, place.name.partition("-")[0], "suite", files, sources)
  return with_tests_held_back(repo)


def _of_folder(place: pathlib.Path) -> dict[str, str]:
  files: dict[str, str] = {}
  size = 0
  for path in folder_files.below(place, lambda name: _hidden((name,))):
    if path.suffix == ".py" and size <= _MAX_REPO_BYTES:
      files[path.relative_to(place).as_posix()] = text = _read(path)
      size += len(text)
  return files


def with_tests_held_back(repo: Repo) -> Repo:
  """The repository with a third of its tests, chosen by hashes of their names, moved into held-back
  files.
  """
  files, held_back = dict(repo.files), {}
  for path, text in repo.files.items():
    source = parsed(path, text) if is_test(path) else None
    if source is None:
      continue
    tests = _tests(source.tree)
    by_hash = sorted(tests, key=lambda test: _draw(f"{path} {test[0]}"))
    hidden = {id(node) for _, node in by_hash[: len(tests) // 3]}
    if not hidden:
      continue
    stem = path.removesuffix(".py")
    files[path] = _without(source, [n for _, n in tests if id(n) in hidden])
    held_back[f"{stem}_{HELD_BACK}.py"] = _without(
      source, [n for _, n in tests if id(n) not in hidden]
    )
  return dataclasses.replace(repo, files=files, held_back=held_back)


def _tests(tree: ast.AST) -> list[tuple[str, ast.stmt]]:
  """(name, node) of the test functions and test methods."""
  found: list[tuple[str, ast.stmt]] = []
  for node in getattr(tree, "body", []):
    if isinstance(node, FUNCTIONS) and node.name.startswith("test"):
      found.append((node.name, node))
    elif isinstance(node, ast.ClassDef):
      for inner in node.body:
        if isinstance(inner, FUNCTIONS) and inner.name.startswith("test"):
          found.append((f"{node.name}.{inner.name}", inner))
  return found


def _without(source: ParsedModule, nodes: Sequence[ast.stmt]) -> str:
  """The text without some definitions; each is replaced by `pass`, so that no block is empty."""
  text = source.text
  for node in sorted(nodes, key=lambda node: -node.lineno):
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    start, end = source.starts[first - 1], source.starts[node.end_lineno or node.lineno]
    text = text[:start] + " " * node.col_offset + "pass\n" + text[end:]
  return text


def _draw(text: str) -> int:
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _read(path: pathlib.Path) -> str:
  """The content of a text file; "" if it is no text or too long."""
  try:
    content = readers.read_bytes(path, _MAX_FILE_BYTES)
    return content.decode() if b"\0" not in content else ""
  except ValueError:
    return ""


def _hidden(parts: Sequence[str]) -> bool:
  return any(part.startswith(".") or part in ("__pycache__", "build", "docs") for part in parts)


def _unpacked(place: pathlib.Path) -> dict[str, str]:
  """The Python files of an archive, whose top folder is left out of their paths."""
  files: dict[str, str] = {}
  size = 0
  for name, content in archives.members(place, _is_wanted, _MAX_FILE_BYTES):
    text = content.decode("utf-8", "replace")
    files["/".join(_inner(name))] = text
    size += len(text)
    if size > _MAX_REPO_BYTES:  # `folder` refuses it
      break
  return files


def _inner(name: str) -> tuple[str, ...]:
  return pathlib.PurePosixPath(name).parts[1:]


def _is_wanted(name: str) -> bool:
  parts = _inner(name)
  return name.endswith(".py") and bool(parts) and ".." not in parts and not _hidden(parts)


def _without_src(files: Mapping[str, str]) -> dict[str, str]:
  """The files without a leading src/, so that packages can be imported from the root."""
  return {path.removeprefix("src/"): text for path, text in files.items()}
