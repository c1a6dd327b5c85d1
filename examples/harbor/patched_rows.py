"""Writes rows of SWE-bench's form as task folders of Harbor.

python -m examples.harbor.patched_rows --rows=ROWS.jsonl --roots=ROOTS --out=TASKS

A row holds no files: ROOTS has one folder for each `instance_id`, with what lies in the working
directory of its image at the base commit (`docker cp CONTAINER:/testbed ROOTS/INSTANCE_ID`). Rows
whose folder is not there are named and left out.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from examples.harbor.judge_tests import CONFIGURE, SHADOW
from jaxrl_agents.corpus import readers

NEEDED = (
  "instance_id",
  "repo",
  "problem_statement",
  "patch",
  "test_patch",
  "FAIL_TO_PASS",
  "PASS_TO_PASS",
)
PATCH_DEADLINE_S = 60.0
COMMAND = "python3 -m pytest -rA -q --color=no -p no:cacheprovider"
"""Runs the tests; the files that a row's test_patch changes are added to it."""

INSTRUCTION = """The repository {repo} is in /app, your working directory. Edit its files so that
this issue is solved. Tests that you do not see decide whether it is.

{issue}
"""

TEST_SH = """#!/bin/bash
cd /app && python3 /tests/judge.py
"""

SOLVE_SH = """#!/bin/bash
cd /app && git apply /solution/solution.patch
"""


def convert(row: Mapping[str, Any], root: pathlib.Path, out: pathlib.Path, command: str) -> None:
  """Writes the folder of one row.

  Args:
    row: with the fields `NEEDED`; tests as lists, or as JSON of lists.
    root: the files at the base commit.
    out: the folder; must not be there.
    command: runs the tests of the files that are added to it, and prints a line "PASSED ID" for
      each test that passes.

  Raises:
    ValueError: a field is missing or no text, a test is not one of pytest, or the patch of the
      tests does not fit the files.
  """
  if missing := [name for name in NEEDED if name not in row]:
    raise ValueError(f"the row has no {', '.join(missing)}")
  if others := [name for name in NEEDED[:5] if not isinstance(row[name], str)]:
    raise ValueError(f"{others[0]} is no text")
  must_pass = {name: tests_of(row, name) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
  files = patched_files(row["test_patch"], root)
  test_files = sorted(path for path, content in files.items() if content and path.endswith(".py"))
  repaired = named_by(row["patch"])
  configure = [each for name in CONFIGURE for each in root.rglob(name) if each.is_file()]
  own = {each.relative_to(root).as_posix(): each.read_bytes() for each in configure}
  files = {path: data for path, data in own.items() if path not in repaired} | files
  if not must_pass["FAIL_TO_PASS"] or not test_files:
    raise ValueError("no test has to pass that failed before, or test_patch changes no test file")
  expected = {
    "command": [*command.split(), *test_files],
    "fail_to_pass": must_pass["FAIL_TO_PASS"],
    "pass_to_pass": must_pass["PASS_TO_PASS"],
    "removed": sorted(path for path, content in files.items() if content is None),
    "kept": [path for path in repaired if pathlib.Path(path).name in CONFIGURE]
    + [name for name in SHADOW if (root / name).exists()],
  }
  with tempfile.TemporaryDirectory(dir=out.parent) as made:
    folder = pathlib.Path(made, "task")
    text = {
      "instruction.md": INSTRUCTION.format(repo=row["repo"], issue=row["problem_statement"]),
      "task.toml": 'version = "1.0"\n\n[agent]\ntimeout_sec = 1800.0\n\n[verifier]\n'
      f'timeout_sec = 1800.0\n\n[environment]\ndocker_image = "{out.name}"\n',
      "tests/test.sh": TEST_SH,
      "tests/judge.py": pathlib.Path(__file__).with_name("judge_tests.py").read_text("utf-8"),
      "tests/expected.json": json.dumps(expected, indent=2),
      "solution/solve.sh": SOLVE_SH,
      "solution/solution.patch": row["patch"],
    }
    for name, content in text.items():
      _write(folder / name, content.encode("utf-8"))
    for path, data in files.items():
      if data is not None:
        _write(folder / "tests" / "files" / path, data)
    folder.rename(out)


def tests_of(row: Mapping[str, Any], name: str) -> list[str]:
  """The ids of tests in a field: a list, or JSON of one.

  Raises:
    ValueError: they are none, or not as pytest writes them ("tests/test_a.py::test_b").
  """
  try:
    found = json.loads(row[name]) if isinstance(row[name], str) else row[name]
  except ValueError as error:
    raise ValueError(f"{name} is no list of tests: {error}") from error
  if not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
    raise ValueError(f"{name} is no list of tests")
  if others := [each for each in found if not re.match(r"[^\s:]+\.py::", each)]:
    raise ValueError(f"{name} has {others[0]!r}, which is no id of a test of pytest")
  return list(found)


def named_by(patch: str) -> list[str]:
  """The paths of the files that a patch names."""
  lines = r"^(?:--- a/|\+\+\+ b/|rename from |copy from )(.+?)\t?$"
  return sorted(set(re.findall(lines, patch, re.MULTILINE)))


def patched_files(patch: str, root: pathlib.Path) -> dict[str, bytes | None]:
  """{path: content after the patch} of the files that it names, None for those that it removes.

  Raises:
    ValueError: it does not fit the files of `root`, or names files outside of it.
  """
  names = named_by(patch)
  with tempfile.TemporaryDirectory() as made:
    place = pathlib.Path(made).resolve()
    for name in names:
      source = (root / name).resolve()
      inside = source.is_relative_to(root.resolve())
      if not inside or not (place / name).resolve().is_relative_to(place):
        raise ValueError(f"test_patch names {name}, outside of the repository")
      if source.is_file():
        _write(place / name, source.read_bytes())
    done = subprocess.run(
      ["git", "apply", "--whitespace=nowarn", "-"],
      cwd=place,
      env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(place.parent)},
      input=patch,
      capture_output=True,
      text=True,
      timeout=PATCH_DEADLINE_S,
    )
    if done.returncode:
      raise ValueError(f"test_patch does not fit the files of {root}: {done.stderr.strip()}")
    after = {name: place / name for name in names}
    return {name: file.read_bytes() if file.is_file() else None for name, file in after.items()}


