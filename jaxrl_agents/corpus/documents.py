"""Documents of a corpus: the running Python's standard library, a package, a folder, or BEIR.

A policy sees documents by short random numbers, as in Context-1, where addresses are mapped to
random ids so that an id reveals nothing about the content. The true name is in
`metadata["source"]`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.corpus import folder_files, readers

MAX_CHARACTERS = 4 << 30
"""Characters of all documents of a folder."""
PYTHON = "python"
"""The name of the corpus that every machine has: the source of the standard library."""
PACKAGE = "package:"
"""Prefix of the name of an installed package as a source."""

_NOT_INDEXED = frozenset({
  "test", "tests", "idlelib", "lib2to3", "encodings", "turtledemo", "distutils", "ensurepip",
  "site-packages", "dist-packages", "lib-dynload", "__pycache__", "__phello__", "pydoc_data",
})  # fmt: skip
_OF_TESTS = re.compile(r"(?:^|[/_])tests?(?=[/_.])|(?:^|/)(?:testing/|conftest\.py$|__pycache__/)")
"""Matches paths that belong to the tests of a package."""
_SUFFIXES = (".txt", ".md", ".html", ".htm", ".jsonl", ".py")


@dataclasses.dataclass(frozen=True)
class Document:
  """One document.

  Attributes:
    id: a random number as text: what a policy sees, without "_".
    title: module name, page title, subject line or file name.
    text: all of it; chunks are cut from it without loss.
    metadata: "source" (module name, path in the folder, or the id in a JSON line), "kind"
      ("python", "text", "html", "jsonl") and what a JSON line's own metadata held.
  """

  id: str
  title: str
  text: str
  metadata: Mapping[str, Any]


def load(source: str | os.PathLike[str], *, seed: int = 0) -> list[Document]:
  """Returns the documents of a corpus, in the order of their sources.

  Args:
    source: "python", "package:NAME" or "package:NAME,NAME" (the modules of installed packages,
      their tests left out; nothing is imported), or a folder: with corpus.jsonl or corpus.jsonl.gz
      it is a BEIR collection (https://github.com/beir-cellar/beir), else every .txt .md .html
      .jsonl .py file below it (also with .gz) is read; a JSON line is {"_id", "title", "text",
      "metadata"}, text required.
    seed: of the permutation that numbers the documents.

  Raises:
    ValueError: names the file, the line where there is one, and the remedy.
  """
  if str(source) == PYTHON:
    unnumbered = _standard_library(pathlib.Path(sysconfig.get_paths()["stdlib"]))
  elif str(source).startswith(PACKAGE):
    names = str(source).removeprefix(PACKAGE).split(",")
    unnumbered = [document for name in names for document in _package(name)]
  else:
    unnumbered = _folder(pathlib.Path(source))
  return numbered([document for document in unnumbered if document.text.strip()], source, seed)


def version(source: str | os.PathLike[str]) -> str:
  """The version of a source: of Python, or of its packages; "" of a folder."""
  if str(source) == PYTHON:
    return platform.python_version()
  if not str(source).startswith(PACKAGE):
    return ""
  distributions = importlib.metadata.packages_distributions()
  names = str(source).removeprefix(PACKAGE).split(",")
  owners = [owner for name in names for owner in distributions.get(name, [])]
  return " ".join(importlib.metadata.version(owner) for owner in owners)


def content_hash(documents: Iterable[Document]) -> str:
  """Returns the SHA-256 (hex) of ids, titles and texts in order."""
  digest = hashlib.sha256()
  for document in documents:
    for part in (document.id, document.title, document.text):
      digest.update(part.encode() + b"\0")
  return digest.hexdigest()


def numbered(documents: Sequence[Document], source: Any, seed: int) -> list[Document]:
  """Gives each document a number of at least three digits; all numbers have equally many.

  Raises:
    ValueError: there are no documents, or two have one name in metadata["source"].
  """
  if not documents:
    raise ValueError(f"{source}: no document holds any text; name a folder that has some")
  seen: set[str] = set()
  for document in documents:
    name = document.metadata["source"]
    if name in seen:
      raise ValueError(f"{source}: two documents have the id {name!r}; make the ids distinct")
    seen.add(name)
  low = 100
  while 9 * low < len(documents):
    low *= 10
  numbers = random.Random(seed).sample(range(low, 10 * low), len(documents))
  return [
    dataclasses.replace(document, id=str(number))
    for document, number in zip(documents, numbers, strict=True)
  ]


def _standard_library(root: pathlib.Path) -> list[Document]:
  paths = []
  for folder, folders, files in os.walk(root):  # which enters no folder that is left out
    at_root = pathlib.Path(folder) == root
    folders[:] = [
      name
      for name in folders
      if name not in _NOT_INDEXED and not (at_root and name.startswith("config-"))
    ]
    paths += [
      pathlib.Path(folder, name)
      for name in files
      if name.endswith(".py")
      and not name.startswith(("_sysconfigdata", "sitecustomize", "usercustomize"))
    ]
  if not paths:
    raise ValueError(
      f"{root}: this Python has no source of its standard library (a zipped or stripped install); "
      "use another Python, or a folder of documents"
    )
  return _modules(paths, root)


def _package(name: str) -> list[Document]:
  try:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
  except ValueError:  # __main__, for example
    spec = None
  if spec and spec.submodule_search_locations:
    places = [pathlib.Path(place) for place in spec.submodule_search_locations]
    roots = {path: place.parent for place in places for path in place.rglob("*.py")}
  else:
    path = pathlib.Path((spec and spec.origin) or "")
    roots = {path: path.parent} if path.suffix == ".py" else {}
  documents = [
    document
    for root in dict.fromkeys(roots.values())
    for document in _modules([path for path in roots if roots[path] == root], root)
    if not _OF_TESTS.search(document.metadata["path"])
  ]
  if not documents:
    raise ValueError(
      f"{PACKAGE}{name}: no package of that name is installed here with its Python source; install "
      "it, or name the folder of its source"
    )
  return list({document.metadata["source"]: document for document in documents}.values())


def _modules(paths: Iterable[pathlib.Path], root: pathlib.Path) -> list[Document]:
  """Files of modules that are imported from `root`, in the order of their names."""
  documents = []
  for path in paths:
    parts = path.relative_to(root).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    metadata = {"source": module, "kind": "python", "path": path.relative_to(root).as_posix()}
    documents.append(Document("", module, readers.read_python(path), metadata))
  return sorted(documents, key=lambda found: (found.metadata["source"], found.metadata["path"]))


def _folder(root: pathlib.Path) -> list[Document]:
  if not root.exists():
    raise ValueError(
      f"{root}: no such folder; name a folder of documents, {PYTHON!r}, or {PACKAGE + root.name!r} "
      "for an installed package"
    )
  if not root.is_dir():
    raise ValueError(f"{root}: a file, not a folder; name the folder that holds it")
  for name in ("corpus.jsonl", "corpus.jsonl.gz"):
    if (root / name).is_file():
      return list(_limited(_json_lines(root / name, root), root))
  paths = [
    path
    for path in folder_files.below(root, lambda name: name.startswith("."))
    if _kind_suffix(path) in _SUFFIXES
  ]
  if not paths:
    raise ValueError(
      f"{root}: no file with a name in {' '.join(_SUFFIXES)} (or these with .gz) is in the folder; "
      "convert the documents to one of these"
    )
  return list(_limited((document for path in paths for document in _file(path, root)), root))


def _limited(documents: Iterable[Document], root: pathlib.Path) -> Iterator[Document]:
  """The documents, as long as they have not too many characters in all."""
  size = 0
  for document in documents:
    size += len(document.text)
    if size > MAX_CHARACTERS:
      raise ValueError(
        f"{root}: more than {MAX_CHARACTERS} characters of text, reached in "
        f"{document.metadata['source']!r}; name a folder of less"
      )
    yield document


def _kind_suffix(path: pathlib.Path) -> str:
  suffixes = [suffix.lower() for suffix in path.suffixes]
  return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def _file(path: pathlib.Path, root: pathlib.Path) -> Iterable[Document]:
  suffix, name = _kind_suffix(path), path.relative_to(root).as_posix()
  if suffix == ".jsonl":
    return _json_lines(path, root)
  if suffix == ".py":
    return [Document("", name, readers.read_python(path), {"source": name, "kind": "python"})]
  text = readers.read_text(path)
  if suffix in (".html", ".htm"):
    title, text = readers.html_to_text(text)
    return [Document("", title or name, text, {"source": name, "kind": "html"})]
  return [Document("", name, text, {"source": name, "kind": "text"})]


def _json_lines(path: pathlib.Path, root: pathlib.Path) -> Iterator[Document]:
  for number, record in readers.read_jsonl(path):
    text = readers.string_field(path, number, record, "text")
    title = readers.string_field(path, number, record, "title")
    if not (text or title):
      raise ValueError(f"{path}, line {number}: no field 'text'; give each document its text")
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
      raise ValueError(f"{path}, line {number}: field 'metadata' is not an object; make it one")
    own_id = readers.string_field(path, number, record, "_id", "id", "docid", "url")
    source = own_id or f"{path.relative_to(root).as_posix()}:{number}"
    yield Document("", title, text or title, {**metadata, "source": source, "kind": "jsonl"})
