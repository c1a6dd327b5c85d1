"""The tutorial runs, and mkdocs builds the pages without a warning."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_the_cells_of_the_tutorial_run_in_order_and_one_step_learns(monkeypatch):
  monkeypatch.chdir(ROOT)
  cells = json.loads((ROOT / "docs/tutorial.ipynb").read_text("utf-8"))["cells"]
  code = [cell for cell in cells if cell["cell_type"] == "code"]
  assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
  names = {}
  for cell in code:
    exec("".join(cell["source"]), names)
  assert names["trajectory"].rewards["reward"] == 1.0
  assert names["after"] > names["before"]
  assert int(names["learner"].policy.version) == 1


@pytest.mark.slow
@pytest.mark.skipif(
  not all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings"))),
  reason="needs the extra docs",
)
def test_mkdocs_builds_the_documents_without_a_warning(tmp_path):
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
  done = subprocess.run(
    command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "site/reference/learner/index.html").is_file()