def convert_all(rows: pathlib.Path, roots: pathlib.Path, out: pathlib.Path, command: str) -> int:
  """Writes a folder for each row that has files, and says why others have none; their number.

  Raises:
    ValueError: the file of rows cannot be read.
    FileExistsError: the folder of a row is there already.
  """
  out.mkdir(parents=True, exist_ok=True)
  written = 0
  for number, row in readers.read_jsonl(rows):
    name = str(row.get("instance_id", ""))
    try:
      if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"instance_id={name!r} cannot name a folder")
      root = roots / name
      if not root.is_dir():
        raise ValueError(f"there are no files of its image in {root}")
      if (out / name).exists():
        raise FileExistsError(f"{out / name} is there already; remove it, or choose another --out")
      convert(row, root, out / name, command)
      written += 1
    except (ValueError, subprocess.TimeoutExpired) as error:
      print(f"line {number}: {name} is left out: {error}", file=sys.stderr)
  return written


def _write(file: pathlib.Path, content: bytes) -> None:
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_bytes(content)


def main() -> None:
  """Exits with 1 if no row became a task."""
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument("--rows", required=True, help="JSON lines")
  flags.add_argument("--roots", required=True, help="folders of files, named by instance_id")
  flags.add_argument("--out", required=True, help="where task folders are written")
  flags.add_argument("--command", default=COMMAND, help="runs the tests of the files after it")
  given = flags.parse_args()
  places = (pathlib.Path(place) for place in (given.rows, given.roots, given.out))
  try:
    written = convert_all(*places, given.command)
  except (ValueError, OSError) as error:
    sys.exit(f"error: {error}")
  print(f"{written} task folders in {given.out}")
  sys.exit(0 if written else 1)


if __name__ == "__main__":
  main()
