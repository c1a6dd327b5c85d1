"""pyproject.toml declares what the code imports: no more, no less."""

import ast
import pathlib
import re
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# Distributions whose import name is another.
IMPORT_NAMES = {
  "absl-py": "absl",
  "orbax-checkpoint": "orbax",
  "pystemmer": "Stemmer",
  "pyyaml": "yaml",
  "tensorboardx": "tensorboardX",
}
# Folders and files of scripts/ that scripts beside them import.
# Programs that scripts/try_clients.py runs in environments of their own.
PROGRAMS = ROOT / "scripts" / "clients"
OURS = {
  "bench",
  "configs",
  "examples",
  "jaxrl_agents",
  "scripts",
  "tests",
  "published",
  "realtime",
  "small_policy",
}


def imported(*folders):
  """Top-level names of other people's packages that the files of `folders` import."""
  names = set()
  for folder in folders:
    for path in (ROOT / folder).rglob("*.py"):
      if path.is_relative_to(PROGRAMS):
        continue
      for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
          names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
          names.add(node.module.partition(".")[0])
  return names - sys.stdlib_module_names - OURS


def declared(requirements):
  names = (re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements)
  return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


@pytest.mark.slow
def test_everything_that_is_imported_is_declared():
  extras = PROJECT["optional-dependencies"]
  optional = declared(sum((extras[name] for name in extras if name != "dev"), []))
  needed = declared(PROJECT["dependencies"])
  assert imported("jaxrl_agents", "scripts", "configs") - optional <= needed


def test_everything_that_is_declared_is_imported():
  needed = declared(PROJECT["dependencies"])
  assert needed <= imported("jaxrl_agents", "scripts", "configs")


def test_the_tests_import_what_the_dev_extra_brings():
  needed = declared(PROJECT["dependencies"])
  assert imported("tests") - needed <= declared(PROJECT["optional-dependencies"]["dev"])


def test_requirements_txt_leaves_the_list_to_pyproject():
  lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
  assert [line for line in lines if line and not line.startswith("#")] == ["-e ."]
