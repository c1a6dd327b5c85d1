"""Repositories in which tasks take place, the damage of a task, and the file that stores them."""

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
"""Part of the names of test files that no agent sees."""
FILE = "repos.jsonl.gz"
MAKER = "scripts/make_coding_tasks.py"
CHECK = "check.py"
"""A program that runs the visible tests, in repositories that have one."""


@dataclasses.dataclass(frozen=True)
class Repo:
  """A repository in which all tests pass.

  Attributes:
    name: the module or folder it was made of.
    group: decides the split: all repositories of a group are in the same one.
    kind: "calls" (functions, and their values for some calls) or "suite" (with its own tests).
    files: {path: text} that an agent starts with, before the damage of its task.
    sources: the paths of `files` that a task may damage.
    held_back: {path: text} of test modules that no agent sees (suite).
    values: {call: value} that the agent sees (calls).
    hidden_values: {call: value} that it does not see.
    statuses: {test id: status} of all tests, visible and held back (suite).
    mask: paths of the sandbox's runtime that must look empty because they contain the answer.
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
    """A digest of the content."""
    text = json.dumps(dataclasses.asdict(self), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  @property
  def check_command(self) -> str:
    """The shell command that runs the visible tests."""
    if CHECK in self.files:
      return f"python3 {CHECK}"
    return "python3 -m unittest " + " ".join(map(module_of, self.visible_tests))

  @property
  def visible_tests(self) -> tuple[str, ...]:
    """Paths of the visible test modules."""
    return tuple(path for path in self.files if is_test_module(path))

  def expected(self) -> dict[str, str]:
    """{test id: expected outcome in the undamaged repository}, visible and hidden."""
    if self.kind == "calls":
      return {**self.values, **self.hidden_values}
    return dict(self.statuses)

  def is_hidden(self, test: str) -> bool:
    """Whether no agent sees this test."""
    if self.kind == "calls":
      return test in self.hidden_values
    return HELD_BACK in test


def is_test(path: str) -> bool:
  """Whether a path belongs to tests, judged by its name."""
  parts = pathlib.PurePosixPath(path).parts
  return is_test_module(path) or bool({"test", "tests", "testing"} & set(parts[:-1]))


def is_test_module(path: str) -> bool:
  """Whether a path is a test module, judged by its name."""
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
  """Whether a file of this name can change how tests run, or is hidden."""
  return _SETTINGS.search(path) is not None


def module_of(path: str) -> str:
  """The dotted module name of a path below the root."""
  return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def broken(repo: Repo, edits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
  """{path: text} of the files that a task damages.

  Args:
    repo: the undamaged repository.
    edits: each has "path", "start", "fixed" and "broken". `fixed` stands at character `start` of
      the path's text in `repo` and is replaced by `broken`. Edits may be in any order and do not
      overlap.

  Raises:
    ValueError: another text stands at the place of an edit.
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
    ValueError: the folder holds no repositories, or the file has changed since it was written.
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
