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

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_second_export_into_one_folder_leaves_the_new_policy_and_its_curve(tmp_path):
  config = tmp_path / "config.py"
  config.write_text("from tests.runs.small_run import CONFIG\nget_config = lambda: CONFIG\n")
  out = tmp_path / "out"
  for seed, losses in ((0, [3.0] * 11), (1, [2.0, 1.0])):
    workdir = Workdir(tmp_path / str(seed))
    params = params_lib.init(CFG, jax.random.key(seed))
    weight_files.save(params, CFG, workdir.trained, tokenizer="base")
    for step, loss in enumerate(losses):
      workdir.log("sft", step, {"loss": loss})
    workdir.log("sft", len(losses), {"loss": float("nan")})
    command = [sys.executable, "scripts/export_policy.py", f"--config={config}", f"--out={out}"]
    done = subprocess.run(
      [*command, f"--workdir={workdir.path}"],
      cwd=ROOT,
      env=os.environ | {"PYTHONPATH": str(ROOT)},
      capture_output=True,
      text=True,
      timeout=300,
    )
    assert done.returncode == 0, done.stderr
    loaded = weight_files.load(str(out), CFG)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
  assert (out / "curve.csv").read_text() == "part,phase,step,loss\n1,sft,1,1.500\n"
