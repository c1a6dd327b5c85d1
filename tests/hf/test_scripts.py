"""Checkpoints of Hugging Face in and out, as a user types it."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from jaxrl_agents import file_digests
from jaxrl_agents.hf import checkpoint_reader, convert, families
from jaxrl_agents.runs import weight_files
from tests.hf import checkpoints

ROOT = pathlib.Path(__file__).parents[2]


def run(script, **flags):
  arguments = [f"--{name}={value}" for name, value in flags.items()]
  return subprocess.run(
    [sys.executable, ROOT / "scripts" / script, *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.slow
def test_a_checkpoint_goes_in_and_comes_out_by_the_scripts(tmp_path):
  hf, ours, out = tmp_path / "hf", tmp_path / "ours", tmp_path / "out"
  arrays = checkpoints.write(hf, checkpoints.QWEN3)
  (hf / "tokenizer.json").write_text("{}")
  done = run("import_hf.py", hf=hf, out=ours)
  assert done.returncode == 0 and "tokenizer.json copied" in done.stdout, done.stderr
  assert weight_files.load_sizes(ours) == families.read(hf).cfg
  assert not file_digests.damage(ours)  # damage on a shared disk is found before a run begins
  done = run("import_hf.py", hf=hf, out=hf)
  assert done.returncode == 2 and "name another folder to write" in done.stderr
  done = run("export_hf.py", checkpoint=ours, hf_config=hf, out=out)
  assert done.returncode == 0, done.stderr
  again = checkpoint_reader.tensors(out)
  assert {name: x.tobytes() for name, x in again.items()} == {
    name: x.tobytes() for name, x in arrays.items()
  }
  other = checkpoints.write_config(tmp_path / "other", checkpoints.QWEN3 | {"rope_theta": 7.0})
  done = run("export_hf.py", checkpoint=ours, hf_config=other, out=tmp_path / "no")
  assert done.returncode == 2
  assert f"error: rope_theta is {json.dumps(1e6)} in {ours} and 7.0 in {other}" in done.stderr
  done = run("export_hf.py", checkpoint=hf, hf_config=hf, out=tmp_path / "no")
  assert done.returncode == 2
  assert f"error: no policy.json in {hf}; name a folder that" in done.stderr


@pytest.mark.slow
def test_a_policy_that_was_trained_with_other_kernels_is_exported(tmp_path):
  hf, ours, out = tmp_path / "hf", tmp_path / "ours", tmp_path / "out"
  arrays = checkpoints.write(hf, checkpoints.QWEN3)
  cfg = convert.import_weights(hf, ours / weight_files.WEIGHTS)
  weight_files.save_sizes(dataclasses.replace(cfg, kernels="reference"), ours)
  done = run("export_hf.py", checkpoint=ours, hf_config=hf, out=out)
  assert done.returncode == 0, done.stderr
  assert checkpoint_reader.tensors(out).keys() == arrays.keys()


@pytest.mark.slow
def test_damaged_weights_are_not_exported(tmp_path):
  hf, ours, out = tmp_path / "hf", tmp_path / "ours", tmp_path / "out"
  checkpoints.write(hf, checkpoints.QWEN3)
  weight_files.save_sizes(convert.import_weights(hf, ours / weight_files.WEIGHTS), ours)
  file_digests.write(ours)
  with (ours / weight_files.WEIGHTS).open("r+b") as file:
    last = file.seek(-1, 2)
    byte = file.read(1)[0]
    file.seek(last)
    file.write(bytes([byte ^ 1]))
  done = run("export_hf.py", checkpoint=ours, hf_config=hf, out=out)
  assert done.returncode == 2
  assert "policy.safetensors has other content than was saved" in done.stderr
  assert not out.exists()
