"""scripts/export_policy.py: weights that load, with the curve of each part beside them."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import weight_files
from jaxrl_agents.runs.workdir import Workdir
from tests.runs.small_run import CFG
from tests.runs.test_saved_policy import save

ROOT = pathlib.Path(__file__).resolve().parents[2]


def export(config, workdir, out, *flags):
  """Runs the script; fails where it fails."""
  command = [sys.executable, "scripts/export_policy.py", f"--config={config}", f"--out={out}"]
  done = subprocess.run(
    [*command, f"--workdir={workdir}", *flags],
    cwd=ROOT,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.fixture
def config(tmp_path):
  """The file of a config of small sizes."""
  file = tmp_path / "config.py"
  file.write_text("from tests.runs.small_run import CONFIG\nget_config = lambda: CONFIG\n")
  return file


@pytest.mark.slow
def test_a_second_export_into_one_folder_leaves_the_new_policy_and_its_curve(tmp_path, config):
  out = tmp_path / "out"
  for seed, losses in ((0, [3.0] * 11), (1, [2.0, 1.0])):
    workdir = Workdir(tmp_path / str(seed))
    params = params_lib.init(CFG, jax.random.key(seed))
    weight_files.save(params, CFG, workdir.trained, tokenizer="base")
    for step, loss in enumerate(losses):
      workdir.log("sft", step, {"loss": loss})
    workdir.log("sft", len(losses), {"loss": float("nan")})
    export(config, workdir.path, out)
    loaded = weight_files.load(str(out), CFG)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
  assert (out / "curve.csv").read_text() == "part,phase,step,loss\n1,sft,1,1.500\n"


@pytest.mark.slow
def test_an_earlier_checkpoint_of_a_stopped_run_has_the_curve_up_to_it(tmp_path, config):
  workdir = Workdir(tmp_path / "run")
  expected = save(workdir.path, "rl", 2)
  save(workdir.path, "rl", 4)
  for phase, steps in (("sft", 1), ("rl", 5)):
    for step in range(steps):
      workdir.log(phase, step, {"loss": float(step)})
  printed = export(config, workdir.path, tmp_path / "out", "--step=2")
  assert "of checkpoint 2 (rl)" in printed
  loaded = weight_files.load(str(tmp_path / "out"), CFG)
  jax.tree.map(np.testing.assert_array_equal, loaded, expected)
  curve = (tmp_path / "out" / "curve.csv").read_text()
  assert curve == "part,phase,step,loss\n1,sft,0,0.000\n1,rl,1,0.500\n"
