"""Repositories that tasks are done in, the damage of a task, and the file that holds them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.corpus import frozen_sets

HELD_BACK = "held_back"
"""In the names of files of tests that no agent sees."""
FILE = "repos.jsonl.gz"
MAKER = "scripts/make_coding_tasks.py"
CHECK = "check.py"
"""A program that runs the tests that can be seen, where a repository has one."""


@dataclasses.dataclass(frozen=True)
class Repo:
  """A repository in which all tests pass.

  Attributes:
    name: of where it comes from, a module or a folder.
    group: decides the split: all repositories of a group are in one.
    kind: "calls" (functions, and what they give) or "suite" (with tests of its own).
    files: {path: text} that an agent starts with, but for the damage of its task.
    sources: the paths of `files` that a task may damage.
    held_back: {path: text} of test modules that no agent sees (suite).
    values: {call: value} that can be seen (calls).
    hidden_values: {call: value} that cannot.
    statuses: {test id: status} of all tests, seen and held back (suite).
    mask: paths of the sandbox's runtime that must look empty, for the answer lies there.
  """

  name: str
  group: str
  kind: str
  files: Mapping[str, str]
  sources: tuple[str, ...]
  held_back: Mapping[str, str] = dataclasses.field(default_factory=dict)
  values: Mapping[str, str] = dataclasses.field(default_factory=dict)
  hidden_values: Mapping[str, str] = dataclasses.field(default_factory=dict)
  statuses: Mapping[str, str] = dataclasses.field(default_factory=dict)
  mask: tuple[str, ...] = ()

  @functools.cached_property
  def id(self) -> str:
    """Digest of all that it holds."""
    text = json.dumps(dataclasses.asdict(self), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  @property
  def check_command(self) -> str:
    """What runs the tests that can be seen."""
    if CHECK in self.files:
      return f"python3 {CHECK}"
    return "python3 -m unittest " + " ".join(map(module_of, self.visible_tests))

  @property
  def visible_tests(self) -> tuple[str, ...]:
    """Paths of the test modules that can be seen."""
    return tuple(path for path in self.files if is_test_module(path))

  def expected(self) -> dict[str, str]:
    """{test id: what it gives when all is well}, seen and hidden."""
    if self.kind == "calls":
      return {**self.values, **self.hidden_values}
    return dict(self.statuses)

  def is_hidden(self, test: str) -> bool:
    """Whether no agent sees this test."""
    if self.kind == "calls":
      return test in self.hidden_values
    return HELD_BACK in test


def is_test(path: str) -> bool:
  """Whether a path belongs to tests by its name."""
  parts = pathlib.PurePosixPath(path).parts
  return is_test_module(path) or bool({"test", "tests", "testing"} & set(parts[:-1]))


def is_test_module(path: str) -> bool:
  """Whether a path is a module of tests by its name."""
  name = pathlib.PurePosixPath(path).name
  stem = name.removesuffix(".py")
  return name.endswith(".py") and (
    stem.startswith("test_") or stem.endswith("_test") or stem == "tests"
  )


_SETTINGS = re.compile(
  r"(^|/)(conftest|sitecustomize|usercustomize|setup|check)\.py$|\.(pth|so|pyc|ini|cfg|toml)$|"
  r"(^|/)(__pycache__|\.[^/]+)(/|$)"
)


def is_setting(path: str) -> bool:
  """Whether a path can change how tests run by its name alone, or is hidden."""
  return _SETTINGS.search(path) is not None


def module_of(path: str) -> str:
  """The dotted module name of a path below the root."""
  return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def broken(repo: Repo, edits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
  """{path: text} of the files that a task damages.

  Args:
    repo: where all is well.
    edits: {"path", "start", "fixed", "broken"} each: at character `start` of the path's text in
      `repo` stands `fixed`, and is replaced; in any order, not overlapping.

  Raises:
    ValueError: the text there is another one.
  """
  texts = {edit["path"]: repo.files[edit["path"]] for edit in edits}
  for edit in sorted(edits, key=lambda edit: -edit["start"]):
    path, start, fixed = edit["path"], edit["start"], edit["fixed"]
    if texts[path][start : start + len(fixed)] != fixed:
      raise ValueError(f"{repo.name}: {path} has no {fixed[:60]!r} at {start}; make the task anew")
    texts[path] = texts[path][:start] + edit["broken"] + texts[path][start + len(fixed) :]
  return texts


def load(folder: str | os.PathLike[str]) -> dict[str, Repo]:
  """{id: repository} of a frozen set of coding tasks.

  Raises:
    ValueError: the folder holds none, or its file is not the one that was written.
  """
  manifest = frozen_sets.read_manifest(folder, maker=MAKER)
  content = frozen_sets.read(folder, FILE, manifest, maker=MAKER)
  repos = {}
  for line in content.decode().splitlines():
    record = json.loads(line)
    for name in ("sources", "mask"):
      record[name] = tuple(record[name])
    repo = Repo(**record)
    repos[repo.id] = repo
  return repos
