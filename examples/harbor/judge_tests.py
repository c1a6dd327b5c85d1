"""Runs in the sandbox as /tests/judge.py: the tests of a row of SWE-bench's form.

The files of the tests, and those that configure pytest, come back as they should be. The command of
expected.json runs the tests, and the reward is 1 if every test passes that has to. Standard library
only.
"""

import json
import os
import pathlib
import shutil
import subprocess

TESTS, APP, REWARD = map(pathlib.Path, ("/tests", "/app", "/logs/verifier/reward.json"))


CONFIGURE = ("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""Names of files that change what pytest runs and says."""
SHADOW = ("pytest", "_pytest", "pytest.py")
"""What is found in the place of pytest if it lies in the working directory."""


def put_back(kept: list[str]) -> None:
  """Removes all of this, but for the paths `kept`; then copies the files of the tests."""
  configure = [each for name in CONFIGURE for each in APP.rglob(name)]
  for path in configure + [APP / name for name in SHADOW if os.path.lexists(APP / name)]:
    if path.relative_to(APP).as_posix() not in kept:
      shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
  shutil.copytree(TESTS / "files", APP, dirs_exist_ok=True)


def passed(output: str) -> set[str]:
  """Ids of tests with a line "PASSED ID". Published lists cut an id at its first space."""
  lines = [line.removeprefix("PASSED ") for line in output.splitlines() if line[:7] == "PASSED "]
  return {*lines, *(line.split()[0] for line in lines if line.split())}


def main() -> None:
  """Writes the reward, and which share of the tests passed that failed or passed before."""
  expected = json.loads((TESTS / "expected.json").read_text("utf-8"))
  for name in expected["removed"]:
    (APP / name).unlink(missing_ok=True)
  put_back(expected["kept"])
  ran = subprocess.run(expected["command"], cwd=APP, stdout=subprocess.PIPE, text=True)
  found = passed(ran.stdout)
  share = lambda tests: sum(test in found for test in tests) / len(tests) if tests else 1.0
  parts = {name: share(expected[name]) for name in ("fail_to_pass", "pass_to_pass")}
  reward = {"reward": float(min(parts.values()) == 1.0), **parts}
  REWARD.write_text(json.dumps(reward), "utf-8")


if __name__ == "__main__":
  main()
